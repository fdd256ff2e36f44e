# The boot clock in nanoseconds, from /proc/uptime. That tells it in hundredths of a second, so the
# time is between `earlier` and `later`: a hold is recorded from `later` to `earlier`, and thus
# never longer than it was.

earlier() {
    read -r now _ < /proc/uptime
    echo "${now%.*}${now#*.}0000000"
}

later() {
    read -r now _ < /proc/uptime
    hundredths=${now%.*}${now#*.}
    echo "$((hundredths + 1))0000000"
}
