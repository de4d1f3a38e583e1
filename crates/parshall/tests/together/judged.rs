//! All recordings with their reports: each is read and judged once for all tests that look at them.
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{common, docket, recordings};
use parshall_core::judge::judge;
use parshall_core::mask::masked;
use parshall_evidence::Report;

/// Of the recordings, one in so many is also judged under pseudonyms by `make test`.
const MASKED_EACH: usize = 8;

pub struct Judged {
    pub name: String,
    /// Its recording.
    file: PathBuf,
    of_docket: bool,
    pub has_timeline: bool,
    pub report: Report,
}

static ALL: LazyLock<Vec<Judged>> = LazyLock::new(|| {
    let of_docket = docket::files().map(|(name, file)| (true, name, file));
    let of_faults = recordings::files().map(|(name, file)| (false, name, file));
    let files: Vec<(bool, String, PathBuf)> = of_docket.chain(of_faults).collect();
    on_all_cpus(&files, |(of_docket, name, file)| {
        let capture = common::capture(file);
        let (name, has_timeline) = (name.clone(), capture.timeline.is_some());
        Judged { name, file: file.clone(), of_docket: *of_docket, has_timeline, report: judge(&capture) }
    })
});

/// In the order of their names, those of the docket first.
pub fn all() -> &'static [Judged] {
    &ALL
}

/// Those of the faults of the lab and of healthy services.
pub fn of_faults() -> impl Iterator<Item = &'static Judged> {
    all().iter().filter(|judged| !judged.of_docket)
}

pub fn of_docket() -> impl Iterator<Item = &'static Judged> {
    all().iter().filter(|judged| judged.of_docket)
}

/// Maps on as many threads as there are CPUs; the results are in the order of `items`.
fn on_all_cpus<T: Sync, R: Send>(items: &[T], map: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        numbers.map_while(|n| items.get(n).map(|item| (n, map(item)))).collect::<Vec<_>>()
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    done.sort_by_key(|(n, _)| *n);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Judges each `each`th recording under pseudonyms.
fn masked_alike(each: usize) {
    let chosen: Vec<&Judged> = all().iter().step_by(each).collect();
    let told = |report: &Report| {
        let figures: Vec<_> = report.findings.iter().map(|f| (f.cause.clone(), f.share, f.lost_ms)).collect();
        (report.verdict.status, report.verdict.cause.clone(), report.verdict.confidence, figures)
    };
    let differences = on_all_cpus(&chosen, |open| {
        let hidden = judge(&masked(common::capture(&open.file)));
        let gaps = (&open.report.verdict.gaps, &hidden.verdict.gaps);
        let (before, after) = (told(&open.report), told(&hidden));
        (before != after).then(|| format!("{}: {before:?} is {after:?} under pseudonyms, {gaps:?}", open.name))
    });
    let wrong: Vec<String> = differences.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn masked_recordings_get_the_same_verdict() {
    masked_alike(MASKED_EACH);
}

#[test]
#[ignore = "make test-all"]
fn each_masked_recording_gets_the_same_verdict() {
    masked_alike(1);
}
