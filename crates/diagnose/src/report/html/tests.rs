//! Pages of the sample reports, and of a capture with a timeline.
use std::io::Read;

use parshall_core::judge::judged;
use parshall_core::testkit::timeline::{Script, served_socket};
use parshall_core::testkit::{self, FlowBuilder, MS, empty_capture};
use parshall_evidence::timeline::Waker;
use parshall_evidence::{Capture, FlowState, Frame, Release, Role, Stack};
use serde_json::Value;

use super::*;
use crate::testkit::reports::{self, formed};

/// Thread 101 works on a request; its name and stack are hostile.
fn capture(hostile: &str) -> Capture {
    let mut timeline = Script::new()
        .socket(1, served_socket(7000), 101)
        .receives(101, 1, 100_000, 200_000)
        .sleeps(101, 300_000, 700_000, 202, Waker::Unknown)
        .sends(101, 1, 800_000)
        .timeline;
    timeline.names.values_mut().for_each(|names| names.thread = hostile.to_owned());
    timeline.off_cpu.values_mut().flatten().for_each(|off| off.stack = Some(0));
    let frame = Frame { name: format!("f{hostile}"), module: String::new(), kernel: false };
    Capture { timeline: Some(timeline), stacks: vec![Stack { frames: vec![frame] }], ..empty_capture() }
}

/// The data of a page.
fn unpacked(page: &str) -> Value {
    let from = page.split("<script id=\"data\" type=\"text/plain\">").nth(1).expect("it has data");
    let bytes = STANDARD.decode(from.split("</script>").next().unwrap()).expect("base64");
    let mut text = String::new();
    flate2::read::ZlibDecoder::new(bytes.as_slice()).read_to_string(&mut text).expect("zlib");
    serde_json::from_str(&text).expect("JSON")
}

fn escaped(text: &str) -> String {
    maud::html! { (clean(text)) }.into_string()
}

/// The headline has its share as a link, and a fix has code.
fn without_links(page: &str) -> String {
    let mut parts = page.split("<a ");
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.split_once('>').map_or("", |(_, rest)| rest));
    let text = rest.fold(first, |all, part| all + part).replace("</a>", "");
    let text = text.split("<span class=\"option\">").map(|part| part.replacen("</span>", "", 1)).collect::<String>();
    text.replace("<code>", "").replace("</code>", "").replace('`', "").replace('\u{a0}', " ")
}

#[test]
fn a_page_says_what_the_text_says() {
    for (name, report) in reports::all() {
        let found = without_links(&formed(html, &report, &empty_capture()).unwrap());
        let page = Page::new(&report, Detail::Full);
        let rows = page.time.iter().flat_map(|bars| &bars.rows).flat_map(|row| [&row.label, &row.figure]);
        let evidence = page.evidence.iter().flat_map(|(_, rows)| rows).map(|row| &row.figure);
        let notes = page.notes.iter().flat_map(|(_, notes)| notes);
        let listed = page.listed.iter().flat_map(|listed| &listed.items);
        let chain = page.chain.iter().flat_map(|chain| &chain.rows).flat_map(|row| [&row.who, &row.does]);
        let fix = page.fix.iter().flat_map(|fix| fix.commands.iter().map(|c| &c.command).chain([&fix.text]));
        let verdict = page.verdict.sentences.iter().chain([&page.verdict.headline]);
        let all =
            verdict.chain(rows).chain(evidence).chain(notes).chain(listed).chain(chain).chain(fix).chain(&page.head);
        for words in all {
            // A command to type is code, and not between backticks.
            assert!(found.contains(&escaped(&words.replace('`', ""))), "{name}: {words}");
        }
    }
}

#[test]
fn nothing_is_fetched_and_only_its_own_script_and_style_may_run() {
    let page = formed(html, &reports::all()[0].1, &capture("worker")).unwrap();
    for forbidden in ["src=", "@import", "url(", "http://", "https://", "style=", "onclick"] {
        let outside = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!outside.contains(forbidden), "{forbidden}");
    }
    let allowed = policy();
    assert!(page.contains(&escaped(&allowed)));
    for text in [STYLE, SCRIPT] {
        let hash = STANDARD.encode(Sha256::digest(text.as_bytes()));
        assert!(allowed.contains(&format!("'sha256-{hash}'")));
        assert!(page.contains(text));
    }
    assert!(SCRIPT.len() <= 100_000, "{}", SCRIPT.len());
}

#[test]
fn names_of_a_host_stay_text() {
    for hostile in
        ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"'><b>", "a\u{202e}b\u{7}\u{1b}[2J"]
    {
        let page = formed(html, &reports::all()[0].1, &capture(hostile)).unwrap();
        assert!(!page.contains(hostile), "{hostile:?}");
        let data = unpacked(&page);
        assert_eq!(data["lanes"][1]["name"], format!("{} 101", clean(hostile)));
        assert!(data["names"][0].as_str().unwrap().chars().all(parshall_core::text::is_printable));
    }
}

#[test]
fn the_data_of_a_page_are_columns_of_the_trace() {
    let data = unpacked(&formed(html, &reports::all()[0].1, &capture("worker")).unwrap());
    assert_eq!(data["unitNs"], 100);
    let thread = &data["lanes"][1];
    assert_eq!((&thread["begins"], &thread["lengths"]), (&serde_json::json!([3_000]), &serde_json::json!([4_000])));
    let state = thread["states"][0].as_u64().unwrap() as usize;
    assert_eq!(data["states"][state][0], "futex");
    assert_eq!(data["stacks"][thread["stacks"][0].as_u64().unwrap() as usize - 1], serde_json::json!([0]));
}

/// A flow whose small writes wait, and another one.
fn held() -> Capture {
    held_beside(2 * MS)
}

/// The same; the other one waits once, for so long.
fn held_beside(other_ns: u64) -> Capture {
    let held = (0..20).fold(FlowBuilder::new(1, Role::Client).talks_in_parts(100), |flow, i| {
        flow.stall(i * 50 * MS, 41 * MS, FlowState::Nagle, Release::RxAckDelayed)
    });
    let other = FlowBuilder::new(2, Role::Client).stall(0, other_ns, FlowState::InFlight, Release::RxAck);
    testkit::capture(vec![held.fill(), other.fill()], vec![])
}

#[test]
fn every_link_of_a_page_leads_to_one_place_of_it() {
    let mut pages: Vec<String> =
        reports::all().iter().map(|(_, report)| formed(html, report, &capture("worker")).unwrap()).collect();
    pages.push(html(&judged(&held()), &held()).unwrap());
    for page in &pages {
        let page = page.split("<script").next().unwrap();
        let links: Vec<&str> = page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(links.contains(&"rule-answer") || links.len() > 3, "{links:?}");
        for id in links {
            assert_eq!(page.matches(&format!("id=\"{id}\"")).count(), 1, "{id}");
        }
    }
}

#[test]
fn a_figure_leads_to_its_rule_and_to_the_spans_that_count_into_it() {
    let capture = held();
    let judged = judged(&capture);
    let page = html(&judged, &capture).unwrap();
    assert_eq!(judged.report.findings[0].cause, "nagle-delayed-ack");
    let data = unpacked(&page);
    let figures = data["figures"].as_array().unwrap();
    assert_eq!((&figures[0][0], &figures[0][2]), (&"events-1".into(), &"rule-nagle-delayed-ack".into()));
    let marks = data["marks"][figures[0][3].as_u64().unwrap() as usize].as_array().unwrap();
    assert_eq!(marks.len(), 1, "one flow is held: {marks:?}");
    let marked = marks[0].as_array().unwrap();
    let lane = &data["lanes"][marked[0].as_u64().unwrap() as usize];
    let (mut span, mut seen) = (0, 0);
    for distance in &marked[1..] {
        span += distance.as_u64().unwrap() as usize;
        assert_eq!(data["states"][lane["states"][span].as_u64().unwrap() as usize][0], "nagle");
        seen += 1;
    }
    assert_eq!(seen, 20);
    // The headline, the row of the account and the evidence lead there; the account's rule is its own.
    assert!(page.matches("href=\"#events-1\"").count() >= 2, "{page}");
    assert!(page.contains("id=\"rule-flows-held-by-nagle-delayed-ack\""));
    assert!(page.replace('\u{a0}', " ").contains("20 events on 1 lane, 820 ms in all"));
    assert!(page.contains("its delayed-ACK timer sends it, 40 ms later."), "the document's words");
}

#[test]
fn a_page_opens_with_the_longest_event_of_its_cause() {
    // Another flow has a longer wait, for its own reason.
    let capture = held_beside(400 * MS);
    let judged = judged(&capture);
    assert_eq!(judged.report.findings[0].cause, "nagle-delayed-ack");
    let data = unpacked(&html(&judged, &capture).unwrap());
    assert_eq!(data["opensAt"], serde_json::json!([0, (41 * MS + 41 * MS / 4) / 100]));
}

#[test]
fn names_of_calls_may_be_broken() {
    let pages = reports::all().into_iter().map(|(_, report)| formed(html, &report, &empty_capture()).unwrap());
    assert!(pages.into_iter().any(|page| page.contains("<th scope=\"row\">epoll_<wbr>wait")));
}

#[test]
fn a_page_of_nothing_has_no_timeline() {
    let page = formed(html, &reports::empty(), &empty_capture()).unwrap();
    assert!(page.contains("Insufficient evidence"));
    assert!(!page.contains("id=\"timeline\""));
}
