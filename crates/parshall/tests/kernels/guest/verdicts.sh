# Faults of the lab, which must get the same verdicts as on the kernel of the recordings. The control groups are of version 2.

for fault in nagle-delayed-ack cork-held packet-loss cpu-throttled; do
    report_run run/$fault parshall lab run $fault --for 3s --format json
done
report_run run/nagle-stall parshall lab run nagle-stall --for 3s --format json
# A lock whose holder waits for its client.
report_run run/held-row-lock parshall lab run held-row-lock --for 3s --format json

# A server that shares its CPU with programs that need it.
for n in 1 2 3; do
    taskset 1 sh -c 'while :; do :; done' &
    hogs="$hogs $!"
done
taskset 1 parshall lab load rpc-echo --serve 127.0.0.1:7000 --nodelay --for 300s >/dev/null 2>&1 &
server=$!
sleep 5
taskset 2 parshall lab load rpc-echo --connect 127.0.0.1:7000 --clients 2 --nodelay --together --for 300s >/dev/null 2>&1 &
client=$!
sleep 3
report_run run/run-queue-latency parshall attach --pid $server --for 3s --format json
kill $hogs $server $client
