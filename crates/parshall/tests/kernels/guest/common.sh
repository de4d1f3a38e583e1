# Functions that the scripts of all guests begin with. The second serial port carries nothing but reports: a line with the name, the exit
# code and the sizes of the output, and then the output. So messages of the kernel cannot get between them.

# The shell's own `ip` knows little, and it prefers that.
ip=/usr/bin/ip

# report NAME COMMAND...: runs a program, for two minutes at most, and reports what it printed.
report() {
    name="$1"
    shift
    timeout -s KILL 120 "$@" >/tmp/report.out 2>/tmp/report.err </dev/null
    finished "$name" $?
}

# report_run NAME PATTERN COMMAND...: the same for an observation, which is repeated up to two times where its output lacks the pattern:
# loads end by themselves.
report_run() {
    name="$1"
    pattern="$2"
    shift 2
    for attempt in 1 2 3; do
        timeout -s KILL 300 "$@" >/tmp/report.out 2>/tmp/report.err </dev/null
        code=$?
        ! grep -q "$pattern" /tmp/report.out || break
    done
    finished "$name" $code
}

# finished NAME CODE: reports the output that is in the two files.
finished() {
    {
        echo "$1 $2 $(stat -c %s /tmp/report.out) $(stat -c %s /tmp/report.err)"
        cat /tmp/report.out /tmp/report.err
    } >/dev/ttyS1
}

# Waits until a file is there, for a minute at most.
wait_for_file() {
    tries=0
    until [ -e "$1" ] || [ $tries -ge 300 ]; do
        tries=$((tries + 1))
        sleep 0.2
    done
}

# wait_for_listener NAMESPACE PORT: waits until a TCP port of IPv4 is served, for a minute at most.
wait_for_listener() {
    tries=0
    until $ip netns exec "$1" grep -q ":$(printf %04X "$2") 00000000:0000 0A" /proc/net/tcp || [ $tries -ge 300 ]; do
        tries=$((tries + 1))
        sleep 0.2
    done
}
