//! A testbed as a shell script that makes the same with `ip`, `tc`, `sysctl` and `ethtool`.
use std::fmt::Write;
use std::ops::RangeInclusive;

use super::impairment::{Impairment, Means, direction_seed};
use super::model::{End, Link, Shaper, Testbed};

/// Packets that netem holds: more than any delay and rate of a testbed need.
const NETEM_LIMIT: u32 = 1_000_000;

/// The script. It stops at the first command that fails; its last lines are comments that say how to remove everything.
pub fn shell(testbed: &Testbed) -> String {
    let mut script = String::from("#!/bin/sh\n");
    if !testbed.title.is_empty() {
        line(&mut script, format_args!("# {}", testbed.title));
    }
    line(&mut script, format_args!("set -e"));
    for namespace in &testbed.namespaces {
        let name = &namespace.name;
        line(&mut script, format_args!("ip netns add {name}"));
        line(&mut script, format_args!("ip -n {name} link set lo up"));
        let set =
            |script: &mut String, text: &str| line(script, format_args!("ip netns exec {name} sysctl -qw {text}"));
        match &namespace.congestion_control {
            Some(control) => set(&mut script, &format!("net.ipv4.tcp_congestion_control={control}")),
            None => {
                let key = "net.ipv4.tcp_congestion_control";
                let cubic = format!("{key}=cubic 2>/dev/null || ip netns exec {name} sysctl -qw {key}=reno");
                set(&mut script, &cubic);
            }
        }
        for (key, value) in &namespace.sysctls {
            set(&mut script, &format!("{key}='{value}'"));
        }
    }
    for (index, each) in testbed.links.iter().enumerate() {
        link(&mut script, testbed, index, each);
    }
    for namespace in &testbed.namespaces {
        for route in &namespace.routes {
            line(&mut script, format_args!("ip -n {} route add {} via {}", namespace.name, route.to, route.via));
        }
    }
    line(&mut script, format_args!("# To remove it:"));
    for namespace in &testbed.namespaces {
        line(&mut script, format_args!("# ip netns delete {}", namespace.name));
    }
    script
}

fn link(script: &mut String, testbed: &Testbed, index: usize, link: &Link) {
    let name = |end: &End| testbed.namespaces[end.namespace].name.clone();
    let [a, b] = &link.ends;
    let mtu = link.mtu;
    line(
        script,
        format_args!(
            "ip link add name {} mtu {mtu} netns {} type veth peer name {} mtu {mtu} netns {}",
            a.device,
            name(a),
            b.device,
            name(b)
        ),
    );
    for (from, (end, impairment)) in link.ends.iter().zip(&link.impairments).enumerate() {
        let (namespace, device) = (name(end), &end.device);
        for (offload, on) in link.effective_offloads().set() {
            let on = if on { "on" } else { "off" };
            line(script, format_args!("ip netns exec {namespace} ethtool -K {device} {offload} {on}"));
        }
        if !end.has_ipv6() {
            let key = format!("net/ipv6/conf/{device}/disable_ipv6");
            line(script, format_args!("ip netns exec {namespace} sysctl -eqw {key}=1"));
        }
        for address in &end.addresses {
            let no_detection = if address.addr().is_ipv6() { " nodad" } else { "" };
            line(script, format_args!("ip -n {namespace} address add {address} dev {device}{no_detection}"));
        }
        line(script, format_args!("ip -n {namespace} link set {device} up"));
        let mut parent = "root".to_owned();
        let qdisc = |parent: &str| format!("tc -n {namespace} qdisc add dev {device} {parent}");
        if let Some(Shaper { rate, burst, queue }) = end.shaper {
            let bits = rate * 8;
            line(script, format_args!("{} handle 1: tbf rate {bits}bit burst {burst} limit {queue}", qdisc(&parent)));
            parent = "parent 1:1".to_owned();
        }
        if impairment.means() != Means::Nothing {
            let seed = direction_seed(testbed.seed, index, from);
            netem(script, impairment, seed, &qdisc(&parent));
        }
    }
}

/// The nearest that netem has: the same shares and times by other random numbers. It needs the module sch_netem.
fn netem(script: &mut String, impairment: &Impairment, seed: u64, qdisc: &str) {
    let mut words = String::new();
    let ms = |ns: u64| ns as f64 / 1e6;
    let percent = |ppm: u32| f64::from(ppm) / 1e4;
    if impairment.delay_ns > 0 {
        write!(words, " delay {}ms {}ms", ms(impairment.delay_ns), ms(impairment.jitter_ns)).ok();
    }
    for (word, ppm) in
        [("loss", impairment.loss_ppm), ("duplicate", impairment.duplicate_ppm), ("reorder", impairment.reorder_ppm)]
    {
        if ppm > 0 {
            write!(words, " {word} {}%", percent(ppm)).ok();
        }
    }
    if let Some(rate) = impairment.rate {
        write!(words, " rate {}bit", rate * 8).ok();
    }
    if !words.is_empty() {
        // The `tc` of Debian 12 refuses the word `seed`.
        line(
            script,
            format_args!("{qdisc} netem limit {NETEM_LIMIT}{words} # with iproute2 6.6 or newer also: seed {seed}"),
        );
    }
    let mut missing = Vec::new();
    if !impairment.drop.is_empty() {
        let range = |range: &RangeInclusive<u64>| match (range.start(), range.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        };
        missing.push(format!("drop {}", impairment.drop.iter().map(range).collect::<Vec<_>>().join(" ")));
    }
    missing.extend(impairment.rate.map(|_| format!("queue {}", impairment.queue)));
    missing.extend(impairment.largest_packet.map(|size| format!("largest_packet {size}")));
    missing.extend((impairment.syn_loss_ppm > 0).then(|| format!("syn_loss {}%", percent(impairment.syn_loss_ppm))));
    if !missing.is_empty() {
        line(script, format_args!("# netem does not have: {}", missing.join(", ")));
    }
}

fn line(script: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    writeln!(script, "{text}").ok();
}
