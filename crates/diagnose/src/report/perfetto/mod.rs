//! The capture and its report as a trace for Perfetto (https://perfetto.dev): native lanes of threads with who woke them, and tracks of
//! what threads waited for, of requests, of sockets, of requests to io_uring and of log lines. The page is a slice over the whole window.
mod further;
mod lanes;
mod proto;
mod sched;
#[cfg(test)]
pub mod tests;
mod writer;

use parshall_core::judge::Judged;
use parshall_core::report::{Detail, Page};
use parshall_core::trace::Trace;
use parshall_evidence::Capture;
use parshall_host::output::clean;

use proto::Message;
use writer::{Event, Kind, Writer};

/// The track of the report.
const REPORT: u64 = 7 << 56;
/// Samples of a file at most: a capture of any host and window has fewer, and a file that was made by hand may say anything.
const SAMPLES_MAX: u64 = 200_000;

/// The file.
pub fn perfetto(judged: &Judged<'_>, capture: &Capture) -> Vec<u8> {
    let index = judged.index.as_ref();
    let trace = Trace::whole(capture, index);
    let mut writer = Writer::new(capture);
    let mut threads = lanes::Threads::default();
    page(&Page::new(&judged.report, Detail::Full), trace.window_ns, &mut writer);
    if let Some(index) = index {
        lanes::requests(capture, index, &mut threads, &mut writer);
    }
    lanes::threads(capture, &trace, &mut threads, &mut writer);
    lanes::calls(capture, &mut threads, &mut writer);
    lanes::sockets(&trace, &mut writer);
    further::uring(&trace, &mut writer);
    further::log(&trace, &mut writer);
    samples(capture, &mut threads, &mut writer);
    sched::bundles(capture).iter().for_each(|bundle| writer.scheduler(bundle));
    writer.finish()
}

/// A slice with all that the page says.
fn page(page: &Page, window_ns: u64, writer: &mut Writer<'_>) {
    let mut descriptor = Message::default();
    descriptor.uint(1, REPORT).text(2, "parshall").uint(12, 0);
    writer.track(&descriptor);
    let headline = [page.verdict.title.0, page.verdict.headline.as_str()].join(" ");
    let mut slice = Event::new(Kind::Begin, REPORT, 0, headline.trim_end());
    for (name, value) in notes(page) {
        slice = slice.note(&clean(&name), &value);
    }
    writer.push(slice);
    writer.push(Event::new(Kind::End, REPORT, window_ns.max(1), ""));
}

/// The sentences of a page, by section; rows of a section have numbers.
fn notes(page: &Page) -> Vec<(String, String)> {
    let mut notes: Vec<(String, String)> = Vec::new();
    let mut add = |section: &str, rows: Vec<String>| {
        let several = rows.len() > 1;
        for (i, row) in rows.into_iter().enumerate() {
            notes.push((if several { format!("{section} {}", i + 1) } else { section.to_owned() }, row));
        }
    };
    add("about", vec![page.head.join(" · "), page.origin.join(" · ")].into_iter().filter(|s| !s.is_empty()).collect());
    add("answer", page.verdict.sentences.clone());
    add("answer is", page.verdict.tags.clone());
    if let Some(chain) = &page.chain {
        add("chain", chain.rows.iter().map(|row| format!("{} {}", row.who, row.does)).collect());
    }
    if let Some(fix) = &page.fix {
        add("fix", vec![fix.text.clone()]);
        add("command", fix.commands.iter().map(|c| format!("{}: {}", c.label, c.command)).collect());
    }
    if let Some(services) = &page.services {
        add("service", services.rows.iter().map(|row| row.join(" · ")).collect());
    }
    for bars in &page.time {
        add(&bars.of, bars.rows.iter().map(|row| format!("{} {}", row.label, row.figure)).collect());
    }
    if let Some((_, line)) = &page.tail {
        add("tail", vec![line.clone()]);
    }
    if let Some((_, rows)) = &page.evidence {
        let row = |row: &parshall_core::report::EvidenceRow| format!("{} {}", row.figure, row.words.join(" · "));
        add("evidence", rows.iter().map(row).collect());
    }
    if let Some(others) = &page.others {
        add("also", others.rows.iter().map(|o| format!("{} ({})", o.headline, o.id)).collect());
    }
    for listed in &page.listed {
        let rows = listed.items.iter().chain(&listed.summary).cloned().collect();
        add(&listed.title.in_sentence_case(), rows);
    }
    if let Some((_, rows)) = &page.notes {
        add("note", rows.clone());
    }
    notes
}

/// The CPU samples of the window. A capture has their counts and not their times: they stand at its end.
fn samples(capture: &Capture, threads: &mut lanes::Threads, writer: &mut Writer<'_>) {
    let mut left = SAMPLES_MAX;
    for sample in &capture.samples {
        let Some(stack) = sample.stack else { continue };
        threads.track(sample.tid, capture, writer);
        let pid = capture.threads.iter().find(|thread| thread.tid == sample.tid).map_or(0, |thread| thread.pid);
        for _ in 0..sample.count.min(left) {
            writer.sample(capture.window_ns, (pid, sample.tid), sample.user, stack);
        }
        left = left.saturating_sub(sample.count);
    }
}
