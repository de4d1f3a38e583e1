# Faults of the lab, which must get the same verdicts as on the kernel of the recordings. The control groups are of version 2.

for fault in nagle-delayed-ack cork-held cpu-throttled; do
    report_run run/$fault '"verdict"' parshall lab run $fault --for 3s --format json
done
report_run run/nagle-stall '"verdict"' parshall lab run nagle-stall --for 3s --format json
# A lock whose holder waits for its client.
report_run run/held-row-lock '"verdict"' parshall lab run held-row-lock --for 3s --format json

# The fault packet-loss with netem, which loses packets on every kernel, and with loads that do not end by themselves: a stream leaves
# little of the guest's CPU for loading the probes. A router loses them, as TCP hears of what its own host's qdisc drops.
for n in s r d; do
    $ip netns add $n
    $ip -n $n link set lo up
done
$ip link add name eth0 netns s type veth peer name eth0 netns r
$ip link add name eth1 netns r type veth peer name eth0 netns d
# A lost packet is one segment, as on a wire.
for end in "s eth0 10.1.0.1" "r eth0 10.1.0.254" "r eth1 10.2.0.254" "d eth0 10.2.0.2"; do
    set -- $end
    $ip -n $1 link set $2 gso_max_segs 1 up
    $ip -n $1 address add $3/24 dev $2
done
$ip -n s route add default via 10.1.0.254
$ip -n d route add default via 10.2.0.254
$ip netns exec r sysctl -q -w net.ipv4.ip_forward=1
/usr/bin/tc -n r qdisc add dev eth1 root netem loss 2%
$ip netns exec d parshall lab load stream --serve 10.2.0.2:7000 --for 3000s >/dev/null 2>&1 &
server=$!
wait_for_listener d 7000
$ip netns exec s parshall lab load stream --connect 10.2.0.2:7000 --for 3000s >/dev/null 2>&1 &
client=$!
sleep 2
report_run run/packet-loss '"verdict"' parshall attach --pid $client --for 3s --format json
kill $server $client

# A server that shares its CPU with programs that need it. It computes for each request: the scheduler favours one that needs little.
for n in 1 2 3; do
    taskset 1 sh -c 'while :; do :; done' &
    hogs="$hogs $!"
done
taskset 1 parshall lab load rpc-echo --serve 127.0.0.1:7000 --nodelay --burn-ms 2 --for 300s >/dev/null 2>&1 &
server=$!
sleep 5
taskset 2 parshall lab load rpc-echo --connect 127.0.0.1:7000 --clients 2 --nodelay --together --for 300s >/dev/null 2>&1 &
client=$!
sleep 3
report_run run/run-queue-latency '"verdict"' parshall attach --pid $server --for 3s --format json
kill $hogs $server $client
