#!/bin/sh
# A worker of the failover demo, in the shell. worker.c and worker.py do the same; ../README.md
# describes their behaviour and output. MEMLOCK_URL says where the locks are.
#
#     worker.sh REPORT STOP

report=$1 stop=$2
here=$(dirname "$0")
. "$here/boot-clock.sh"

# A demo wants to see what happens after a loss. Usually it is best to omit --on-lost: then the
# command is ended when its lock is lost.
run() { memlock run --lease 3s --on-lost=continue "$@"; }

# Everything happens under the worker's own lock: the script calls itself under it.
if [ "$MEMLOCK_NAME" != own-sh ]; then
    run own-sh "$0" "$@"
    status=$?
    case $status in
        0) echo "own-released ok $(earlier)" >> "$report" ;;
        79) echo "own-released lost $(earlier)" >> "$report" ;;
        *) exit $status ;;
    esac
    exit 0
fi

echo "own $MEMLOCK_FENCE $(later)" >> "$report"
turn=1
while ! [ -e "$stop" ]; do
    # Long and short by turns: 1.2 to 1.5 s, and 0.3 to 0.6 s.
    run job "$here/section.sh" "$report" $((300 + turn % 2 * 900 + turn * 100 % 400))
    status=$?
    case $status in
        0) echo "released ok $(later)" >> "$report" ;;
        79) echo "released lost $(later)" >> "$report" ;;
        69) # The server was down.
            echo unreached >> "$report"
            sleep 0.05
            continue ;;
        *) exit $status ;;
    esac
    turn=$((turn + 1))
done
