//! The causes that hold: the answer, the way to it, what to do, and the numbers.
use parshall_evidence::{
    ChainHop, Confidence, Evidence, Finding, Gain, PeerCommand, Place, Report, ServiceReport, ShareOf, Status,
};

use super::page::{Basis, Chain, Command, Detail, EvidenceRow, Fix, HopRow, Other, Others, Title, Verdict};
use super::page::{first_of, more, top_finding};
use super::{head, spent, stack, verbs};
use crate::units::{bytes, count, count_f, figures as figures_of, percent, plural, quantity, time_ms};

/// Hops of a chain beside which a short page still has room for a stack.
const SHORT_WAY: usize = 5;
/// Sizes from this on are rounded; below, a segment or a path MTU is said to the byte.
const EXACT_BYTES: f64 = 4096.0;
/// A gain of less than this is not worth a sentence.
const LEAST_GAIN: f64 = 1.1;
/// A prediction is not good enough to say how much more than this.
const MOST_TIMES: f64 = 20.0;

/// The answer.
pub(super) fn verdict(report: &Report, detail: Detail) -> Verdict {
    let answer = &report.verdict;
    let top = top_finding(report);
    let title = match answer.status {
        Status::Cause => "CAUSE",
        Status::Healthy => "HEALTHY",
        Status::AtCapacity => "AT CAPACITY",
        Status::NoDominantCause => "NO DOMINANT CAUSE",
        Status::InsufficientEvidence => "INSUFFICIENT EVIDENCE",
    };
    let mut tags = Vec::new();
    tags.extend(top.map(|top| top.cause.clone()).or_else(|| answer.cause.clone()));
    // Nothing is claimed without evidence, so there is nothing to be sure of.
    if answer.status != Status::InsufficientEvidence {
        tags.push(format!("confidence {}", confidence(answer.confidence)));
    }
    let mut sentences = vec![answer.summary.clone()];
    sentences.extend(top.map(|top| top.summary.clone()).filter(|summary| *summary != answer.summary));
    sentences.extend(doubt(answer, detail));
    let place = top.filter(|top| detail == Detail::Full && top.chain.is_empty());
    let place = place.map(|top| place_beside(&top.place, &sentences.join(" "))).unwrap_or_default();
    if !place.is_empty() {
        sentences.push(format!("Seen most at {place}."));
    }
    Verdict {
        title: Title(title),
        status: answer.status,
        headline: top.map(headline).unwrap_or_default(),
        share: top.map(share).unwrap_or_default(),
        basis: if top.is_some() { Basis::Finding(0) } else { Basis::Verdict },
        tags,
        sentences,
    }
}

/// `Small writes wait for a delayed ACK: 98.6 % of the time in which 12 flows could move data`. This share is the only one that a page
/// gives of a cause: others would be of other times, and look like a contradiction.
fn headline(finding: &Finding) -> String {
    format!("{}: {}", finding.title, share(finding))
}

fn share(finding: &Finding) -> String {
    let about = if finding.scaled { "≈" } else { "" };
    let whose = match finding.share_of {
        ShareOf::RequestTime => {
            let (one, many) = if finding.tail { ("slow request", "slow requests") } else { ("request", "requests") };
            format!("of the time of {}", plural(finding.place.requests, one, many))
        }
        ShareOf::FlowTime if finding.place.flows > 0 => {
            format!("of the time in which {} could move data", plural(finding.place.flows, "flow", "flows"))
        }
        ShareOf::FlowTime => "of the time in which data could move".to_owned(),
        ShareOf::ThreadTime => "of the time in which threads could work".to_owned(),
        ShareOf::Connections => "of the connections".to_owned(),
        ShareOf::Datagrams => "of the datagrams".to_owned(),
    };
    format!("{about}{} {whose}", percent(finding.share))
}

/// The place of a cause, but for those parts of it that the sentences have named.
fn place_beside(p: &Place, sentences: &str) -> String {
    let mut parts = Vec::new();
    let flow = p.flow.as_ref().filter(|flow| !sentences.contains(&flow.replace("->", " -> ")));
    parts.extend(flow.map(|flow| flow.replace("->", " → ")));
    parts.extend(p.pid.map(|pid| format!("pid {pid}")));
    parts.extend(p.tid.map(|tid| format!("thread {tid}")));
    parts.extend(p.cgroup.as_ref().map(|c| format!("cgroup {c}")));
    parts.join(", ")
}

fn confidence(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::Low => "low",
        Confidence::Medium => "medium",
        Confidence::High => "high",
    }
}

/// `Confidence medium: few requests were seen (3).`: what lowers it most, and all of it on a full page. None where it is high, and where nothing
/// is claimed.
fn doubt(answer: &parshall_evidence::Verdict, detail: Detail) -> Option<String> {
    if answer.status == Status::InsufficientEvidence {
        return None;
    }
    let shown = if detail == Detail::Full { answer.gaps.len() } else { 1 };
    let gaps: Vec<&str> = answer.gaps.iter().take(shown).map(|gap| gap.why.as_str()).collect();
    (!gaps.is_empty()).then(|| format!("Confidence {}: {}.", confidence(answer.confidence), gaps.join("; ")))
}

/// The way to a cause; None where it was found in flows or threads alone.
pub(super) fn chain(report: &Report, finding: &Finding, detail: Detail) -> Option<Chain> {
    // A long way leaves the stack to a full page.
    let stacks = detail == Detail::Full || finding.chain.len() <= SHORT_WAY;
    let stack = |hop: &ChainHop| stack::shown(&hop.stack, detail).filter(|_| stacks);
    let row = |hop: &ChainHop| {
        let (who, does) = row_words(who(hop, &report.services), &hop.text, hop.pids.len());
        HopRow { who, does, stack: stack(hop) }
    };
    (!finding.chain.is_empty()).then(|| Chain { title: Title("CHAIN"), rows: finding.chain.iter().map(row).collect() })
}

/// Processes and what they do. Text with a subject of its own is set off by a colon: `shipper 812: what it did was not seen`.
fn row_words(who: String, does: &str, processes: usize) -> (String, String) {
    const CLAUSES: [&str; 2] = ["data is ", "what it "];
    match CLAUSES.iter().any(|begin| does.starts_with(begin)) {
        true if processes > 1 => (format!("{who}:"), does.replacen("what it ", "what they ", 1)),
        true => (format!("{who}:"), does.to_owned()),
        false if processes > 1 => (who, verbs::of_several(does)),
        false => (who, does.to_owned()),
    }
}

/// `gunicorn 901, 902 (2 of 8)`: how many of the processes that serve there, or of the threads. Where each of these is a process of its own,
/// a hop may stand for several processes and name one: `proftpd 25417 (16 of 17 processes)`.
fn who(hop: &ChainHop, services: &[ServiceReport]) -> String {
    let known = if hop.pids.is_empty() && hop.pid != 0 { vec![hop.pid] } else { hop.pids.clone() };
    let who = if hop.process.is_empty() && known.is_empty() {
        "the network".to_owned()
    } else {
        head::processes(&hop.process, &known)
    };
    let several = |n: u64, one: &str, many: &str| match hop.of {
        all if all >= n => format!("{n} of {}", plural(all, one, many)),
        _ => plural(n, one, many),
    };
    let serves = services.iter().find(|service| !service.outbound && service.pids.contains(&hop.pid));
    let each_alone = serves.is_some_and(|service| hop.of > 1 && service.pids.len() as u64 == hop.of);
    let more = match (hop.pids.len() as u64, hop.threads) {
        (named @ 2.., _) if hop.of >= named => format!(" ({named} of {})", hop.of),
        (named @ 2.., _) => format!(" ({named})"),
        (_, 2..) if each_alone => format!(" ({})", several(hop.threads, "process", "processes")),
        (_, 2..) => format!(" ({})", several(hop.threads, "thread", "threads")),
        _ if !hop.thread.is_empty() && hop.thread != hop.process => format!(" ({})", hop.thread),
        _ => String::new(),
    };
    format!("{who}{more}")
}

/// The remedy; None where nothing is known.
pub(super) fn fix(finding: &Finding) -> Option<Fix> {
    (!finding.fix.text.is_empty()).then(|| Fix {
        title: Title("FIX"),
        text: gain(finding).map_or_else(|| finding.fix.text.clone(), |gain| after(&finding.fix.text, &gain)),
        commands: commands(finding),
    })
}

/// A sentence behind a text, which may end with a command that has no full stop.
fn after(text: &str, sentence: &str) -> String {
    let stop = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{text}{stop} {sentence}")
}

/// `Without it, a request would take ≈3.2 ms instead of 16 ms.` What gives next to nothing is not worth a sentence.
fn gain(finding: &Finding) -> Option<String> {
    let Gain { now_ms, without_ms: (least, most) } = finding.gain?;
    let takes = match () {
        () if now_ms < LEAST_GAIN * least => return None,
        // A difference that nobody sees in the figures is none.
        () if most < LEAST_GAIN * least => format!("≈{}", time_ms(least)),
        () => format!("{} to {}", time_ms(least), time_ms(most)),
    };
    let one = if finding.tail { "a slow request" } else { "a request" };
    Some(format!("Without it, {one} would take {takes} instead of {}.", time_ms(now_ms)))
}

/// `; without it, requests would be ≈1.2 times as fast`, of a cause that is not the first.
fn factor(finding: &Finding) -> String {
    let whose = if finding.tail { "slow requests" } else { "requests" };
    let times = finding.gain.map(|gain| gain.now_ms / gain.without_ms.0.max(gain.now_ms / MOST_TIMES));
    let about = times.filter(|times| times.is_finite()).map(|times| match times {
        times if times >= MOST_TIMES => format!("; without it, {whose} would be more than {MOST_TIMES} times as fast"),
        times => format!("; without it, {whose} would be ≈{times:.1} times as fast"),
    });
    about.unwrap_or_default()
}

fn commands(finding: &Finding) -> Vec<Command> {
    let try_it = finding
        .fix
        .command
        .iter()
        .map(|command| Command { label: "Try it on the running process".to_owned(), command: command.clone() });
    try_it.chain(finding.fix.peer.iter().map(look_closer)).collect()
}

fn look_closer(peer: &PeerCommand) -> Command {
    let label = match &peer.host {
        Some(host) => format!("Look closer on {host}"),
        None => "Look closer".to_owned(),
    };
    Command { label, command: peer.command.clone() }
}

/// The numbers that a cause rests on, on a full page.
pub(super) fn evidence(finding: &Finding, detail: Detail) -> Option<(Title, Vec<EvidenceRow>)> {
    let rows = || finding.evidence.iter().map(|item| evidence_row(item, detail)).collect();
    (detail == Detail::Full && !finding.evidence.is_empty()).then(|| (Title("EVIDENCE"), rows()))
}

fn evidence_row(item: &Evidence, detail: Detail) -> EvidenceRow {
    let mut figures = Vec::new();
    if let Some(n) = item.count {
        figures.push(format!("{}{}", if item.scaled { "≈" } else { "" }, count(n)));
    }
    if let Some(value) = item.value {
        let about = if item.scaled && item.count.is_none() { "≈" } else { "" };
        let unit = item.unit.as_deref().unwrap_or("");
        let figure = amount(value, unit);
        // `7.44 | requests outstanding`: not `7.44 requests | requests outstanding`.
        let repeated = item.what.strip_prefix(unit).is_some_and(|rest| !unit.is_empty() && rest.starts_with(' '));
        let short = figure.strip_suffix(unit).filter(|_| repeated).map_or(figure.as_str(), str::trim_end);
        figures.push(format!("{about}{short}"));
    }
    figures.extend(item.p50_ms.map(|ms| format!("p50 {}", time_ms(ms))));
    figures.extend(item.p99_ms.map(|ms| format!("p99 {}", time_ms(ms))));
    figures.extend(item.mean_ms.map(|ms| format!("mean {}", time_ms(ms))));
    figures.extend(item.max_ms.map(|ms| format!("at most {}", time_ms(ms))));
    // A p50 is too long for the column of figures, and reads well after the words.
    let leads = item.count.is_some() || item.value.is_some();
    let figure = if leads { figures.remove(0) } else { String::new() };
    // A function in which samples were taken is a frame, too.
    let what = spent::within(&stack::simplified(&item.what));
    // A stack of this function alone would say its name again.
    let stack = stack::shown(&item.stack, detail).filter(|stack| stack.frames != [what.as_str()]);
    let what = match (item.count, item.value, item.unit.as_deref()) {
        // A number of samples and their share stand beside the name of a function.
        (Some(n), Some(_), Some("1")) => format!("{} in {what}", if n == 1 { "sample" } else { "samples" }),
        (None, Some(1.0), Some(unit)) => of_one(&what, unit),
        _ => what,
    };
    EvidenceRow { figure, words: [what].into_iter().chain(figures).collect(), stack }
}

/// `thread reading or answering` for `threads reading or answering`, beside the figure 1: all units that count are regular plurals.
fn of_one(what: &str, unit: &str) -> String {
    let rest = what.strip_prefix(unit).filter(|rest| rest.is_empty() || rest.starts_with([' ', ',']));
    match (unit.strip_suffix('s'), rest) {
        (Some(one), Some(rest)) if !one.is_empty() => format!("{one}{rest}"),
        _ => what.to_owned(),
    }
}

/// A value of the evidence with its unit.
fn amount(value: f64, unit: &str) -> String {
    match unit {
        // A number without a unit, such as a mean of counts, is no share even where it is 1.
        "" => figures_of(value),
        // As the sentences of causes have it: one size in one unit.
        "B" if value >= EXACT_BYTES => bytes(value),
        "B" => format!("{} B", count_f(value)),
        "times" if value < 10.0 => format!("{value:.1} times"),
        unit => quantity(value, unit),
    }
}

/// The causes that hold beside the verdict's.
pub(super) fn others(report: &Report, detail: Detail) -> Option<Others> {
    let top = top_finding(report);
    let first = usize::from(top.is_some());
    let rest = report.findings.get(first..).unwrap_or_default().iter().enumerate();
    let full = detail == Detail::Full;
    let row = |(at, finding): (usize, &Finding)| {
        let mut sentences = Vec::new();
        let fix = top.is_none() && full;
        if full {
            sentences.push(finding.summary.clone());
        }
        if fix && !finding.fix.text.is_empty() {
            sentences.push(format!("Fix: {}", finding.fix.text));
        }
        Other {
            headline: headline(finding) + &factor(finding),
            basis: Basis::Finding(first + at),
            id: finding.cause.clone(),
            sentences,
            commands: if fix { commands(finding) } else { Vec::new() },
        }
    };
    let (shown, left) = first_of(rest.collect(), detail);
    (!shown.is_empty()).then(|| Others {
        title: Title(if top.is_some() { "ALSO" } else { "FOUND" }),
        rows: shown.into_iter().map(row).collect(),
        more: more(left),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_begins_behind_a_full_stop() {
        assert_eq!(after("Use a faster disk.", "Without it, less."), "Use a faster disk. Without it, less.");
        assert_eq!(
            after("How busy it is: iostat -x 1", "Without it, less."),
            "How busy it is: iostat -x 1. Without it, less."
        );
    }

    #[test]
    fn a_value_of_the_evidence_is_in_the_unit_of_the_sentences() {
        for (value, unit, words) in [
            (1.0, "", "1"),
            (1.0, "1", "100.0 %"),
            (1.0, "times", "1.0 times"),
            (355.2, "times", "355 times"),
            (16_384.0, "B", "16 KiB"),
            (1448.0, "B", "1,448 B"),
            (2.5e6, "B/s", "2.50 MB/s"),
        ] {
            assert_eq!(amount(value, unit), words);
        }
    }

    #[test]
    fn a_place_that_was_named_is_not_named_again() {
        let place = Place { flow: Some("a:1->b:2".into()), pid: Some(812), ..Place::default() };
        assert_eq!(place_beside(&place, "a:1 -> b:2: nothing was left to send"), "pid 812");
        assert_eq!(place_beside(&place, "The queue is full"), "a:1 → b:2, pid 812");
    }

    #[test]
    fn processes_of_one_thread_each_are_counted_as_processes() {
        let hop = |pids: Vec<u32>, threads: u64, of: u64| ChainHop {
            process: "ftpd".into(),
            pid: pids[0],
            pids,
            threads,
            of,
            ..ChainHop::default()
        };
        let serving = |pids: Vec<u32>| vec![ServiceReport { pids, ..ServiceReport::default() }];
        let of_one = |threads, of, serving: &[ServiceReport]| who(&hop(vec![7], threads, of), serving);
        assert_eq!(of_one(16, 17, &serving((7..24).collect())), "ftpd 7 (16 of 17 processes)");
        assert_eq!(of_one(2, 4, &serving(vec![7])), "ftpd 7 (2 of 4 threads)");
        // Two processes with two threads each.
        assert_eq!(of_one(2, 4, &serving(vec![7, 8])), "ftpd 7 (2 of 4 threads)");
        assert_eq!(of_one(3, 0, &[]), "ftpd 7 (3 threads)");
        assert_eq!(of_one(1, 4, &serving(vec![7])), "ftpd 7");
        assert_eq!(who(&hop(vec![7, 8], 2, 4), &serving((7..11).collect())), "ftpd 7, 8 (2 of 4)");
    }

    #[test]
    fn a_row_of_a_chain_reads_as_a_sentence() {
        let row = |does, processes| row_words("shipper 812".into(), does, processes);
        assert_eq!(row("what it did was not seen", 1).0, "shipper 812:");
        assert_eq!(
            row("what it did was not seen", 2),
            ("shipper 812:".to_owned(), "what they did was not seen".to_owned())
        );
        assert_eq!(row("waits for a timer", 1), ("shipper 812".to_owned(), "waits for a timer".to_owned()));
        assert_eq!(row("waits for a timer", 2), ("shipper 812".to_owned(), "wait for a timer".to_owned()));
    }

    #[test]
    fn a_row_of_the_evidence_says_what_was_counted() {
        let row = |item: Evidence| {
            let row = evidence_row(&item, Detail::Full);
            format!("{} | {}", row.figure, row.words.join(" | "))
        };
        let samples = |n| Evidence {
            what: "memcpy".into(),
            count: Some(n),
            value: Some(0.5),
            unit: Some("1".into()),
            ..Evidence::default()
        };
        assert_eq!(row(samples(67)), "67 | samples in memcpy | 50.0 %");
        assert_eq!(row(samples(1)), "1 | sample in memcpy | 50.0 %");
        let valued = |what: &str, value, unit: &str| {
            row(Evidence { what: what.into(), value: Some(value), unit: Some(unit.into()), ..Evidence::default() })
        };
        assert_eq!(valued("threads reading or answering", 1.0, "threads"), "1 | thread reading or answering");
        assert_eq!(valued("threads reading or answering", 4.0, "threads"), "4 | threads reading or answering");
        assert_eq!(valued("thread on a CPU", 1.0, "1"), "100.0 % | thread on a CPU");
        assert_eq!(valued("net.ipv4.tcp_slow_start_after_idle", 1.0, ""), "1 | net.ipv4.tcp_slow_start_after_idle");
    }

    #[test]
    fn a_stack_of_one_function_does_not_repeat_the_row() {
        let row = |stack: &[&str]| {
            let stack = stack.iter().map(|frame| (*frame).to_owned()).collect();
            evidence_row(
                &Evidence { what: "malloc".into(), count: Some(9), stack, ..Evidence::default() },
                Detail::Full,
            )
        };
        assert_eq!(row(&["malloc"]).stack, None);
        assert!(row(&["malloc", "main"]).stack.is_some());
    }
}
