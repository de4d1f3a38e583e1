//! Makes a page of text from two snapshots. It does no I/O, so that it can be tested without a terminal.
use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use parshall_host::output::clean;

use crate::control::snapshot::{ListenerView, Snapshot, TargetView};

/// The columns of a listener's numbers; its name gets the rest.
const NUMBERS: usize = 66;
const NAME_MIN: usize = 16;
const NAME_MAX: usize = 48;
/// The lines beside listeners: two at the top, an empty one, the head of the table and one at the end.
const OTHER_LINES: usize = 5;

/// The page, cut to the terminal's `size` (columns and lines) if there is one.
pub fn text(before: &Snapshot, now: &Snapshot, elapsed: Duration, size: Option<(usize, usize)>) -> String {
    let (columns, lines) = size.unwrap_or((usize::MAX, usize::MAX));
    let name = columns.saturating_sub(NUMBERS).clamp(NAME_MIN, NAME_MAX);
    let mut out = String::new();
    let mut line = |text: String| {
        let text = clean(&text);
        let _in_memory = writeln!(out, "{}", text.chars().take(columns).collect::<String>().trim_end());
    };
    line(head(now));
    line(process(before, now, elapsed));
    line(String::new());
    line(format!(
        "{:<name$} {:>7} {:>7} {:>8} {:>8} {:<12} {:>6} {:>8}",
        "LISTENER", "ACTIVE", "NEW/s", "UP Gb/s", "DN Gb/s", "ENGINES", "ERR/s", "ERRORS"
    ));
    let old: HashMap<&str, &ListenerView> = before.listeners.iter().map(|l| (l.name.as_str(), l)).collect();
    let mut rows: Vec<Row<'_>> = now.listeners.iter().map(|l| Row::new(old.get(l.name.as_str()), l, elapsed)).collect();
    // Ordered by bytes moved, then by open connections; the sort is stable.
    rows.sort_by(|a, b| b.moved.total_cmp(&a.moved).then(b.view.active.cmp(&a.view.active)));
    let shown = lines.saturating_sub(OTHER_LINES).max(1);
    for row in rows.iter().take(shown) {
        line(row.text(name));
    }
    if rows.len() > shown {
        line(format!("... and {} more", rows.len() - shown));
    } else if size.is_some() {
        line("q quits".to_owned());
    }
    out
}

fn head(s: &Snapshot) -> String {
    let active: u64 = s.listeners.iter().map(|l| l.active).sum();
    let state = if s.draining { "draining" } else { "up" };
    let listeners = s.listeners.iter().filter(|l| l.in_force).count();
    let mut down: Vec<String> = s.listeners.iter().flat_map(|l| l.targets.iter().filter_map(down)).collect();
    down.dedup();
    let down = if down.is_empty() { String::new() } else { format!(" · DOWN: {}", down.join(", ")) };
    format!(
        "parshall relay · pid {} · {state} {} · {listeners} listener{} · {active} open{down}",
        s.process.pid,
        uptime(s.uptime_s),
        if listeners == 1 { "" } else { "s" }
    )
}

fn process(before: &Snapshot, now: &Snapshot, elapsed: Duration) -> String {
    let p = &now.process;
    let cpu = (p.cpu_s - before.process.cpu_s).max(0.0) / elapsed.as_secs_f64().max(1e-9);
    let lost: u64 = now.log_lines_lost + now.listeners.iter().map(|l| l.log_lines_lost).sum::<u64>();
    let lost = if lost > 0 { format!(" · {lost} log lines lost") } else { String::new() };
    let (rss, fds, max) = (p.rss_bytes as f64 / 1e6, p.fds, p.fds_max);
    format!(
        "cpu {:.0} % of a core · {rss:.1} MB · {fds} of {max} descriptors · {} threads{lost}",
        cpu * 100.0,
        p.threads
    )
}

struct Row<'a> {
    view: &'a ListenerView,
    new: f64,
    up: f64,
    down: f64,
    errors: f64,
    error_sum: u64,
    moved: f64,
    engines: String,
}

impl<'a> Row<'a> {
    fn new(old: Option<&&ListenerView>, view: &'a ListenerView, elapsed: Duration) -> Self {
        let empty = ListenerView::default();
        let old = old.map_or(&empty, |old| *old);
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let rate = |count: fn(&ListenerView) -> u64| count(view).saturating_sub(count(old)) as f64 / seconds;
        let (up, down) = (rate(|l| l.up_bytes.values().sum()), rate(|l| l.down_bytes.values().sum()));
        Self {
            new: rate(|l| l.accepted),
            up: up * 8.0 / 1e9,
            down: down * 8.0 / 1e9,
            errors: rate(errors),
            error_sum: errors(view),
            moved: up + down,
            engines: engines(old, view),
            view,
        }
    }

    fn text(&self, name: usize) -> String {
        let label: String = self.view.name.chars().take(name).collect();
        format!(
            "{label:<name$} {:>7} {:>7.0} {:>8.3} {:>8.3} {:<12} {:>6.0} {:>8}",
            self.view.active, self.new, self.up, self.down, self.engines, self.errors, self.error_sum
        )
    }
}

/// The name of a target that cannot be reached, with the reason.
fn down(target: &TargetView) -> Option<String> {
    match &target.error {
        Some(why) => Some(format!("{} ({why})", target.target)),
        None => (!target.up).then(|| target.target.clone()),
    }
}

/// TCP: connections that ended with an error. A failed attempt to connect is counted by its connection, if no other target
/// took that. UDP: dropped datagrams. No end of a session is an error of its own, and one that cannot begin drops datagrams.
fn errors(view: &ListenerView) -> u64 {
    let is_udp = view.protocol == "udp" || view.datagrams_up + view.datagrams_down + view.datagrams_dropped > 0;
    if is_udp {
        return view.datagrams_dropped;
    }
    let without_error = ["finished", "drained", "client-gone"];
    view.closed.iter().filter(|(reason, _)| !without_error.contains(&reason.as_str())).map(|(_, n)| n).sum()
}

/// The engine that moved most bytes between the two snapshots, with its share.
fn engines(old: &ListenerView, new: &ListenerView) -> String {
    let moved = |engine: &String| {
        let of = |v: &ListenerView| v.up_bytes.get(engine).unwrap_or(&0) + v.down_bytes.get(engine).unwrap_or(&0);
        of(new).saturating_sub(of(old))
    };
    let all: Vec<(&String, u64)> = new.up_bytes.keys().map(|e| (e, moved(e))).filter(|(_, n)| *n > 0).collect();
    let sum: u64 = all.iter().map(|(_, n)| n).sum();
    match all.iter().max_by_key(|(_, n)| *n) {
        Some((engine, n)) if *n < sum => format!("{engine} {:.0} %", 100.0 * *n as f64 / sum as f64),
        Some((engine, _)) => (*engine).clone(),
        None => "-".to_owned(),
    }
}

/// An uptime in its two largest units. [`parshall_core::units::duration`] is for times below a minute.
fn uptime(seconds: f64) -> String {
    let s = seconds as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min", s / 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s / 60 % 60),
        _ => format!("{} d {} h", s / 86_400, s / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(accepted: u64, bytes: u64) -> Snapshot {
        let text = r#"{"schema":"parshall.relay/1","time":"","uptime_s":3700,"draining":false,
            "process":{"pid":7,"cpu_s":1.0,"rss_bytes":5000000,"fds":9,"fds_max":1024,"threads":4},
            "reloads":0,"reloads_refused":0,"lookups_failed":0,"checks_failed":0,"log_lines":0,"log_lines_lost":0,
            "listeners":[]}"#;
        let mut s: Snapshot = serde_json::from_str(text).expect("a snapshot");
        let view = |name: &str| ListenerView { name: name.to_owned(), in_force: true, ..ListenerView::default() };
        s.listeners = vec![view("quiet"), view("busy")];
        s.listeners[1].accepted = accepted;
        s.listeners[1].active = 3;
        s.listeners[1].up_bytes = [("copy".to_owned(), bytes / 4), ("splice".to_owned(), bytes)].into();
        s.listeners[1].closed = [("finished".to_owned(), 5), ("target-reset".to_owned(), 2)].into();
        s.listeners[1].dial_failures = 7;
        s.listeners[1].targets =
            vec![TargetView { target: "db\u{1b}:1".into(), error: Some("refused".into()), ..TargetView::default() }];
        s
    }

    #[test]
    fn rates_are_differences_and_the_busiest_listener_comes_first() {
        let page = text(&snapshot(10, 0), &snapshot(30, 1_000_000_000), Duration::from_secs(2), None);
        let lines: Vec<&str> = page.lines().collect();
        assert!(lines[0].contains("pid 7 · up 1 h 1 min · 2 listeners · 3 open · DOWN: db?:1 (refused)"), "{page}");
        let busy: Vec<&str> = lines[4].split_whitespace().collect();
        assert_eq!(busy, ["busy", "3", "10", "5.000", "0.000", "splice", "80", "%", "0", "2"]);
        assert!(lines[5].starts_with("quiet"));
    }

    #[test]
    fn an_idle_session_is_no_error_and_a_dropped_datagram_is_one() {
        let closed = [("idle-timeout".to_owned(), 9), ("denied".to_owned(), 2)].into();
        let view = ListenerView {
            protocol: "udp".into(),
            datagrams_up: 100,
            datagrams_dropped: 2,
            closed,
            ..ListenerView::default()
        };
        assert_eq!(errors(&view), 2);
        assert_eq!(errors(&ListenerView { protocol: String::new(), ..view }), 2, "nor once its listener is gone");
    }

    #[test]
    fn the_page_fits_the_terminal() {
        let page = text(&snapshot(0, 0), &snapshot(1, 1), Duration::from_secs(1), Some((60, 6)));
        assert!(page.lines().all(|l| l.chars().count() <= 60) && page.lines().count() <= 6, "{page}");
        assert!(page.contains("and 1 more"));
    }
}
