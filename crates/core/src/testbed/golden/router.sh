#!/bin/sh
# Two hosts and a router
set -e
ip netns add client
ip -n client link set lo up
ip netns exec client sysctl -qw net.ipv4.tcp_congestion_control=cubic 2>/dev/null || ip netns exec client sysctl -qw net.ipv4.tcp_congestion_control=reno
ip netns add router
ip -n router link set lo up
ip netns exec router sysctl -qw net.ipv4.tcp_congestion_control=cubic 2>/dev/null || ip netns exec router sysctl -qw net.ipv4.tcp_congestion_control=reno
ip netns exec router sysctl -qw net.ipv4.ip_forward='1'
ip netns add server
ip -n server link set lo up
ip netns exec server sysctl -qw net.ipv4.tcp_congestion_control=reno
ip netns exec server sysctl -qw net.ipv4.tcp_rmem='4096 65536 65536'
ip link add name eth0 mtu 9000 netns client type veth peer name west mtu 9000 netns router
ip netns exec client ethtool -K eth0 tso off
ip netns exec client ethtool -K eth0 gro on
ip netns exec client sysctl -eqw net/ipv6/conf/eth0/disable_ipv6=1
ip -n client address add 10.1.0.2/24 dev eth0
ip -n client link set eth0 up
ip netns exec router ethtool -K west tso off
ip netns exec router ethtool -K west gro on
ip netns exec router sysctl -eqw net/ipv6/conf/west/disable_ipv6=1
ip -n router address add 10.1.0.1/24 dev west
ip -n router link set west up
ip link add name east mtu 1500 netns router type veth peer name eth0 mtu 1500 netns server
ip netns exec router sysctl -eqw net/ipv6/conf/east/disable_ipv6=1
ip -n router address add 10.2.0.1/24 dev east
ip -n router link set east up
tc -n router qdisc add dev east root handle 1: tbf rate 100000000bit burst 32768 limit 262144
ip -n server address add 10.2.0.2/24 dev eth0
ip -n server address add fd00::2/64 dev eth0 nodad
ip -n server link set eth0 up
ip -n client route add 0.0.0.0/0 via 10.1.0.1
ip -n server route add 10.1.0.0/24 via 10.2.0.1
# To remove it:
# ip netns delete client
# ip netns delete router
# ip netns delete server
