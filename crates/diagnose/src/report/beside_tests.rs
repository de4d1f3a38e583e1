//! Further forms of a report: golden files of a small case, hostile names, and whether all of them state the same figures.
use std::path::Path;

use parshall_core::judge::judge;
use parshall_core::report::{Detail, Page};
use parshall_core::testkit::empty_capture;
use parshall_core::text::is_printable;
use parshall_evidence::{Capture, Report};
use parshall_host::output::TextStyle;
use parshall_host::private_file::PrivateFile;

use super::perfetto::tests::read;
use super::*;
use crate::testkit::captures::exchange;
use crate::testkit::golden::golden;
use crate::testkit::reports::{self, formed};

#[test]
fn the_small_case() {
    let capture = exchange();
    golden("small-case.folded", &folded(&capture));
    golden("small-case.svg", &flamegraph(&capture));
    golden("small-case.summary.txt", &formed(summary, &reports::all()[0].1, &capture));
}

/// The small case with this in place of every name.
fn hostile(name: &str) -> Capture {
    let mut capture = exchange();
    let timeline = capture.timeline.as_mut().unwrap();
    timeline.names.values_mut().for_each(|names| (names.thread, names.process) = (name.into(), name.into()));
    capture.thread_stalls.iter_mut().for_each(|stall| stall.waker_comm = name.to_owned());
    let uring = capture.uring.as_mut().unwrap();
    uring.cells.iter_mut().for_each(|cell| (cell.process, cell.thread) = (name.into(), name.into()));
    uring.requests.iter_mut().for_each(|request| request.error = name.to_owned());
    let lines = &mut capture.log.as_mut().unwrap().lines;
    lines.iter_mut().for_each(|line| (line.process, line.text, line.to) = (name.into(), name.into(), name.into()));
    capture.stacks.iter_mut().flat_map(|stack| &mut stack.frames).for_each(|frame| frame.name = name.to_owned());
    capture
}

#[test]
fn names_of_a_host_stay_names() {
    for name in ["<script>alert(1)</script>", "a;b c 7", "x\u{1b}[2J\ny", "]]>&amp;\"'", "a\u{202e}b\u{2028}"] {
        let capture = hostile(name);
        let lines = folded(&capture);
        assert_eq!(lines.lines().count(), 3, "{lines}");
        for line in lines.lines() {
            let (stack, weight) = line.rsplit_once(' ').expect("a weight");
            assert!(weight.parse::<u64>().is_ok_and(|weight| weight > 0), "{line}");
            let frames: Vec<&str> = stack.split(';').collect();
            assert!(matches!(frames[0], "on-cpu" | "off-cpu") && frames.len() <= 10, "{line}");
            assert!(line.chars().all(is_printable), "{line:?}");
        }
        let picture = flamegraph(&capture);
        assert!(picture.lines().flat_map(str::chars).all(is_printable));
        // Its elements are those of a picture without such names.
        let elements =
            |svg: &str| svg.matches('<').count() - svg.matches("<text").count() - svg.matches("</text").count();
        assert_eq!(elements(&picture), elements(&flamegraph(&hostile("name"))), "{name:?}");
        let list = formed(summary, &reports::all()[0].1, &capture);
        assert_eq!(list.lines().count(), formed(summary, &reports::all()[0].1, &hostile("name")).lines().count());
        assert!(list.lines().flat_map(str::chars).all(is_printable));
    }
}

#[test]
fn widths_are_in_proportion() {
    let picture = flamegraph(&exchange());
    let widths = |name: &str| -> Vec<f64> {
        let title = format!("<title>{name}: ");
        let found = picture.split(&title).skip(1);
        let width = |rest: &str| rest.split(" width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
        found.map(width).collect()
    };
    let all = widths("all");
    assert!(all.len() == 2 && all[0] == all[1], "{all:?}");
    // All samples are of one thread; 40 ms off the CPU are of it, and 650 µs of another.
    let worker = widths("worker");
    assert!((worker[0] - all[0]).abs() < 0.01 && (worker[1] / all[1] - 40.0 / 40.65).abs() < 0.001, "{worker:?}");
}

#[test]
fn an_empty_case_is_a_file_of_every_form() {
    let (report, capture) = (reports::empty(), empty_capture());
    assert_eq!(folded(&capture), "");
    let picture = flamegraph(&capture);
    assert_eq!(picture.matches("nothing was seen").count(), 2, "{picture}");
    assert!(picture.ends_with("</svg>\n"));
    assert!(formed(summary, &report, &capture).contains("No events were seen"));
    assert!(!formed(perfetto, &report, &capture).is_empty());
}

#[test]
fn a_full_disk_is_one_line_for_every_form() {
    for what in [Beside::Html, Beside::Perfetto, Beside::Flamegraph, Beside::Summary, Beside::Folded] {
        let file = PrivateFile::create(Path::new("/dev/full"), what.option()).expect("a device");
        let content =
            formed(|report, capture| what.content(report, capture), &reports::all()[0].1, &exchange()).expect("a form");
        let error = file.write(&content).expect_err("it is full");
        assert!(error.what.contains("/dev/full cannot be written: No space left"), "{error}");
        assert!(error.hint.contains(what.option()) && !error.what.contains('\n'), "{error}");
    }
}

fn recorded(path: &str) -> Capture {
    crate::case::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../parshall/tests").join(path)).expect("a case")
}

/// The texts of a page that have figures.
fn figures(page: &Page) -> Vec<String> {
    let time = page.time.iter().flat_map(|bars| &bars.rows).flat_map(|row| [row.label.clone(), row.figure.clone()]);
    let evidence =
        page.evidence.iter().flat_map(|(_, rows)| rows).flat_map(|row| row.words.iter().chain([&row.figure]));
    let services = page.services.iter().flat_map(|services| &services.rows).flatten();
    let chain = page.chain.iter().flat_map(|chain| &chain.rows).map(|row| &row.does);
    let words = page.verdict.sentences.iter().chain([&page.verdict.headline]).chain(&page.head);
    time.chain(evidence.chain(services).chain(chain).chain(words).cloned()).filter(|text| !text.is_empty()).collect()
}

/// Without what formats put into a text for their own sake.
fn plain(text: &str) -> String {
    let mut parts = text.split("<a ");
    let first = parts.next().unwrap_or_default().to_owned();
    let text = parts.fold(first, |all, part| all + part.split_once('>').map_or("", |(_, rest)| rest));
    let text = text
        .replace("</a>", "")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&amp;", "&");
    text.replace('\\', "").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn all_forms_of_a_case_state_the_same_figures() {
    for case in [
        "recordings/nagle-delayed-ack.json",
        "recordings/redis.json",
        "docket/postgres-row-lock.json.zst",
        "docket/gunicorn-n-plus-one.json.zst",
    ] {
        let capture = recorded(case);
        let report = judge(&capture);
        let page = Page::new(&report, Detail::Full);
        let again: Report = serde_json::from_str(&json(&report).unwrap()).unwrap();
        assert_eq!(Page::new(&again, Detail::Full), page, "{case}");
        let wide = TextStyle { width: 100_000, ..TextStyle::default() };
        let notes = read(&formed(perfetto, &report, &capture)).notes.into_iter().map(|(_, value)| value);
        let trace = notes.collect::<Vec<_>>().join("\n") + "\n" + &page.verdict.headline;
        let all = [
            ("text", text(&report, wide, Detail::Full)),
            ("html", formed(html, &report, &capture).unwrap()),
            ("markdown", markdown(&report, Detail::Full)),
            ("perfetto", trace),
        ];
        let figures = figures(&page);
        assert!(figures.len() > 10, "{case}: {figures:?}");
        for (form, text) in all {
            let text = plain(&text);
            for figure in &figures {
                assert!(text.contains(&plain(figure)), "{case}: {form} has no {figure:?}");
            }
        }
        let list = formed(summary, &report, &capture);
        assert!(list.contains(page.verdict.headline.as_str()), "{case}: {list}");
    }
}

#[test]
fn masked_forms_have_nothing_of_the_host() {
    let mut capture = exchange();
    let timeline = capture.timeline.as_mut().unwrap();
    timeline.names.values_mut().for_each(|names| (names.thread, names.process) = ("smithd".into(), "smithd".into()));
    timeline.sockets.values_mut().for_each(|socket| socket.remote.set_ip([10, 7, 7, 7].into()));
    capture.flows.iter_mut().for_each(|flow| flow.remote.set_ip([10, 7, 7, 7].into()));
    capture.thread_stalls.iter_mut().for_each(|stall| stall.waker_comm = "smithd".to_owned());
    let open = judge(&capture);
    let hidden = parshall_core::mask::masked(capture.clone());
    let report = judge(&hidden);
    assert_eq!(report.verdict.cause, open.verdict.cause);
    for what in [Beside::Html, Beside::Perfetto, Beside::Flamegraph, Beside::Summary, Beside::Folded] {
        let content = |report, capture| {
            let form = formed(|report, capture| what.content(report, capture), report, capture);
            String::from_utf8_lossy(&form.unwrap()).into_owned()
        };
        let has = |text: &str| text.contains("smithd") || text.contains("10.7.7.7");
        // A page has its timeline packed.
        assert!(has(&content(&open, &capture)) || what == Beside::Html, "{what:?}");
        assert!(!has(&content(&report, &hidden)), "{what:?}");
    }
}
