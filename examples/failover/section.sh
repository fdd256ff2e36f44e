#!/bin/sh
# What worker.sh does while it holds the lock: `memlock run job section.sh REPORT MILLISECONDS`.

. "$(dirname "$0")/boot-clock.sh"
echo "begin $MEMLOCK_FENCE $(later) $2" >> "$1"
sleep "$(($2 / 1000)).$(printf %03d $(($2 % 1000)))" # the work
echo "end $(earlier)" >> "$1"
