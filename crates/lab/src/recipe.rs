//! A case, fault or control: data read from TOML and checked once.
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use parshall_core::testbed::{End, Impairment, IpNet, Link, Namespace, Offloads, Problem, RawTestbed, Testbed};
use parshall_core::text::quote;
use parshall_core::values::ValueError;
use parshall_evidence::{Report, Status};
use serde::Deserialize;

use parshall_host::error::UserError;

/// A case, a fault or a control.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Its name: that of the file.
    pub id: String,
    /// One line.
    pub title: String,
    /// The true cause; `nothing` for controls.
    pub broken: String,
    /// The measurement that the fault must worsen, which shows that it has an effect.
    pub moves: String,
    /// The verdict that it must get.
    pub expect: Expect,
    /// The network between the processes.
    #[serde(default)]
    pub wire: Wire,
    /// The network as a testbed, instead of `wire`.
    testbed: Option<RawTestbed>,
    /// The testbed that `wire` or `testbed` describes; None for the loopback interface.
    #[serde(skip)]
    pub network: Option<Testbed>,
    /// Programs that must be installed.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Files to write into `{dir}` first.
    #[serde(default, rename = "file")]
    pub files: Vec<FileSpec>,
    /// Processes, started in this order.
    #[serde(rename = "process")]
    pub processes: Vec<ProcessSpec>,
    /// The subject of the observation.
    pub subject: SubjectSpec,
    /// Only in cases: the process whose result is the measurement.
    pub measure: Option<String>,
    /// Only in cases: the one change.
    pub change: Option<Change>,
}

/// The verdict that is right.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// This cause.
    pub cause: Option<String>,
    /// This status.
    pub status: Option<Status>,
    /// Anything but a cause.
    #[serde(default)]
    pub not_accused: bool,
}

impl Expect {
    /// Whether the verdict of a report is right.
    pub fn matches(&self, report: &Report) -> bool {
        let verdict = &report.verdict;
        match (&self.cause, self.status) {
            (Some(cause), _) => verdict.status == Status::Cause && verdict.cause.as_ref() == Some(cause),
            (None, Some(status)) => verdict.status == status,
            (None, None) => verdict.status != Status::Cause,
        }
    }
}

impl std::fmt::Display for Expect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.cause, self.status) {
            (Some(cause), _) => f.write_str(cause),
            (None, Some(status)) => f.write_str(status_name(status)),
            (None, None) => f.write_str("not-accused"),
        }
    }
}

/// The id of a report's cause, or its status where there is none.
pub fn verdict_name(report: &Report) -> String {
    match (&report.verdict.cause, report.verdict.status) {
        (Some(cause), Status::Cause) => cause.clone(),
        (_, status) => status_name(status).into(),
    }
}

fn status_name(status: Status) -> &'static str {
    match status {
        Status::Cause => "cause",
        Status::Healthy => "healthy",
        Status::AtCapacity => "at-capacity",
        Status::NoDominantCause => "no-dominant-cause",
        Status::InsufficientEvidence => "insufficient-evidence",
    }
}

/// The network between the processes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wire {
    /// The wire.
    #[serde(default)]
    pub kind: WireKind,
    /// Packets lost on their way to the server, in per cent.
    #[serde(default)]
    pub loss_percent: f64,
    /// Send single segments as a wire does (TSO, GSO and GRO off), as loss also does; only with `veth`.
    #[serde(default)]
    pub single_segments: bool,
    /// Delay each way; only with `delay`.
    #[serde(default)]
    pub delay_ms: f64,
    /// The rate of the wire each way, in Mbit/s, with a queue of 256 KiB before it; 0 is no limit. Only with `delay`.
    #[serde(default)]
    pub mbit: f64,
    /// Larger IP packets vanish; 0 is no limit. Only with `delay`.
    #[serde(default)]
    pub largest_packet: u32,
    /// TCP segments with SYN that are lost, in per cent. Only with `delay`.
    #[serde(default)]
    pub syn_loss_percent: f64,
}

impl Wire {
    /// The error, and what to write instead.
    pub fn check(&self) -> Result<(), (String, String)> {
        let fail = |what: &str, hint: &str| Err((what.to_owned(), hint.to_owned()));
        if self.delay_ms != 0.0 && self.kind != WireKind::Delay {
            return fail("delay_ms needs wire.kind = \"delay\"", "set kind, or leave delay_ms out");
        }
        let line = self.mbit != 0.0 || self.largest_packet != 0 || self.syn_loss_percent != 0.0;
        if line && self.kind != WireKind::Delay {
            let hint = "set kind, or leave mbit, largest_packet and syn_loss_percent out";
            return fail("a limit of the wire needs wire.kind = \"delay\"", hint);
        }
        if !(0.0..=10_000.0).contains(&self.mbit) || !(0.0..=100.0).contains(&self.syn_loss_percent) {
            return fail("a limit of the wire is out of range", "mbit is 0 to 10000, syn_loss_percent 0 to 100");
        }
        if self.loss_percent != 0.0 && self.kind == WireKind::Loopback {
            return fail("the loopback interface loses nothing", "set wire.kind = \"veth\"");
        }
        if !(0.0..=100.0).contains(&self.loss_percent) || !(0.0..=10_000.0).contains(&self.delay_ms) {
            return fail("loss or delay out of range", "loss_percent is 0 to 100, delay_ms 0 to 10000");
        }
        Ok(())
    }
}

/// The names of the namespaces that a wire makes, and that a testbed must have: where servers run, and where clients run.
pub const SERVER: &str = "server";
pub const CLIENT: &str = "client";
/// The name of the device in both.
const DEVICE: &str = "eth0";
const MTU: u32 = 1500;
/// Bytes that may wait before a wire with a rate.
const QUEUE: u64 = 256 << 10;

impl Wire {
    /// The testbed that it is short for; None for the loopback interface. `a` of its one link is the client's end.
    pub fn testbed(&self) -> Option<Testbed> {
        let per_million = |percent: f64| (percent * 1e4).round() as u32;
        let loss = Impairment { loss_ppm: per_million(self.loss_percent), queue: QUEUE, ..Impairment::default() };
        let impairments = match self.kind {
            WireKind::Loopback => return None,
            WireKind::Veth => [loss, Impairment::default()],
            WireKind::Delay => {
                let each = Impairment {
                    delay_ns: (self.delay_ms * 1e6) as u64,
                    rate: (self.mbit > 0.0).then_some((self.mbit * 125e3) as u64),
                    largest_packet: (self.largest_packet > 0).then_some(self.largest_packet),
                    syn_loss_ppm: per_million(self.syn_loss_percent),
                    ..loss
                };
                [each.clone(), each]
            }
        };
        let namespace = |name: &str| Namespace {
            name: name.to_owned(),
            congestion_control: None,
            sysctls: Vec::new(),
            routes: Vec::new(),
        };
        let end = |namespace, host| End {
            namespace,
            device: DEVICE.to_owned(),
            addresses: vec![IpNet::new_assert(Ipv4Addr::new(10, 77, 0, host).into(), 24)],
            shaper: None,
        };
        let off = self.single_segments.then_some(false);
        Some(Testbed {
            namespaces: vec![namespace(SERVER), namespace(CLIENT)],
            links: vec![Link {
                ends: [end(1, 2), end(0, 1)],
                mtu: MTU,
                offloads: Offloads { tso: off, gso: off, gro: off },
                impairments,
            }],
            ..Testbed::default()
        })
    }
}

fn client() -> String {
    CLIENT.to_owned()
}

/// The network of a file that has a wire or a testbed, or neither. `end` is the length of the file.
pub fn network(wire: &Wire, testbed: Option<&RawTestbed>, end: usize) -> Result<Option<Testbed>, Problem> {
    let fail = |what: String, hint: &str| Err(Problem { at: end, error: ValueError::new(what, hint) });
    let Some(raw) = testbed else { return Ok(wire.testbed()) };
    if *wire != Wire::default() {
        return fail("the file has a wire and a testbed".to_owned(), "leave one of them out");
    }
    let testbed = raw.check(end)?;
    let missing =
        [CLIENT, SERVER].into_iter().find(|name| testbed.namespace(name).and_then(|at| testbed.address(at)).is_none());
    match missing {
        Some(name) => {
            let what = format!("the testbed has no namespace named {name} with an address");
            fail(
                what,
                "{addr} is the address of the namespace server, and processes run in client unless they name another side",
            )
        }
        None => Ok(Some(testbed)),
    }
}

/// Whether a process can run in the namespace that it names.
pub fn check_side(network: Option<&Testbed>, side: &str) -> Result<(), (String, String)> {
    let known: Vec<&str> = match network {
        Some(testbed) => testbed.namespaces.iter().map(|namespace| namespace.name.as_str()).collect(),
        None => vec![CLIENT, SERVER],
    };
    if known.contains(&side) {
        return Ok(());
    }
    Err((format!("there is no namespace {}", quote(side)), format!("side is one of {}", known.join(", "))))
}

/// The wire between client and server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum WireKind {
    /// The host's loopback interface.
    #[default]
    Loopback,
    /// Two namespaces and a veth pair.
    Veth,
    /// Two namespaces and a delay line in user space.
    Delay,
}

/// A file that a process needs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// Its name in `{dir}`.
    pub name: String,
    /// Its content; placeholders are replaced.
    pub text: String,
}

/// A process of a recipe.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessSpec {
    /// Its name in the recipe.
    pub name: String,
    /// The namespace it runs in.
    #[serde(default = "client")]
    pub side: String,
    /// Program and arguments; placeholders are replaced.
    pub command: Vec<String>,
    /// When it counts as ready.
    #[serde(default)]
    pub ready: Ready,
    /// CPUs it may use; those the host does not have are left out.
    #[serde(default)]
    pub cpus: Vec<usize>,
    /// CPU quota of a control group made for it, in per cent of one CPU.
    pub cpu_quota_percent: Option<u32>,
}

/// When a process counts as ready.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ready {
    /// It writes a line that begins with `ready` to stderr, as the loads do.
    #[default]
    Line,
    /// Its namespace has a listener on `{port}`.
    Listen,
    /// It was started.
    Started,
}

/// The subject of the observation: one of the two.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubjectSpec {
    /// Everything on the service's port.
    #[serde(default)]
    pub port: bool,
    /// The process with this name.
    pub process: Option<String>,
}

/// The one change of a case.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The change, in words.
    pub text: String,
    /// The process whose arguments change.
    pub process: String,
    /// Arguments to add.
    pub add: Vec<String>,
}

impl Recipe {
    /// Parses and checks a recipe; errors call it `name`.
    pub fn parse(name: &str, text: &str) -> Result<Self, UserError> {
        let mut recipe: Recipe = toml::from_str(text).map_err(|error| {
            UserError::new(
                format!("{name}: {}", error.message()),
                match error.span() {
                    Some(span) => format!("line {}; docs/lab.md describes the file", line_of(text, span.start)),
                    None => "docs/lab.md describes the file".into(),
                },
            )
        })?;
        recipe.network = network(&recipe.wire, recipe.testbed.as_ref(), text.len()).map_err(|problem| {
            let Problem { at, error } = problem;
            UserError::new(format!("{name}:{}: {}", line_of(text, at), error.what), error.hint)
        })?;
        recipe.check().map_err(|(what, hint)| UserError::new(format!("{name}: {what}"), hint))?;
        Ok(recipe)
    }

    fn check(&self) -> Result<(), (String, String)> {
        let fail = |what: String, hint: &str| Err((what, hint.to_owned()));
        let known = |process: &String| self.processes.iter().any(|spec| spec.name == *process);
        if self.processes.is_empty() || self.processes.iter().any(|spec| spec.command.is_empty()) {
            return fail("a process without a command".into(), "give every [[process]] a command = [...]");
        }
        let Expect { cause, status, not_accused } = &self.expect;
        if [cause.is_some(), status.is_some(), *not_accused].iter().filter(|&&set| set).count() != 1 {
            return fail(
                "expect is ambiguous".into(),
                "set exactly one of expect.cause, expect.status, expect.not_accused",
            );
        }
        if self.subject.port == self.subject.process.is_some() {
            return fail("subject is ambiguous".into(), "set either subject.port = true or subject.process = \"NAME\"");
        }
        let changed = self.change.as_ref().map(|change| &change.process);
        for process in [self.subject.process.as_ref(), self.measure.as_ref(), changed].into_iter().flatten() {
            if !known(process) {
                return fail(format!("there is no process named `{process}`"), "use the name of a [[process]]");
            }
        }
        for process in &self.processes {
            check_side(self.network.as_ref(), &process.side)?;
        }
        self.wire.check()
    }

    /// Its network, files and processes.
    pub fn stage(&self) -> Stage {
        Stage { network: self.network.clone(), files: self.files.clone(), processes: self.processes.clone() }
    }
}

/// The parts of a testbed.
#[derive(Debug, Clone, Default)]
pub struct Stage {
    /// None for the host's loopback interface.
    pub network: Option<Testbed>,
    pub files: Vec<FileSpec>,
    pub processes: Vec<ProcessSpec>,
}

impl Stage {
    /// Whether setting it up needs root.
    pub fn needs_root(&self) -> bool {
        self.network.is_some() || self.processes.iter().any(|process| process.cpu_quota_percent.is_some())
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|&&byte| byte == b'\n').count() + 1
}

/// Replaces `{name}` by its value. Braces around anything else stay (nginx and Python use them too).
pub fn fill(text: &str, values: &BTreeMap<&'static str, String>) -> String {
    values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        id = "x"
        title = "t"
        broken = "b"
        moves = "m"
        expect = { cause = "packet-loss" }
        subject = { process = "client" }
        [[process]]
        name = "client"
        command = ["{parshall}", "lab"]
    "#;

    #[test]
    fn a_small_recipe_parses() {
        let recipe = Recipe::parse("x", GOOD).expect("it is valid");
        assert_eq!(recipe.wire.kind, WireKind::Loopback);
        assert_eq!(recipe.processes[0].ready, Ready::Line);
        assert!(!recipe.stage().needs_root());
    }

    #[test]
    fn errors_of_recipes_have_a_hint() {
        for (from, to, what, hint) in [
            ("process = \"client\"", "process = \"cleint\"", "no process named `cleint`", "name of a [[process]]"),
            ("process = \"client\"", "port = true, process = \"client\"", "subject is ambiguous", "either"),
            ("cause = \"packet-loss\"", "cause = \"x\", not_accused = true", "expect is ambiguous", "exactly one"),
            ("[[process]]", "wire = { loss_percent = 2.0 }\n[[process]]", "loses nothing", "veth"),
            ("[[process]]", "wire = { kind = \"veth\", delay_ms = 2.0 }\n[[process]]", "delay_ms needs", "set kind"),
            ("title = \"t\"", "titel = \"t\"", "titel", "line 3"),
            ("command = [\"{parshall}\", \"lab\"]", "command = []", "without a command", "[[process]]"),
        ] {
            let error = Recipe::parse("bad", &GOOD.replacen(from, to, 1)).expect_err(to);
            assert!(error.what.contains(what), "{to}: {}", error.what);
            assert!(error.hint.contains(hint), "{to}: {}", error.hint);
        }
    }

    const TESTBED: &str = r#"
        [[testbed.namespace]]
        name = "client"
        [[testbed.namespace]]
        name = "server"
        [[testbed.link]]
        a = { namespace = "client", device = "eth0", address = "10.1.0.2/24" }
        b = { namespace = "server", device = "eth0", address = "10.1.0.1/24" }
        impair = { loss = "1%" }
    "#;

    #[test]
    fn a_recipe_may_have_a_testbed_of_its_own() {
        let recipe = Recipe::parse("x", &format!("{GOOD}{TESTBED}")).expect("it is valid");
        let network = recipe.stage().network.expect("a testbed");
        assert_eq!(network.links[0].impairments[1].loss_ppm, 10_000);
        assert!(recipe.stage().needs_root());
        for (from, to, what, hint) in [
            ("\"server\"", "\"sever\"", "bad:18: the link leads to `server`", "sever"),
            ("loss = \"1%\"", "loss = \"1\"", "bad:19: `1` is not a share", "0% to 100%"),
            ("[[testbed.namespace]]", "[testbed.namespac]", "bad: unknown field", "line 12"),
        ] {
            let text = format!("{GOOD}{}", TESTBED.replacen(from, to, 1));
            let error = Recipe::parse("bad", &text).expect_err(to);
            assert!(error.what.contains(what), "{to}: {}", error.what);
            assert!(error.hint.contains(hint), "{to}: {}", error.hint);
        }
        let both = GOOD.replacen("[[process]]", "wire = { kind = \"veth\" }\n[[process]]", 1);
        let error = Recipe::parse("bad", &format!("{both}{TESTBED}")).expect_err("both");
        assert!(error.what.contains("a wire and a testbed"), "{}", error.what);
        let elsewhere = GOOD.replacen("name = \"client\"", "name = \"client\"\nside = \"router\"", 1);
        let error = Recipe::parse("bad", &format!("{elsewhere}{TESTBED}")).expect_err("no router");
        assert!(
            error.what.contains("no namespace `router`") && error.hint.contains("client, server"),
            "{}",
            error.what
        );
        let renamed = TESTBED.replace("\"server\"", "\"target\"");
        let error = Recipe::parse("bad", &format!("{GOOD}{renamed}")).expect_err("no server");
        assert!(error.what.contains("no namespace named server"), "{}", error.what);
    }

    #[test]
    fn placeholders_are_replaced_and_other_braces_stay() {
        let values = BTreeMap::from([("port", "7000".to_owned())]);
        assert_eq!(
            fill("listen {port}; location / { return 200; }", &values),
            "listen 7000; location / { return 200; }"
        );
    }
}
