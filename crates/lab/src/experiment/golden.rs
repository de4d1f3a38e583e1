//! Reports of made runs in every format, compared with the files in `golden/`. `BLESS=1` rewrites them.
use std::collections::BTreeMap;
use std::path::Path;

use parshall_core::experiment::{Conditions, Role, blocks_order, sweep_order};
use parshall_host::output::TextStyle;

use super::file::{Experiment, Kind};
use super::manifest::{Host, Manifest};
use super::report::Report;
use super::results::{RESULTS_SCHEMA, Run, RunRecord, TrialRecord};
use super::{analyse, html, markdown, svg, text};

const METRICS: &str = "[[metric]]\nname = \"rate\"\nunit = \"1/s\"\nbetter = \"higher\"\njson = \"/rate\"
[[metric]]\nname = \"lag\"\nunit = \"s\"\nbetter = \"lower\"\njson = \"/lag\"\n";

/// A run whose trials have the metrics that `of` gives for the index of the value and the number of the trial.
struct Made {
    run: Run,
    experiment: Experiment,
}

impl Made {
    fn new(variable: &str, kind: Kind, most: u32) -> Self {
        let text = format!("title = \"Made <up>\"\n{variable}\ncommand = [\"program\", \"it's {{size}}\"]\n{METRICS}");
        let experiment = Experiment::parse("made.toml", &text).expect("it is right");
        let host = Host {
            kernel: "6.18.0".into(),
            architecture: "x86_64".into(),
            cpu: "Model".into(),
            cpus: 2,
            memory_gib: 24,
            sysctls: BTreeMap::from([("net.ipv4.tcp_congestion_control".into(), "cubic".into())]),
            ..Host::default()
        };
        let files = BTreeMap::from([("/usr/bin/program".into(), "ab12".into())]);
        let head = RunRecord {
            schema: RESULTS_SCHEMA.into(),
            run: "20260101T000000Z-1".into(),
            kind,
            experiment: "made.toml".into(),
            text,
            seed: 7,
            most,
            duet: false,
            manifest: Manifest { parshall: "0.1.0".into(), host, steal_since_boot: 0.001, files },
        };
        Self { run: Run { head, trials: Vec::new(), complete: true }, experiment }
    }

    fn trial(&mut self, block: u32, role: Option<Role>, index: usize, rate: f64, spoilt: Option<&str>) {
        let n = self.run.trials.len() as u64;
        let noise = 1.0 + (n * 7919 % 100) as f64 / 2000.0;
        self.run.trials.push(TrialRecord {
            run: self.run.head.run.clone(),
            block,
            role,
            index,
            value: self.experiment.variable.values[index].to_string(),
            at: "2026-01-01T00:00:00.000Z".into(),
            metrics: BTreeMap::from([("rate".into(), rate * noise), ("lag".into(), 0.001 * noise)]),
            wall_s: 0.5,
            cpu_s: BTreeMap::from([("command".into(), 0.25)]),
            conditions: Conditions { steal: Some(0.0), busy: Some(0.5), ..Conditions::default() },
            spoilt: spoilt.map(str::to_owned),
            counters: BTreeMap::from([("TcpExtTCPRcvCollapsed".into(), if index == 4 { 5000 + n } else { 2 })]),
        });
    }

    fn report(&self) -> Report {
        analyse::report(&self.experiment, &self.run)
    }
}

fn ab() -> Report {
    let mut made = Made::new("variable = { name = \"size\", a = \"8KiB\", b = \"64KiB\" }", Kind::Ab, 8);
    for (block, order) in (0..9).zip(blocks_order(7)) {
        for role in order {
            let (index, rate) = if role == Role::B { (1, 900.0) } else { (0, 1000.0) };
            made.trial(block, Some(role), index, rate, (block == 2).then_some("steal 5 % > 2 %"));
        }
    }
    made.report()
}

fn sweep() -> Report {
    let variable = "variable = { name = \"size\", values = [\"4KiB\", \"16KiB\", \"64KiB\", \"1MiB\", \"4MiB\"] }";
    let mut made = Made::new(variable, Kind::Sweep, 6);
    for (pass, order) in (0..6).zip(sweep_order(7, 5)) {
        for index in order {
            made.trial(pass, None, index, [200.0, 600.0, 1000.0, 1010.0, 500.0][index], None);
        }
    }
    made.report()
}

fn check(name: &str, got: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/experiment/golden").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, got).expect("writable");
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(got == wanted, "{name} differs (BLESS=1 rewrites it):\n{got}");
}

fn check_all(name: &str, report: &Report) {
    check(&format!("{name}.txt"), &text::text(report, TextStyle { width: 100, ..TextStyle::default() }));
    check(&format!("{name}.md"), &markdown::markdown(report));
    let json = serde_json::to_string_pretty(report).expect("JSON") + "\n";
    check(&format!("{name}.json"), &json);
    assert_eq!(serde_json::from_str::<Report>(&json).expect("it reads back"), *report);
    let page = html::page(report);
    check(&format!("{name}.html"), &page);
    // Texts of the file and the host are escaped, and the page fetches nothing.
    assert!(!page.contains("<up>") && page.contains("&lt;up&gt;") && !page.contains("src=") && !page.contains("href="));
    for (file, picture) in svg::pictures(report) {
        check(&format!("{name}-{file}"), &picture);
    }
}

#[test]
fn an_ab_report_is_as_it_was() {
    check_all("ab", &ab());
}

#[test]
fn a_sweep_report_is_as_it_was() {
    check_all("sweep", &sweep());
}

#[test]
fn a_run_without_a_complete_block_says_nothing() {
    let mut made = Made::new("variable = { name = \"size\", a = 1, b = 2 }", Kind::Ab, 8);
    made.trial(0, Some(Role::A), 0, 1.0, Some("steal 5 % > 2 %"));
    let report = made.report();
    assert!(report.ab.is_none() && analyse::is_undecided(&report) && !analyse::is_worse(&report));
    assert!(report.summary.contains("no block of trials is complete"), "{}", report.summary);
    assert!(
        report.notes[0].contains("1 of 1 trial was spoilt by the host and does not count")
            && report.notes[0].contains("A 1"),
        "{:?}",
        report.notes
    );
    assert!(text::text(&report, TextStyle { width: 80, ..TextStyle::default() }).contains("NOTHING"));
}
