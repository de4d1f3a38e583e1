# The same testbeds by the lab's emulator and by the kernel's netem. `ping` measures both.

testbed() {
    cat <<FILE
[[namespace]]
name = "near"

[[namespace]]
name = "far"

[[link]]
a = { namespace = "near", device = "eth0", address = "10.1.0.1/24" }
b = { namespace = "far", device = "eth0", address = "10.1.0.2/24" }
impair = { $1 }
FILE
}

# measure NAME NAMESPACE: 400 packets, one every 25 ms. The first question for a neighbour's address may be lost as well: it is asked again after
# a second, and packets wait meanwhile.
measure() {
    known=0
    until $ip netns exec "$2" ping -q -c 1 -W 1 10.1.0.2 >/dev/null || [ $known -ge 30 ]; do known=$((known + 1)); done
    report "$1" $ip netns exec "$2" ping -q -c 400 -i 0.025 -W 2 10.1.0.2
}

# Makes the testbed of a file by the emulator, which refuses to on a host that is too busy for it.
emulate() {
    for attempt in $(seq 1 20); do
        : >/tmp/$1.names
        parshall lab testbed /tmp/$1.toml --for 100s >/tmp/$1.names 2>/tmp/$1.errors &
        lab=$!
        tries=0
        until [ "$(wc -l </tmp/$1.names)" -ge 2 ] || ! kill -0 $lab 2>/dev/null || [ $tries -ge 300 ]; do
            tries=$((tries + 1))
            sleep 0.2
        done
        ! kill -0 $lab 2>/dev/null || return
    done
}

spec() {
    testbed "$2" >/tmp/$1.toml
    emulate $1
    if kill -0 $lab 2>/dev/null; then
        measure $1/emulator $(sed -n '1s/^[^ ]* \([^ ]*\).*/\1/p' /tmp/$1.names)
        kill $lab
    else
        report $1/emulator sh -c "cat /tmp/$1.errors >&2; exit 1"
    fi
    wait $lab
    parshall lab testbed --show-as-shell /tmp/$1.toml >/tmp/$1.sh
    # The shell's own `ip` and `tc` know little. Nobody needs offloads here, and there is no ethtool. iproute2 before 6.6 knows no seed.
    sed -i '/ethtool/d; s, seed [0-9]*,,; s,^ip ,/usr/bin/ip ,; s,^tc ,/usr/bin/tc ,' /tmp/$1.sh
    report $1/script sh -ex /tmp/$1.sh
    measure $1/netem near
    $ip netns del near
    $ip netns del far
}

spec delay 'delay = "20ms"'
spec delay-and-loss 'delay = "20ms", loss = "5%"'
spec loss 'loss = "5%"'
