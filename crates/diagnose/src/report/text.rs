//! The report for a terminal: the verdict first, then its evidence.
//!
//! Colour only repeats what the words say.
use parshall_core::units::{count as thousands, decimal, percent_fixed, plural, quantity, time_ms};
use parshall_evidence::{
    Account, ChainHop, CommandEnd, Confidence, Evidence, Finding, Origin, PeerCommand, Report, Rung, ServiceReport,
    Status, TimeShare,
};

use parshall_host::output::{TextStyle, clean, columns, items, words};

/// Columns left of the body of every section.
const GUTTER: usize = 7;
/// Columns of the longest bar.
const BAR: usize = 40;
/// Rows of one account; the rest is summed up.
const MAX_STATES: usize = 8;
/// Frames of a stack: enough to tell the path, few enough to read.
const MAX_FRAMES: usize = 8;
/// Columns of the figure in front of a line, unless one of them needs more.
const LEAD: usize = 9;

/// The report for a terminal.
pub fn text(report: &Report, style: TextStyle) -> String {
    let mut page = Page { out: String::new(), style };
    header(&mut page, report);
    verdict(&mut page, report);
    if let Some(top) = top_finding(report) {
        chain(&mut page, &top.chain);
        fix(&mut page, top);
    }
    services(&mut page, report);
    time(&mut page, report);
    if let Some(top) = top_finding(report) {
        evidence(&mut page, &top.evidence);
    }
    others(&mut page, report);
    ruled_out(&mut page, report);
    not_tested(&mut page, report);
    notes(&mut page, report);
    page.out
}

/// The finding that the verdict names.
fn top_finding(report: &Report) -> Option<&Finding> {
    if report.verdict.status == Status::Cause { report.findings.first() } else { None }
}

fn header(page: &mut Page, report: &Report) {
    let mut parts = vec!["parshall".to_owned()];
    parts.extend(subject(report));
    parts.extend(report.command.as_ref().map(|command| command_end(&command.end)));
    parts.push(window(report.window_s));
    if let Some(service) = &report.service {
        parts.extend(requests(service));
    } else if report.time.flows.n > 0 || report.time.threads.n == 0 {
        parts.push(plural(report.time.flows.n, "flow", "flows"));
    } else {
        parts.push(plural(report.time.threads.n, "thread", "threads"));
    }
    parts.push(format!("rung {}", report.rung.as_str()));
    if report.window_s > 0.0 {
        let core = report.probe.cpu_ms / (report.window_s * 1000.0);
        parts.push(format!("probes {} of a core", percent_fixed(core)));
    }
    parts.push(format!("{} lost", plural(report.probe.lost_events, "event", "events")));
    if is_sliced(report) {
        parts.push(format!("slices {} of the time", percent_fixed(report.probe.observed_share)));
    }
    for (i, line) in items(&parts, " · ", page.style.width.saturating_sub(2)).into_iter().enumerate() {
        let indent = if i == 0 { "" } else { "  " };
        page.line(indent, &line, Paint::Dim);
    }
    if let Some(origin) = &report.origin {
        page.origin(origin);
    }
}

/// The state of the command of `run` at the end.
fn command_end(end: &CommandEnd) -> String {
    match end {
        CommandEnd::Running => "still running".to_owned(),
        CommandEnd::Exited { exit_status } => format!("exit status {exit_status}"),
        CommandEnd::Killed { signal, signal_name } if signal_name.is_empty() => format!("killed by signal {signal}"),
        CommandEnd::Killed { signal_name, .. } => format!("killed by {}", clean(signal_name)),
    }
}

/// `2026-11-22 18:51:05 UTC`; text that is not an RFC 3339 time stays as it is.
fn date(time: &str) -> String {
    match (time.split_once('T'), time.split_once('.')) {
        (Some((day, _)), Some((to_the_second, _))) if day.len() < to_the_second.len() => {
            format!("{day} {} UTC", &to_the_second[day.len() + 1..])
        }
        _ => time.to_owned(),
    }
}

/// The command line for a shell. The command after `--` is not known.
fn command_line(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    let quoted = words.iter().map(|word| match word.chars().all(plain) && !word.is_empty() {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    });
    let more = (words.last().map(String::as_str) == Some("--")).then(|| "…".to_owned());
    quoted.chain(more).collect::<Vec<_>>().join(" ")
}

/// The requests of a service in figures.
fn requests(service: &ServiceReport) -> Vec<String> {
    let to = if service.outbound { format!(" to {}", clean(&service.address)) } else { String::new() };
    let mut parts = vec![format!("{} requests/s{to}", decimal(service.requests_per_s))];
    if service.requests_per_s > 0.0 {
        parts.push(format!("p50 {}", time_ms(service.p50_ms)));
        parts.push(format!("p99 {}", time_ms(service.p99_ms)));
    }
    if service.unanswered > 0 {
        let longest = time_ms(service.unanswered_longest_ms);
        parts.push(format!("{} unanswered, up to {longest}", thousands(service.unanswered)));
    }
    if service.abandoned > 0 {
        parts.push(format!("{} given up by their clients", thousands(service.abandoned)));
    }
    parts
}

/// `nginx 812` or `gunicorn 901, 902 and 4 more`.
fn processes(name: &str, pids: &[u32]) -> String {
    let list: Vec<String> = pids.iter().map(u32::to_string).collect();
    let name = if name.is_empty() { "pid".to_owned() } else { clean(name) };
    if list.is_empty() { name } else { format!("{name} {}", some_of(&list, 3)) }
}

fn subject(report: &Report) -> Vec<String> {
    if let Some(service) = report.service.as_ref().filter(|s| !s.outbound) {
        return vec![format!("port {}", service.port), processes(&service.process, &service.pids)];
    }
    let mut parts = Vec::new();
    let ports: Vec<String> = report.subject.ports.iter().map(u16::to_string).collect();
    if !ports.is_empty() {
        parts.push(format!("{} {}", if ports.len() == 1 { "port" } else { "ports" }, some_of(&ports, 4)));
    }
    let pids: Vec<String> = report
        .subject
        .pids
        .iter()
        .enumerate()
        .map(|(i, pid)| match report.subject.comms.get(i).filter(|c| !c.is_empty()) {
            Some(comm) => format!("{pid} {}", clean(comm)),
            None => pid.to_string(),
        })
        .collect();
    if !pids.is_empty() {
        parts.push(format!("{} {}", if pids.len() == 1 { "pid" } else { "pids" }, some_of(&pids, 3)));
    }
    if parts.is_empty() {
        parts.push("whole host".to_owned());
    }
    parts
}

/// `a, b, c and 4 more`.
fn some_of(list: &[String], most: usize) -> String {
    let head = list.iter().take(most).cloned().collect::<Vec<_>>().join(", ");
    if list.len() > most { format!("{head} and {} more", list.len() - most) } else { head }
}

fn window(seconds: f64) -> String {
    if seconds < 1.0 { time_ms(seconds * 1000.0) } else { format!("{seconds:.1} s") }
}

fn verdict(page: &mut Page, report: &Report) {
    page.blank();
    let confidence = confidence(report.verdict.confidence);
    let (head, rest, paint) = match (report.verdict.status, report.findings.first()) {
        (Status::Cause, Some(f)) => {
            ("CAUSE", format!("{}  ({}, confidence {confidence})", clean(&f.title), clean(&f.cause)), Paint::Bad)
        }
        (Status::Cause, None) => {
            let id = report.verdict.cause.as_deref().unwrap_or("unnamed");
            ("CAUSE", format!("{id}  (confidence {confidence})"), Paint::Bad)
        }
        (Status::Healthy, _) => ("HEALTHY", format!("(confidence {confidence})"), Paint::Good),
        (Status::AtCapacity, _) => ("AT CAPACITY", format!("(confidence {confidence})"), Paint::Warn),
        (Status::NoDominantCause, _) => ("NO DOMINANT CAUSE", format!("(confidence {confidence})"), Paint::Warn),
        (Status::InsufficientEvidence, _) => ("INSUFFICIENT EVIDENCE", String::new(), Paint::Warn),
    };
    page.section(head, &rest, paint);
    let Some(top) = top_finding(report) else {
        page.body(&report.verdict.summary);
        return;
    };
    if report.verdict.summary != top.summary {
        page.body(&report.verdict.summary);
    }
    page.body(&size(top));
    page.body(&top.summary);
    let place = place(top);
    if !place.is_empty() && top.chain.is_empty() {
        page.body(&format!("Seen most at {place}."));
    }
}

/// How much time a cause takes, in a sentence.
fn size(finding: &Finding) -> String {
    if finding.place.requests > 0 {
        let lost = percent_fixed(finding.lost_share);
        return format!(
            "It takes {} of each request, and accounts for {lost} of all lost time.",
            time_ms(finding.lost_ms)
        );
    }
    let whom = match finding.place.flows {
        0 => "the time in which work could have gone on".to_owned(),
        1 => "the time in which this flow could have moved data".to_owned(),
        n => format!("the time in which these {} flows could have moved data", thousands(n)),
    };
    let each = if finding.place.flows > 1 { " each" } else { "" };
    let about = if finding.scaled { "≈" } else { "" };
    format!(
        "It takes {about}{} of {whom} ({about}{}{each}), and accounts for {} of all lost time.",
        percent_fixed(finding.share),
        time_ms(finding.lost_ms),
        percent_fixed(finding.lost_share)
    )
}

fn place(finding: &Finding) -> String {
    let p = &finding.place;
    let mut parts = Vec::new();
    parts.extend(p.flow.as_ref().map(|f| clean(f).replace("->", " → ")));
    parts.extend(p.pid.map(|pid| format!("pid {pid}")));
    parts.extend(p.tid.map(|tid| format!("thread {tid}")));
    parts.extend(p.cgroup.as_ref().map(|c| format!("cgroup {}", clean(c))));
    parts.join(", ")
}

fn confidence(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::Low => "low",
        Confidence::Medium => "medium",
        Confidence::High => "high",
    }
}

/// Columns of the names in a chain; longer names make their line longer.
const CHAIN_NAMES: usize = 34;

/// The chain to a cause: one line per hop, and the stack at its end.
fn chain(page: &mut Page, hops: &[ChainHop]) {
    if hops.is_empty() {
        return;
    }
    page.blank();
    let names: Vec<String> = hops.iter().enumerate().map(|(depth, hop)| hop_name(depth, hop)).collect();
    let width = names.iter().map(|n| columns(n)).filter(|n| *n <= CHAIN_NAMES).max().unwrap_or(0);
    for (depth, (hop, name)) in hops.iter().zip(&names).enumerate() {
        let share = format!("{:.0} %", (hop.share * 100.0).clamp(0.0, 100.0));
        page.row(if depth == 0 { "CHAIN" } else { "" }, &format!("{name:<width$}  {share:>5}  "), &hop.text);
    }
    let stack = hops.last().map(|hop| hop.stack.as_slice()).unwrap_or_default();
    if !stack.is_empty() {
        page.row("", &" ".repeat((hops.len() - 1) * 2), &format!("in {}", frames(stack)));
    }
}

/// `└ gunicorn 901, 902 (2 of 2)`.
fn hop_name(depth: usize, hop: &ChainHop) -> String {
    let indent = if depth == 0 { String::new() } else { format!("{}└ ", " ".repeat((depth - 1) * 2)) };
    let known = if hop.pids.is_empty() && hop.pid != 0 { vec![hop.pid] } else { hop.pids.clone() };
    let who = if hop.process.is_empty() && known.is_empty() {
        "the network".to_owned()
    } else {
        processes(&hop.process, &known)
    };
    let of = |n: usize| if hop.of >= n as u64 { format!("{n} of {}", hop.of) } else { n.to_string() };
    let more = match (hop.pids.len(), hop.threads) {
        (2.., _) => format!(" ({})", of(hop.pids.len())),
        (_, 2..) => format!(" ({} threads)", of(hop.threads as usize)),
        _ if !hop.thread.is_empty() && hop.thread != hop.process => format!(" ({})", clean(&hop.thread)),
        _ => String::new(),
    };
    format!("{indent}{who}{more}")
}

/// The innermost frames of a stack.
fn frames(stack: &[String]) -> String {
    let mut frames: Vec<String> = stack.iter().take(MAX_FRAMES).map(|f| clean(f)).collect();
    if stack.len() > MAX_FRAMES {
        frames.push(format!("{} more", stack.len() - MAX_FRAMES));
    }
    frames.join(" ← ")
}

/// Rows of the list of services.
const MAX_SERVICES: usize = 8;

/// One line for each of several services, the one that lost most time first.
fn services(page: &mut Page, report: &Report) {
    let asked: Vec<&ServiceReport> = report.services.iter().filter(|s| !s.followed).collect();
    if asked.len() < 2 {
        return;
    }
    page.blank();
    for (i, service) in asked.iter().take(MAX_SERVICES).enumerate() {
        let head = if i == 0 { "SERVICES" } else { "" };
        let mut parts = requests(service);
        if !service.outbound {
            parts.insert(0, format!("port {} · {}", service.port, processes(&service.process, &service.pids)));
        }
        page.row(head, "", &parts.join(" · "));
    }
    if asked.len() > MAX_SERVICES {
        page.row("", "", &format!("and {} more", asked.len() - MAX_SERVICES));
    }
}

fn fix(page: &mut Page, finding: &Finding) {
    if finding.fix.text.is_empty() {
        return;
    }
    page.blank();
    page.labelled("FIX", &finding.fix.text);
    if let Some(command) = &finding.fix.command {
        page.line(&" ".repeat(GUTTER), &format!("Try it on the running process:  {}", clean(command)), Paint::Plain);
    }
    if let Some(peer) = &finding.fix.peer {
        let line = format!("{}:  {}", peer_words(peer), clean(&peer.command));
        page.line(&" ".repeat(GUTTER), &line, Paint::Plain);
    }
}

fn peer_words(peer: &PeerCommand) -> String {
    match &peer.host {
        Some(host) => format!("Look closer on {}", clean(host)),
        None => "Look closer".to_owned(),
    }
}

fn time(page: &mut Page, report: &Report) {
    let first = request_time(page, report);
    // If the chain shows where the time went, flows and threads would only repeat it.
    if top_finding(report).is_some_and(|top| !top.chain.is_empty()) {
        return;
    }
    let flows = Some((plural(report.time.flows.n, "flow", "flows"), &report.time.flows));
    let flows = flows.filter(|(_, a)| !a.states.is_empty());
    let threads = Some((plural(report.time.threads.n, "thread", "threads"), &report.time.threads));
    let threads = threads.filter(|(_, a)| !a.states.is_empty() && threads_matter(report));
    let accounts: Vec<(String, &Account)> = flows.into_iter().chain(threads).collect();
    if accounts.is_empty() {
        return;
    }
    if first {
        page.blank();
    }
    let rows: Vec<Vec<(String, f64)>> = accounts.iter().map(|(_, a)| states(&a.states)).collect();
    let label = rows.iter().flatten().map(|(l, _)| columns(l)).max().unwrap_or(0);
    for (i, ((what, account), rows)) in accounts.iter().zip(&rows).enumerate() {
        // On the tracepoint rung only the threads are observed in slices; the flows are sampled throughout.
        let of_flows = i == 0 && !report.time.flows.states.is_empty();
        let sliced = is_sliced(report) && (!of_flows || report.rung == Rung::Btf);
        let slices = if sliced { "; shares ≈, from slices" } else { "" };
        let head = format!("of {what}, {} in all{slices}", time_ms(account.wall_ms));
        page.labelled(if i == 0 && first { "TIME" } else { "" }, &head);
        for (name, share) in rows {
            page.bar(name, label, *share);
        }
    }
}

/// Where the time of the service's requests went. Returns whether the section still has to be started.
fn request_time(page: &mut Page, report: &Report) -> bool {
    let Some(service) = &report.service else { return true };
    let time = &service.time;
    let mut rows: Vec<(String, f64)> = [
        ("in the accept queue", time.accept_queue),
        ("unread in the socket", time.unread),
        ("rest of it not sent by the client yet", time.incomplete),
    ]
    .map(|(name, share)| (name.to_owned(), share))
    .into();
    if time.work.is_empty() {
        rows.push(("worked on".to_owned(), time.working));
    }
    rows.extend(states(&time.work).into_iter().map(|(name, share)| (format!("worked on: {name}"), share)));
    rows.push(("reply not sent yet".to_owned(), time.reply_unsent));
    rows.retain(|(_, share)| *share > 0.0);
    if rows.is_empty() {
        return true;
    }
    let label = rows.iter().map(|(name, _)| columns(name)).max().unwrap_or(0);
    page.blank();
    page.labelled("TIME", &format!("of the requests, {} outstanding on average", decimal(service.outstanding)));
    for (name, share) in &rows {
        page.bar(name, label, *share);
    }
    false
}

/// Whether the account of the threads adds something to that of the flows.
fn threads_matter(report: &Report) -> bool {
    let at_thread = |f: &Finding| f.place.tid.is_some() || f.place.cgroup.is_some() || f.place.flow.is_none();
    report.verdict.status != Status::Cause
        || report.time.flows.states.is_empty()
        || report.findings.first().is_none_or(at_thread)
}

/// The largest states; the small rest is summed up.
fn states(states: &[TimeShare]) -> Vec<(String, f64)> {
    let shown = if states.len() > MAX_STATES { MAX_STATES - 1 } else { states.len() };
    let mut rows: Vec<(String, f64)> = states.iter().take(shown).map(|s| (clean(&s.label), s.share)).collect();
    if states.len() > shown {
        let rest: f64 = states.iter().skip(shown).map(|s| s.share).sum();
        rows.push((format!("{} other states", states.len() - shown), rest));
    }
    rows.retain(|(_, share)| *share > 0.0);
    rows
}

fn evidence(page: &mut Page, list: &[Evidence]) {
    if list.is_empty() {
        return;
    }
    page.blank();
    page.section("EVIDENCE", "", Paint::Plain);
    let rows: Vec<(String, String)> = list.iter().map(evidence_words).collect();
    let width = rows.iter().map(|(lead, _)| columns(lead)).max().unwrap_or(0).max(LEAD);
    for (item, (lead, rest)) in list.iter().zip(&rows) {
        let lead = format!("{lead:>width$}  ");
        page.hanging(&lead, rest);
        if !item.stack.is_empty() {
            let indent = " ".repeat(columns(&lead));
            page.hanging(&indent, &format!("in {}", frames(&item.stack)));
        }
    }
}

/// The figure in front of a line of evidence, and the rest of the line.
fn evidence_words(item: &Evidence) -> (String, String) {
    let mut figures = Vec::new();
    if let Some(count) = item.count {
        figures.push(format!("{}{}", if item.scaled { "≈" } else { "" }, thousands(count)));
    }
    if let Some(value) = item.value {
        let about = if item.scaled && item.count.is_none() { "≈" } else { "" };
        figures.push(format!("{about}{}", quantity(value, &clean(item.unit.as_deref().unwrap_or("")))));
    }
    figures.extend(item.p50_ms.map(|ms| format!("p50 {}", time_ms(ms))));
    figures.extend(item.p99_ms.map(|ms| format!("p99 {}", time_ms(ms))));
    figures.extend(item.mean_ms.map(|ms| format!("mean {}", time_ms(ms))));
    figures.extend(item.max_ms.map(|ms| format!("at most {}", time_ms(ms))));
    if figures.is_empty() {
        return (String::new(), clean(&item.what));
    }
    // A p50 is too long for the lead column, and reads well after the words.
    let lead = if item.count.is_some() || item.value.is_some() { figures.remove(0) } else { String::new() };
    let mut rest = vec![clean(&item.what)];
    rest.extend(figures);
    (lead, rest.join(" · "))
}

fn others(page: &mut Page, report: &Report) {
    let rest = &report.findings[top_finding(report).map_or(0, |_| 1).min(report.findings.len())..];
    if rest.is_empty() {
        return;
    }
    page.blank();
    page.section(if top_finding(report).is_some() { "ALSO" } else { "FOUND" }, "", Paint::Plain);
    for finding in rest {
        let lead = format!("{:>LEAD$}  ", percent_fixed(finding.lost_share));
        let title = format!("of the lost time: {} ({})", clean(&finding.title), clean(&finding.cause));
        page.hanging(&lead, &title);
        let indent = " ".repeat(columns(&lead));
        page.hanging(&indent, &finding.summary);
        if top_finding(report).is_none() && !finding.fix.text.is_empty() {
            page.hanging(&indent, &format!("Fix: {}", finding.fix.text));
        }
        if let Some(peer) = finding.fix.peer.as_ref().filter(|_| top_finding(report).is_none()) {
            page.hanging(&indent, &format!("{}: {}", peer_words(peer), peer.command));
        }
    }
}

/// Those of which something was seen with their figures, and the names of the others, so that the report stays within a page. The
/// JSON report has all figures.
fn ruled_out(page: &mut Page, report: &Report) {
    if report.ruled_out.is_empty() {
        return;
    }
    page.blank();
    let (seen, unseen): (Vec<_>, Vec<_>) = report.ruled_out.iter().partition(|entry| entry.seen);
    page.labelled_items("RULED OUT", &grouped(seen.iter().map(|r| (r.cause.as_str(), r.why.as_str()))));
    if !unseen.is_empty() {
        let names: Vec<String> = unseen.iter().map(|entry| entry.cause.replace('-', " ")).collect();
        page.body(&format!("Nothing was seen (0 times, or 0 % of the time) of {}.", names.join(", ")));
    }
}

/// Causes that could not be tested, separate from those ruled out: they are neither confirmed nor excluded.
fn not_tested(page: &mut Page, report: &Report) {
    if report.not_tested.is_empty() {
        return;
    }
    page.blank();
    page.labelled_items("NOT TESTED", &grouped(report.not_tested.iter().map(|n| (n.cause.as_str(), n.why.as_str()))));
}

/// Causes with their reasons; those with the same reason share one item, at the position of the first.
fn grouped<'r>(list: impl Iterator<Item = (&'r str, &'r str)>) -> Vec<String> {
    let mut groups: Vec<(&str, Vec<String>)> = Vec::new();
    for (cause, why) in list {
        let cause = cause.replace('-', " ");
        match groups.iter_mut().find(|(known, _)| *known == why) {
            Some((_, causes)) => causes.push(cause),
            None => groups.push((why, vec![cause])),
        }
    }
    groups.into_iter().map(|(why, causes)| format!("{} ({})", causes.join(", "), clean(why))).collect()
}

fn notes(page: &mut Page, report: &Report) {
    let mut notes = Vec::new();
    if is_sliced(report) {
        notes.push(format!(
            "Per-event probes ran in slices of {} of the time, to stay cheap; figures marked ≈ are scaled from them.",
            percent_fixed(report.probe.observed_share)
        ));
    }
    if report.probe.lost_events > 0 {
        notes.push(format!(
            "{} of {} events were lost because the buffer was full.",
            thousands(report.probe.lost_events),
            thousands(report.probe.events.saturating_add(report.probe.lost_events))
        ));
    }
    if report.probe.untracked > 0 {
        notes.push(format!(
            "{} more flows or threads were beyond the limits and not seen.",
            thousands(report.probe.untracked)
        ));
    }
    notes.extend(report.blind.iter().cloned());
    if notes.is_empty() {
        return;
    }
    page.blank();
    for (i, note) in notes.iter().enumerate() {
        page.labelled(if i == 0 { "NOTES" } else { "" }, note);
    }
}

/// Whether the probes saw only a part of the time. Sampling on the rung procfs is not slicing.
fn is_sliced(report: &Report) -> bool {
    report.rung != Rung::Procfs && report.probe.observed_share < 0.995
}

/// The meanings that colour repeats.
#[derive(Clone, Copy)]
enum Paint {
    Plain,
    Dim,
    Head,
    Good,
    Warn,
    Bad,
}

impl Paint {
    fn code(self) -> &'static str {
        match self {
            Paint::Plain => "",
            Paint::Dim => "\x1b[2m",
            Paint::Head => "\x1b[1m",
            Paint::Good => "\x1b[1;32m",
            Paint::Warn => "\x1b[1;33m",
            Paint::Bad => "\x1b[1;31m",
        }
    }
}

/// The page, built line by line.
struct Page {
    out: String,
    style: TextStyle,
}

impl Page {
    fn blank(&mut self) {
        self.out.push('\n');
    }

    fn paint(&self, text: &str, paint: Paint) -> String {
        if self.style.color && !text.is_empty() && !paint.code().is_empty() {
            format!("{}{text}\x1b[0m", paint.code())
        } else {
            text.to_owned()
        }
    }

    fn line(&mut self, indent: &str, text: &str, paint: Paint) {
        let painted = self.paint(text, paint);
        self.out.push_str(indent);
        self.out.push_str(&painted);
        self.out.push('\n');
    }

    /// When, where and by what the observation was made.
    fn origin(&mut self, origin: &Origin) {
        let parts = [
            date(&origin.time),
            origin.host.clone(),
            format!("Linux {}", origin.kernel),
            format!("version {}", origin.version),
            command_line(&origin.command_line),
        ];
        let parts: Vec<String> = parts.iter().map(|part| clean(part)).collect();
        let width = self.style.width.saturating_sub(2);
        for line in items(&parts, " · ", width).iter().flat_map(|line| words(line, width, width)) {
            self.line("  ", &line, Paint::Dim);
        }
    }

    /// Columns right of the gutter.
    fn body_width(&self) -> usize {
        self.style.width.saturating_sub(GUTTER)
    }

    /// A heading and the text beside it; the body follows below, indented by the gutter.
    fn section(&mut self, head: &str, rest: &str, paint: Paint) {
        let paint = if matches!(paint, Paint::Plain) { Paint::Head } else { paint };
        let start = if columns(head) + 2 <= GUTTER { GUTTER } else { columns(head) + 2 };
        let painted = self.paint(head, paint);
        let width = self.style.width.saturating_sub(start);
        let lines = words(&clean(rest), width, self.body_width());
        self.out.push_str(&painted);
        if let Some(first) = lines.first() {
            self.out.push_str(&" ".repeat(start - columns(head)));
            let first = self.paint(first, Paint::Head);
            self.out.push_str(&first);
        }
        self.out.push('\n');
        for line in lines.iter().skip(1) {
            self.line(&" ".repeat(GUTTER), line, Paint::Head);
        }
    }

    /// A paragraph, indented by the gutter.
    fn body(&mut self, text: &str) {
        for line in words(&clean(text), self.body_width(), self.body_width()) {
            self.line(&" ".repeat(GUTTER), &line, Paint::Plain);
        }
    }

    /// A short heading in the columns of the gutter, and a paragraph beside it.
    fn labelled(&mut self, head: &str, text: &str) {
        let painted = self.paint(head, Paint::Head);
        let pad = " ".repeat(GUTTER.saturating_sub(columns(head)));
        for (i, line) in words(&clean(text), self.body_width(), self.body_width()).iter().enumerate() {
            let indent = if i == 0 { format!("{painted}{pad}") } else { " ".repeat(GUTTER) };
            self.line(&indent, line, Paint::Plain);
        }
    }

    /// A short heading in the columns of the gutter, a lead, and a paragraph that is indented to the end of the lead, or follows
    /// below it if there is not enough space.
    fn row(&mut self, head: &str, lead: &str, text: &str) {
        let (painted, start) = (self.paint(head, Paint::Head), GUTTER.max(columns(head) + 1));
        let fits = start + columns(lead) + 24 <= self.style.width;
        let hang = if fits { start + columns(lead) } else { start + 4 };
        let lines = words(&clean(text), self.style.width.saturating_sub(hang), self.style.width.saturating_sub(hang));
        let first = if fits { lines.first().cloned().unwrap_or_default() } else { String::new() };
        let line = format!("{painted}{}{lead}{first}", " ".repeat(start - columns(head)));
        self.line("", line.trim_end(), Paint::Plain);
        for line in lines.iter().skip(usize::from(fits)) {
            self.line(&" ".repeat(hang), line, Paint::Plain);
        }
    }

    /// A heading and a list that breaks between items; an item longer than a line breaks between words.
    fn labelled_items(&mut self, head: &str, list: &[String]) {
        self.section(head, "", Paint::Plain);
        for line in items(list, " · ", self.body_width()) {
            self.body(&line);
        }
    }

    /// A lead, and a paragraph that is indented to its end.
    fn hanging(&mut self, lead: &str, text: &str) {
        let start = GUTTER - 4 + columns(lead);
        let width = self.style.width.saturating_sub(start);
        for (i, line) in words(&clean(text), width, width).iter().enumerate() {
            let indent = if i == 0 { format!("{}{lead}", " ".repeat(GUTTER - 4)) } else { " ".repeat(start) };
            self.line(&indent, line, Paint::Plain);
        }
    }

    /// One row of an account, drawn in eighths of a column.
    fn bar(&mut self, name: &str, label: usize, share: f64) {
        let figure = percent_fixed(share);
        let width = BAR.min(self.body_width().saturating_sub(label + 2 + 2 + 8)).max(4);
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        let eighths = ((share * (width * 8) as f64).round() as usize).max(usize::from(share > 0.0));
        let mut bar = "█".repeat(eighths / 8);
        if let Some(part) = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"].get(eighths % 8) {
            bar.push_str(part);
        }
        let row = format!("{name:<label$}  {bar:<width$}  {figure:>7}");
        self.line(&" ".repeat(GUTTER), &row, Paint::Plain);
    }
}
