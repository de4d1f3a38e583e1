# After light.sh: the rung that is had, and a fault. Old kernels check the programs of an observation for as long again.

# The fault nagle-delayed-ack, with loads that do not end by themselves. The programs are read while they are attached.
$ip netns add c
$ip -n c link set lo up
$ip netns exec c parshall lab load rpc-echo --serve 127.0.0.1:7100 --nodelay --for 3000s >/tmp/served 2>&1 &
wait_for_listener c 7100
$ip netns exec c parshall lab load rpc-echo --connect 127.0.0.1:7100 --clients 4 --for 3000s >/dev/null 2>&1 &
sleep 1
LIST=/tmp/programs kernels --exact --ignored programs::list >/dev/null 2>&1 &
report_run run/nagle-delayed-ack '"cause": *"nagle-delayed-ack"' parshall attach --netns c --port 7100 --for 2500ms --format json
kill $!
report programs cat /tmp/programs
