//! The network of a testbed: its namespaces, links and what impairs them, as the kernel has them. Everything ends with the namespaces,
//! which have their owner in their names, and with descriptors of this process.
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use anyhow::Context;
use parshall_bpf::lab::{Loss, Losses};
use parshall_core::testbed::{
    Counts, Direction, End, Impairment, Link, Means, Namespace, Offloads, Testbed, direction_seed, threshold,
};
use parshall_host::error::UserError;
use parshall_sys::link::{self, Offload, TokenBucket};
use parshall_sys::netns::{self, NetNs};
use parshall_sys::tun;

use super::delay_line::{DelayLine, Line};

const CONGESTION_CONTROL: &str = "net.ipv4.tcp_congestion_control";
/// The congestion control of a namespace that names none. Not every host allows cubic in namespaces.
const CONTROL_DEFAULTS: [&str; 2] = ["cubic", "reno"];
/// Packets that may wait until the delay line reads them. The default of 500 is less than a burst of TCP.
const TUN_QUEUE: u32 = 10_000;

/// The namespaces of a testbed with their links. Fields are dropped in order: impairments before the namespaces they are in.
pub struct Network {
    delay_line: Option<DelayLine>,
    losses: Vec<IngressLoss>,
    /// In the order of the testbed.
    namespaces: Vec<NetNs>,
    testbed: Testbed,
}

/// Loss at the ingress of one end of a link.
struct IngressLoss {
    link: usize,
    /// The index of the end that sends.
    from: usize,
    loss: Loss,
}

impl Network {
    /// Makes everything. After an error, the part that was made is removed again.
    pub fn make(testbed: &Testbed) -> anyhow::Result<Self> {
        let named = |namespace: &Namespace| NetNs::create(&namespace.name);
        let namespaces = testbed.namespaces.iter().map(named).collect::<Result<_, _>>()?;
        let mut network = Self { delay_line: None, losses: Vec::new(), namespaces, testbed: testbed.clone() };
        for (namespace, made) in testbed.namespaces.iter().zip(&network.namespaces) {
            made.run(|| Ok(set_sysctls(namespace)))?.with_context(|| format!("the namespace {}", namespace.name))?;
        }
        let mut lines = Vec::new();
        for (index, link) in testbed.links.iter().enumerate() {
            let made = network.link(index, link).with_context(|| {
                let [a, b] = link.ends.each_ref().map(|end| testbed.namespaces[end.namespace].name.as_str());
                format!("the link between {a} and {b}")
            })?;
            lines.extend(made);
        }
        for (namespace, made) in testbed.namespaces.iter().zip(&network.namespaces) {
            let mut routes = namespace.routes.iter();
            let add =
                || routes.try_for_each(|route| link::add_route(route.to.addr(), route.to.prefix_len(), route.via));
            made.run(add).with_context(|| format!("the namespace {}", namespace.name))?;
        }
        if !lines.is_empty() {
            network.delay_line = Some(DelayLine::start(lines)?);
        }
        Ok(network)
    }

    /// The parts that were made.
    pub fn testbed(&self) -> &Testbed {
        &self.testbed
    }

    /// The namespaces, in the order of the testbed.
    pub fn namespaces(&self) -> &[NetNs] {
        &self.namespaces
    }

    /// The namespace with this name in the testbed.
    pub fn namespace(&self, name: &str) -> Option<&NetNs> {
        self.namespaces.get(self.testbed.namespace(name)?)
    }

    /// CPU time that the delay line has used, in s; None where no link needs one.
    pub fn delay_line_cpu_s(&self) -> Option<f64> {
        self.delay_line.as_ref().map(DelayLine::cpu_s)
    }

    /// Packets that the delay line lost because too many were under way. It is no loss that the testbed asks for.
    pub fn overrun(&self) -> u64 {
        self.delay_line.as_ref().map_or(0, DelayLine::overrun)
    }

    /// Begins to count packets from 1 again, on all links.
    pub fn restart(&self) -> io::Result<()> {
        self.delay_line.iter().for_each(DelayLine::restart);
        self.losses.iter().try_for_each(|each| each.loss.restart())
    }

    /// Counts of the packets that an end (0: a) of a link has sent since then; None where nothing impairs them.
    pub fn counts(&self, link: usize, from: usize) -> io::Result<Option<Counts>> {
        if self.testbed.links[link].means() == Means::DelayLine {
            let line = self.testbed.links[..link].iter().filter(|link| link.means() == Means::DelayLine).count();
            return Ok(self.delay_line.as_ref().map(|lines| lines.counts(line, from)));
        }
        let Some(found) = self.losses.iter().find(|each| each.link == link && each.from == from) else {
            return Ok(None);
        };
        let (packets, lost) = found.loss.counts()?;
        Ok(Some(Counts { packets, lost, ..Counts::default() }))
    }

    /// Makes a link. Returns what a delay line is to carry.
    fn link(&mut self, index: usize, link: &Link) -> anyhow::Result<Option<Line>> {
        let seed = |from: usize| direction_seed(self.testbed.seed, index, from);
        if link.means() == Means::DelayLine {
            let [a, b] = link.ends.each_ref().map(|end| self.namespaces[end.namespace].run(|| make_tun(end, link)));
            let direction = |from: usize| Direction::new(link.impairments[from].clone(), seed(from));
            return Ok(Some(Line { ends: [a?, b?], directions: [direction(0), direction(1)] }));
        }
        let [a, b] = &link.ends;
        let peer = self.namespaces[b.namespace].as_fd();
        self.namespaces[a.namespace].run(|| link::create_veth(&a.device, &b.device, peer))?;
        for end in &link.ends {
            self.namespaces[end.namespace].run(|| {
                set_offloads(&end.device, link.effective_offloads())?;
                set_up(end, link)
            })?;
        }
        for from in 0..2 {
            let (impairment, receiver) = (&link.impairments[from], &link.ends[1 - from]);
            if impairment.means() == Means::Ingress {
                let seed = seed(from);
                let attach = || attach_loss(&receiver.device, impairment, seed);
                let loss = self.namespaces[receiver.namespace].run(attach).map_err(loss_error)?;
                self.losses.push(IngressLoss { link: index, from, loss });
            }
        }
        Ok(None)
    }
}

/// The TUN device of an end, with its address and up.
fn make_tun(end: &End, link: &Link) -> io::Result<File> {
    let Offloads { tso, gso, gro: _ } = link.effective_offloads();
    let single = tso == Some(false) || gso == Some(false);
    let file = tun::create(&end.device, if single { tun::Frames::Packets } else { tun::Frames::SuperFrames })?;
    link::set_transmit_queue(&end.device, TUN_QUEUE)?;
    set_up(end, link)?;
    Ok(file)
}

fn attach_loss(device: &str, impairment: &Impairment, seed: u64) -> io::Result<Loss> {
    let ranges: Vec<(u64, u64)> = impairment.drop.iter().map(|range| (*range.start(), *range.end())).collect();
    let losses = Losses { seed, threshold: threshold(impairment.loss_ppm), ranges: &ranges };
    Loss::attach(link::index(device)?, &losses)
}

fn loss_error(error: io::Error) -> anyhow::Error {
    let what = format!("the loss of packets cannot be made: {error}");
    let hint =
        "without delay it is a BPF program, which needs root and Linux 6.6; with delay = \"1ms\" it needs neither";
    UserError::new(what, hint).into()
}

fn set_up(end: &End, link: &Link) -> io::Result<()> {
    let device = &end.device;
    link::set_mtu(device, link.mtu)?;
    if !end.has_ipv6() {
        // Without IPv6 the device sends nothing by itself, no router solicitation and no multicast report. A kernel without IPv6
        // has no such sysctl.
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"), "1").ok();
    }
    for address in &end.addresses {
        link::add_address(device, address.addr(), address.prefix_len())?;
    }
    link::set_up(device)?;
    match end.shaper {
        Some(shaper) => {
            let bucket = TokenBucket { rate: shaper.rate, burst: shaper.burst, limit: shaper.queue };
            link::set_token_bucket(device, bucket)
        }
        None => Ok(()),
    }
}

fn set_offloads(device: &str, offloads: Offloads) -> io::Result<()> {
    let all = [(Offload::Tso, offloads.tso), (Offload::Gso, offloads.gso), (Offload::Gro, offloads.gro)];
    let set = all.into_iter().filter_map(|(offload, on)| Some((offload, on?)));
    set.into_iter().try_for_each(|(offload, on)| link::set_offload(device, offload, on))
}

fn set_sysctls(namespace: &Namespace) -> anyhow::Result<()> {
    match &namespace.congestion_control {
        Some(name) => netns::set_sysctl(CONGESTION_CONTROL, name).map_err(|error| control_error(name, &error))?,
        None => {
            let set = CONTROL_DEFAULTS.iter().any(|name| netns::set_sysctl(CONGESTION_CONTROL, name).is_ok());
            anyhow::ensure!(set, "neither cubic nor reno can be the congestion control of a namespace");
        }
    }
    for (name, value) in &namespace.sysctls {
        netns::set_sysctl(name, value).map_err(|error| {
            let what = format!("{name} cannot be set to {value}: {error}");
            UserError::new(what, "a sysctl that a new namespace does not have, or a value that the kernel refuses")
        })?;
    }
    Ok(())
}

fn control_error(name: &str, error: &io::Error) -> UserError {
    let available = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap_or_default();
    let hint = format!(
        "this host allows namespaces {}; as root, sysctl -w net.ipv4.tcp_allowed_congestion_control adds others",
        available.trim().replace(' ', ", ")
    );
    UserError::new(format!("the congestion control {name} cannot be set: {error}"), hint)
}

#[cfg(test)]
mod tests;
