# What takes a guest a minute: the rung that is promised, for which each program is loaded once, a tunnel and the sockets.

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
