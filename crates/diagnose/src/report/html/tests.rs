//! Pages of the sample reports, and of a capture with a timeline.
use std::io::Read;

use parshall_core::testkit::empty_capture;
use parshall_core::testkit::timeline::{Script, served_socket};
use parshall_evidence::timeline::Waker;
use parshall_evidence::{Capture, Frame, Stack};
use serde_json::Value;

use super::*;
use crate::testkit::reports;

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

#[test]
fn a_page_says_what_the_text_says() {
    for (name, report) in reports::all() {
        let found = html(&report, &empty_capture()).unwrap();
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
            assert!(found.contains(&escaped(words)), "{name}: {words}");
        }
    }
}

#[test]
fn nothing_is_fetched_and_only_its_own_script_and_style_may_run() {
    let page = html(&reports::all()[0].1, &capture("worker")).unwrap();
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
        let page = html(&reports::all()[0].1, &capture(hostile)).unwrap();
        assert!(!page.contains(hostile), "{hostile:?}");
        let data = unpacked(&page);
        assert_eq!(data["lanes"][1]["name"], format!("{} 101", clean(hostile)));
        assert!(data["names"][0].as_str().unwrap().chars().all(parshall_core::text::is_printable));
    }
}

#[test]
fn the_data_of_a_page_are_columns_of_the_trace() {
    let data = unpacked(&html(&reports::all()[0].1, &capture("worker")).unwrap());
    assert_eq!(data["unitNs"], 100);
    let thread = &data["lanes"][1];
    assert_eq!((&thread["begins"], &thread["lengths"]), (&serde_json::json!([3_000]), &serde_json::json!([4_000])));
    let state = thread["states"][0].as_u64().unwrap() as usize;
    assert_eq!(data["states"][state][0], "futex");
    assert_eq!(data["stacks"][thread["stacks"][0].as_u64().unwrap() as usize - 1], serde_json::json!([0]));
}

#[test]
fn a_page_of_nothing_has_no_timeline() {
    let page = html(&reports::empty(), &empty_capture()).unwrap();
    assert!(page.contains("Insufficient evidence"));
    assert!(!page.contains("id=\"timeline\""));
}
