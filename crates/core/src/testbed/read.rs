//! From TOML to a checked [`Testbed`]. The first error ends the reading, with the offset of the text that is wrong.
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;
use toml::Spanned;

use super::check;
use super::impairment::{Impairment, MILLION};
use super::model::{End, Link, Namespace, Offloads, Route, Shaper, Testbed};
use super::problem::{EndPlaces, LinkPlaces, Problem, fail};
use crate::networks::{networks, with_prefix};
use crate::sorting::StableSort as _;
use crate::text::{position, printable, quote, unknown_key_hint};
use crate::values::{ValueError, bandwidth, duration_within, size_within};

pub(super) const DOCS: &str = "docs/lab.md describes testbeds";
const NAMESPACES_MAX: usize = 64;
const LINKS_MAX: usize = 256;
const ADDRESSES_MAX: usize = 16;
const ROUTES_MAX: usize = 256;
/// Longer names would not fit into a file name with the owner in front.
const NAME_MAX: usize = 64;
const MTU_DEFAULT: u32 = 1500;
/// As large as the largest packet of a device with GSO, so that a shaper need not segment.
const BURST_DEFAULT: u64 = 64 << 10;
const QUEUE_DEFAULT: u64 = 256 << 10;
const SEED_DEFAULT: u64 = 1;
const DELAY_MAX: Duration = Duration::from_secs(10);
/// `RANGES_MAX` of `crates/bpf/src/lab/loss.bpf.c`.
const DROPS_MAX: usize = 64;

/// An error in a testbed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {what}")]
pub struct TestbedError {
    /// The line in the file, from 1.
    pub line: u32,
    /// The error, in one line without a full stop.
    pub what: String,
    /// The correct form.
    pub hint: String,
}

/// A value that could not be read.
fn read_at<T, R>(value: &Spanned<T>, read: impl FnOnce(&T) -> Result<R, ValueError>) -> Result<R, Problem> {
    read(value.get_ref()).map_err(|error| Problem { at: value.span().start, error })
}

/// A testbed as it is written, before [`RawTestbed::check`]: a file, or a table of another file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawTestbed {
    #[serde(default)]
    title: String,
    seed: Option<u64>,
    #[serde(default, rename = "namespace")]
    namespaces: Vec<RawNamespace>,
    #[serde(default, rename = "link")]
    links: Vec<RawLink>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNamespace {
    pub name: Spanned<String>,
    congestion_control: Option<Spanned<String>>,
    #[serde(default)]
    sysctls: BTreeMap<String, Spanned<RawValue>>,
    #[serde(default)]
    pub routes: Vec<Spanned<String>>,
}

/// The value of a sysctl.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum RawValue {
    Number(i64),
    Text(String),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLink {
    a: Spanned<RawEnd>,
    b: Spanned<RawEnd>,
    mtu: Option<Spanned<u32>>,
    #[serde(default)]
    offloads: RawOffloads,
    impair: Option<Spanned<RawImpairment>>,
    impair_a: Option<Spanned<RawImpairment>>,
    impair_b: Option<Spanned<RawImpairment>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawImpairment {
    delay: Option<Spanned<String>>,
    jitter: Option<Spanned<String>>,
    loss: Option<Spanned<String>>,
    duplicate: Option<Spanned<String>>,
    reorder: Option<Spanned<String>>,
    rate: Option<Spanned<String>>,
    queue: Option<Spanned<String>>,
    #[serde(default)]
    drop: Vec<Spanned<RawDrop>>,
    largest_packet: Option<Spanned<u32>>,
    syn_loss: Option<Spanned<String>>,
}

/// The number of a packet, or `first-last`.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum RawDrop {
    Number(u64),
    Range(String),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEnd {
    namespace: Spanned<String>,
    device: Spanned<String>,
    address: Option<Spanned<String>>,
    #[serde(default)]
    addresses: Vec<Spanned<String>>,
    shaper: Option<Spanned<RawShaper>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawOffloads {
    tso: Option<bool>,
    gso: Option<bool>,
    gro: Option<bool>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawShaper {
    rate: Spanned<String>,
    burst: Option<Spanned<String>>,
    queue: Option<Spanned<String>>,
}

impl std::str::FromStr for Testbed {
    type Err = TestbedError;

    /// Reads and checks a file.
    fn from_str(text: &str) -> Result<Self, TestbedError> {
        let error = |at: usize, error: ValueError| TestbedError {
            line: position(text, at).0,
            what: error.what,
            hint: error.hint,
        };
        let raw: RawTestbed = toml::from_str(text).map_err(|wrong| {
            let what = wrong.message().lines().next().unwrap_or_default();
            let at = wrong.span().map_or(0, |span| span.start);
            error(at, ValueError::new(what, unknown_key_hint(wrong.message(), DOCS)))
        })?;
        raw.check(text.len()).map_err(|problem| error(problem.at, problem.error))
    }
}

impl RawTestbed {
    /// The testbed, if it is one that can be made. `end` is the offset that errors get which are of no line.
    ///
    /// # Errors
    /// The first thing that is wrong, by the byte of the text from which this was deserialized.
    pub fn check(&self, end: usize) -> Result<Testbed, Problem> {
        if self.namespaces.is_empty() {
            return fail(end, "the testbed has no namespaces", "write [[namespace]] and name = \"client\"");
        }
        if self.namespaces.len() > NAMESPACES_MAX || self.links.len() > LINKS_MAX {
            let what = format!("the testbed is too large: at most {NAMESPACES_MAX} namespaces and {LINKS_MAX} links");
            return fail(end, what, "make it smaller");
        }
        let seed = self.seed.unwrap_or(SEED_DEFAULT);
        // The title is printed in a comment of a shell script.
        let mut testbed = Testbed { title: printable(&self.title, ' '), seed, ..Testbed::default() };
        for raw in &self.namespaces {
            let namespace = raw.read()?;
            if testbed.namespace(&namespace.name).is_some() {
                let what = format!("there are two namespaces named {}", quote(&namespace.name));
                return fail(raw.name.span().start, what, "give each [[namespace]] a name of its own");
            }
            testbed.namespaces.push(namespace);
        }
        for raw in &self.links {
            let link = raw.read(&testbed)?;
            check::link(&testbed, &link, &raw.places())?;
            testbed.links.push(link);
        }
        for (index, raw) in self.namespaces.iter().enumerate() {
            for text in &raw.routes {
                let route = read_at(text, |text| route(text))?;
                check::route(&testbed, index, &route).map_err(|error| Problem { at: text.span().start, error })?;
                testbed.namespaces[index].routes.push(route);
            }
        }
        Ok(testbed)
    }
}

impl RawNamespace {
    /// The namespace without its routes, which need the links.
    fn read(&self) -> Result<Namespace, Problem> {
        let name = read_at(&self.name, |name| check::namespace_name(name, NAME_MAX))?;
        let control = self.congestion_control.as_ref();
        let congestion_control = control.map(|text| read_at(text, |text| check::algorithm(text))).transpose()?;
        let mut sysctls = Vec::new();
        for (name, value) in &self.sysctls {
            let text = match value.get_ref() {
                RawValue::Number(number) => number.to_string(),
                RawValue::Text(text) => text.clone(),
            };
            check::sysctl(name, &text).map_err(|error| Problem { at: value.span().start, error })?;
            sysctls.push((name.clone(), text));
        }
        if self.routes.len() > ROUTES_MAX {
            let what = format!("{} has more than {ROUTES_MAX} routes", quote(&name));
            return fail(self.name.span().start, what, "use larger networks");
        }
        Ok(Namespace { name, congestion_control, sysctls, routes: Vec::new() })
    }
}

impl RawLink {
    fn read(&self, testbed: &Testbed) -> Result<Link, Problem> {
        let RawOffloads { tso, gso, gro } = self.offloads;
        Ok(Link {
            ends: [
                self.a.get_ref().read(testbed, self.a.span().start)?,
                self.b.get_ref().read(testbed, self.b.span().start)?,
            ],
            mtu: self.mtu.as_ref().map_or(MTU_DEFAULT, |mtu| *mtu.get_ref()),
            offloads: Offloads { tso, gso, gro },
            impairments: self.impairments()?,
        })
    }

    /// Impairments at the ends: the same at both, or each its own.
    fn impairments(&self) -> Result<[Impairment; 2], Problem> {
        if let (Some(both), Some(_)) = (&self.impair, self.impair_a.as_ref().or(self.impair_b.as_ref())) {
            let what = "the link has impair, and impair_a or impair_b";
            return fail(both.span().start, what, "write impair for both directions, or the others for one each");
        }
        let of = |raw: &Option<Spanned<RawImpairment>>| match raw.as_ref().or(self.impair.as_ref()) {
            Some(raw) => raw.get_ref().read(raw.span().start),
            None => Ok(Impairment::default()),
        };
        Ok([of(&self.impair_a)?, of(&self.impair_b)?])
    }

    fn places(&self) -> LinkPlaces {
        let impairments = [&self.impair_a, &self.impair_b]
            .map(|raw| raw.as_ref().or(self.impair.as_ref()).map_or(0, |raw| raw.span().start));
        let ends = [&self.a, &self.b].map(|end| end.get_ref().places());
        LinkPlaces { mtu: self.mtu.as_ref().map_or(self.a.span().start, |mtu| mtu.span().start), ends, impairments }
    }
}

impl RawEnd {
    /// `at` is the place of the end as a whole.
    fn read(&self, testbed: &Testbed, at: usize) -> Result<End, Problem> {
        let name = self.namespace.get_ref();
        let Some(namespace) = testbed.namespace(name) else {
            let known = testbed.namespaces.iter().map(|namespace| namespace.name.as_str()).collect::<Vec<_>>();
            let what = format!("the link leads to {}, which is no namespace", quote(name));
            return fail(self.namespace.span().start, what, crate::text::suggest(name, &known));
        };
        let addresses =
            self.all_addresses().map(|text| read_at(text, |text| address(text))).collect::<Result<Vec<_>, _>>()?;
        if addresses.is_empty() || addresses.len() > ADDRESSES_MAX {
            let what = format!("the end in {} has {} addresses", quote(name), addresses.len());
            return fail(
                at,
                what,
                format!("write address = \"10.0.0.1/24\", or addresses with 1 to {ADDRESSES_MAX} of them"),
            );
        }
        Ok(End {
            namespace,
            device: read_at(&self.device, |device| check::device(device))?,
            addresses,
            shaper: self.shaper.as_ref().map(|shaper| shaper.get_ref().read()).transpose()?,
        })
    }

    fn all_addresses(&self) -> impl Iterator<Item = &Spanned<String>> {
        self.address.iter().chain(&self.addresses)
    }

    fn places(&self) -> EndPlaces {
        EndPlaces {
            namespace: self.namespace.span().start,
            device: self.device.span().start,
            addresses: self.all_addresses().map(|text| text.span().start).collect(),
            shaper: self.shaper.as_ref().map_or(0, |shaper| shaper.span().start),
        }
    }
}

impl RawShaper {
    fn read(&self) -> Result<Shaper, Problem> {
        let bytes = |text: &Option<Spanned<String>>, default: u64| match text {
            Some(text) => read_at(text, |text| size_within(text, 1, 1 << 30)),
            None => Ok(default),
        };
        // The sizes are at most 2^30.
        Ok(Shaper {
            rate: read_at(&self.rate, |text| bandwidth(text))?,
            burst: bytes(&self.burst, BURST_DEFAULT)? as u32,
            queue: bytes(&self.queue, QUEUE_DEFAULT)? as u32,
        })
    }
}

impl RawImpairment {
    /// `at` is the place of the table.
    fn read(&self, at: usize) -> Result<Impairment, Problem> {
        let time_ns = |text: &Option<Spanned<String>>| match text {
            Some(text) => read_at(text, |text| {
                duration_within(text, Duration::ZERO, DELAY_MAX, "choose a time from 0 to 10s")
                    .map(|time| time.as_nanos() as u64)
            }),
            None => Ok(0),
        };
        let chance = |text: &Option<Spanned<String>>| {
            text.as_ref().map_or(Ok(0), |text| read_at(text, |text| per_million(text)))
        };
        let queue =
            self.queue.as_ref().map(|text| read_at(text, |text| size_within(text, 1500, 1 << 30))).transpose()?;
        let impairment = Impairment {
            delay_ns: time_ns(&self.delay)?,
            jitter_ns: time_ns(&self.jitter)?,
            loss_ppm: chance(&self.loss)?,
            duplicate_ppm: chance(&self.duplicate)?,
            reorder_ppm: chance(&self.reorder)?,
            rate: self.rate.as_ref().map(|text| read_at(text, |text| bandwidth(text))).transpose()?,
            queue: queue.unwrap_or(QUEUE_DEFAULT),
            drop: self.drops(at)?,
            largest_packet: self.largest_packet.as_ref().map(|size| *size.get_ref()),
            syn_loss_ppm: chance(&self.syn_loss)?,
        };
        if impairment.jitter_ns > impairment.delay_ns {
            return fail(
                at,
                "the jitter is larger than the delay",
                "a packet cannot arrive before it is sent: raise delay",
            );
        }
        if impairment.reorder_ppm > 0 && impairment.delay_ns == 0 {
            return fail(at, "reordering needs a delay", "packets overtake others by not being delayed: set delay");
        }
        if queue.is_some() && impairment.rate.is_none() {
            return fail(at, "a queue without a rate never fills", "set rate, or leave queue out");
        }
        Ok(impairment)
    }

    /// The packets that are lost besides, ascending.
    fn drops(&self, at: usize) -> Result<Vec<RangeInclusive<u64>>, Problem> {
        if self.drop.len() > DROPS_MAX {
            let what = format!("drop has {} entries", self.drop.len());
            return fail(at, what, format!("use ranges such as \"5-9\": at most {DROPS_MAX} are possible"));
        }
        let mut drops = self.drop.iter().map(|raw| read_at(raw, packets)).collect::<Result<Vec<_>, _>>()?;
        drops.stable_sort_by_key(|range| *range.start());
        Ok(drops)
    }
}

/// The packets of an entry of `drop`.
fn packets(raw: &RawDrop) -> Result<RangeInclusive<u64>, ValueError> {
    let (text, range) = match raw {
        RawDrop::Number(number) => (number.to_string(), Some(*number..=*number)),
        RawDrop::Range(text) => {
            let parts = text.split_once('-').and_then(|(first, last)| Some(first.parse().ok()?..=last.parse().ok()?));
            (text.clone(), parts)
        }
    };
    let good = range.filter(|range| *range.start() >= 1 && range.start() <= range.end());
    good.ok_or_else(|| {
        let hint = "write numbers from 1, as 7, or ranges, as \"5-9\"";
        ValueError::new(format!("{} is no packet's number", quote(&text)), hint)
    })
}

/// A share such as `1%` or `0.05%`, in a million.
fn per_million(text: &str) -> Result<u32, ValueError> {
    let percent = text.strip_suffix('%').and_then(|number| number.trim_end().parse::<f64>().ok());
    match percent {
        Some(percent) if (0.0..=100.0).contains(&percent) => Ok((percent / 100.0 * f64::from(MILLION)).round() as u32),
        _ => {
            let what = format!("{} is not a share of packets", quote(text));
            Err(ValueError::new(what, "write 0% to 100%, as 1% or 0.05%"))
        }
    }
}

/// An address of a host with the length of its network's prefix, such as `10.0.0.1/24`.
fn address(text: &str) -> Result<IpNet, ValueError> {
    let wrong =
        || ValueError::new(format!("{} is not an address with a prefix", quote(text)), "write it as 10.0.0.1/24");
    let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
    with_prefix(address.parse::<IpAddr>().map_err(|_| wrong())?, Some(prefix))
}

/// A route such as `10.2.0.0/24 via 10.1.0.1` or `default via 10.1.0.1`.
fn route(text: &str) -> Result<Route, ValueError> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let wrong = || {
        let hint = "write it as \"10.2.0.0/24 via 10.1.0.1\" or \"default via 10.1.0.1\"";
        ValueError::new(format!("{} is not a route", quote(text)), hint)
    };
    let [to, "via", via] = words[..] else { return Err(wrong()) };
    let via: IpAddr = via.parse().map_err(|_| wrong())?;
    let to = match to {
        "default" => {
            with_prefix(if via.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0_u16; 8]) }, Some("0"))?
        }
        _ => *networks(to)?.first().filter(|_| to != "all").ok_or_else(wrong)?,
    };
    if to.addr().is_ipv4() == via.is_ipv4() { Ok(Route { to, via }) } else { Err(wrong()) }
}
