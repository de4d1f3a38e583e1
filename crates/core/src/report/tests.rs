//! Properties of each page, whatever the report.
use parshall_evidence::{FdKind, FlowState, Release, Role, Status};
use proptest::prelude::*;

use super::{Detail, Page};
use crate::judge::judge;
use crate::testkit::{FlowBuilder, MS, ThreadBuilder, arb, capture};

/// All sentences of a page in which a share could stand.
fn words(page: &Page) -> String {
    let mut words = vec![page.verdict.headline.clone()];
    words.extend(page.verdict.sentences.clone());
    words.extend(page.chain.iter().flat_map(|chain| &chain.rows).flat_map(|row| [row.who.clone(), row.does.clone()]));
    words.join("\n")
}

#[test]
fn a_page_gives_the_share_of_a_cause_once() {
    let held = FlowBuilder::new(1, Role::Client)
        .every(41 * MS, 0, 40 * MS, FlowState::Nagle, Release::RxAckDelayed)
        .talks_in_parts(24);
    let thread = ThreadBuilder::new(101).blocked(0, 900 * MS, "epoll_wait", FdKind::Anon);
    let report = judge(&capture(vec![held], vec![thread]));
    assert_eq!(report.verdict.status, Status::Cause);
    for detail in [Detail::Short, Detail::Full] {
        let page = Page::new(&report, detail);
        assert_eq!(words(&page).matches('%').count(), 1, "{page:#?}");
        assert!(page.verdict.headline.contains(" of the time in which 1 flow could move data"), "{page:#?}");
    }
}

#[test]
fn what_is_left_out_is_counted() {
    let mut report = judge(&capture(vec![FlowBuilder::new(1, Role::Server).talks(500, 100)], vec![]));
    report.blind = (0..5).map(|n| format!("Blind spot {n}.")).collect();
    let short = Page::new(&report, Detail::Short);
    let (_, notes) = short.notes.expect("notes");
    assert_eq!((notes.len(), short.more_notes.as_deref()), (3, Some("and 2 more with --full")));
    let all = report.ruled_out.len();
    let told = format!("{all} causes; {} could not be tested (--full lists them)", report.not_tested.len());
    assert_eq!(short.listed[0].summary.as_deref(), Some(told.as_str()));
    let full = Page::new(&report, Detail::Full);
    assert_eq!((full.notes.expect("notes").1.len(), full.more_notes), (5, None));
    let titles: Vec<&str> = full.listed.iter().map(|list| list.title.0).collect();
    assert_eq!(titles, ["RULED OUT", "NOT TESTED"]);
}

proptest! {
    #[test]
    fn a_short_page_is_short_and_a_full_one_whole(capture in arb::capture()) {
        let report = judge(&capture);
        let short = Page::new(&report, Detail::Short);
        prop_assert!(short.time.len() <= 1 && short.time.iter().all(|bars| bars.rows.len() <= 5), "{:#?}", short.time);
        prop_assert!(short.evidence.is_none() && short.notes.iter().all(|(_, notes)| notes.len() <= 3));
        for bars in &short.time {
            let sum: f64 = bars.rows.iter().map(|row| row.share).sum();
            prop_assert!((sum - 1.0).abs() < 0.02, "{:#?}", bars);
        }
        let full = Page::new(&report, Detail::Full);
        prop_assert_eq!(&short.verdict.headline, &full.verdict.headline);
        prop_assert!(full.time.len() >= short.time.len());
        let seen = report.ruled_out.iter().filter(|entry| entry.seen).count();
        let listed = full.listed.iter().filter(|list| list.title.0 == "RULED OUT").flat_map(|list| &list.items);
        let names: usize = listed.map(|item| item.split_once(" (").map_or(0, |(names, _)| names.split(", ").count())).sum();
        prop_assert_eq!(names, seen);
    }
}
