# The same on arm64, in one guest, with what needs no program of the test suite.

report doctor parshall doctor --format json
confined='ulimit -l 64; exec /usr/bin/setpriv --bounding-set=-sys_resource --inh-caps=-all parshall doctor --format json'
report doctor-confined sh -c "$confined"

# A load on loopback that does not end by itself: its sockets are compared with those of ss, and its stalls are a fault.
$ip netns add c
$ip -n c link set lo up
$ip netns exec c parshall lab load rpc-echo --serve 127.0.0.1:7100 --nodelay --for 3000s >/tmp/served 2>&1 &
server=$!
wait_for_listener c 7100
$ip netns exec c parshall lab load rpc-echo --connect 127.0.0.1:7100 --clients 4 --for 3000s >/dev/null 2>&1 &
client=$!
sleep 2
report netns-c stat -L -c %i /run/netns/c
report ss-c $ip netns exec c ss -H -a -n -t -u -x
for backend in walk netlink; do
    report sockets-$backend parshall sockets once --all --backend $backend --kind tcp,udp,unix --format json
done
report_run run/nagle-delayed-ack '"cause": *"nagle-delayed-ack"' parshall attach --netns c --port 7100 --for 2500ms --format json
kill $client $server

report_run run/nagle-stall '"cause": *"nagle-delayed-ack"' parshall lab run nagle-stall --for 3s --format json

# A file through each engine of the relay.
mkdir -p /tmp/www
head -c 8000000 /dev/urandom >/tmp/www/data
httpd -p 127.0.0.1:8000 -h /tmp/www
port=8001
for engine in copy splice auto; do
    printf '[[listener]]\nlisten = "127.0.0.1:%s"\ntarget = "127.0.0.1:8000"\nengine = "%s"\n' $port $engine >/tmp/$engine.toml
    parshall relay -c /tmp/$engine.toml >/tmp/$engine.log 2>&1 &
    relay=$!
    tries=0
    until wget -q -O /tmp/received http://127.0.0.1:$port/data 2>/dev/null || [ $tries -ge 50 ]; do
        tries=$((tries + 1))
        sleep 0.2
    done
    report transfer/$engine cmp /tmp/www/data /tmp/received
    kill $relay
    rm -f /tmp/received
    port=$((port + 1))
done

# Two tunnels that are each other's peer.
for n in 1 2; do
    $ip netns add t$n
    $ip -n t$n link set lo up
    head -c 32 /dev/urandom | base64 >/tmp/key$n
    wg pubkey </tmp/key$n >/tmp/public$n
done
$ip link add name eth0 netns t1 type veth peer name eth0 netns t2
for n in 1 2; do
    other=$((3 - n))
    $ip -n t$n address add 10.1.0.$n/24 dev eth0
    $ip -n t$n link set eth0 up
    cat >/tmp/wg$n.conf <<FILE
[Interface]
PrivateKey = $(cat /tmp/key$n)
ListenPort = 51820
Address = 10.2.0.$n/24

[Peer]
PublicKey = $(cat /tmp/public$other)
Endpoint = 10.1.0.$other:51820
AllowedIPs = 10.2.0.$other/32
FILE
    chmod 600 /tmp/wg$n.conf
    report tunnel-up-$n $ip netns exec t$n parshall tunnel up /tmp/wg$n.conf --interface wg$n --daemon
done
report tunnel-ping $ip netns exec t1 ping -c 5 -W 20 10.2.0.2
report tunnel-show parshall tunnel show wg1 --format json
report tunnel-down $ip netns exec t1 parshall tunnel down wg1
