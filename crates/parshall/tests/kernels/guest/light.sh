# The part that runs with every `make test`: the rung that is promised and the one that is had, a fault, and the sockets.

report doctor parshall doctor --format json
# With the usual limit of old kernels, and without the right to raise it.
confined='ulimit -l 64; exec /usr/bin/setpriv --bounding-set=-sys_resource --inh-caps=-all parshall doctor --format json'
report doctor-confined sh -c "$confined"

# A tunnel, whose process has given its privileges up and cannot read its own /proc.
{ echo '[Interface]'; echo "PrivateKey = $(head -c 32 /dev/urandom | base64)"; } >/tmp/tunnel.conf
chmod 600 /tmp/tunnel.conf
report tunnel-up parshall tunnel up /tmp/tunnel.conf --interface wg0 --daemon
report tunnel-show parshall tunnel show wg0 --format json
report tunnel-down parshall tunnel down wg0

# Sockets of each kind that do not change, in two namespaces beside the first.
for n in a b; do
    $ip netns add $n
    $ip -n $n link set lo up
    HOLD=/tmp/held-$n $ip netns exec $n kernels --exact --ignored sockets::hold >/dev/null 2>&1 &
done
for n in a b; do
    wait_for_file /tmp/held-$n
    report netns-$n stat -L -c %i /run/netns/$n
    report ss-$n $ip netns exec $n ss -H -a -n -t -u -x
done
for backend in walk netlink; do
    report sockets-$backend parshall sockets once --all --backend $backend --kind tcp,udp,unix --format json
done

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
