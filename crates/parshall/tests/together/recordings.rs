//! Judges recorded captures of every fault and of healthy services. Needs neither root nor a particular kernel, and shows that
//! captures of earlier versions (`parshall.capture/1`) stay readable.
//!
//! `BLESS=1 cargo test -p parshall --test together recordings` (as root) makes the missing recordings. To repeat one, delete its file.
//! Otherwise keep old ones: they are captures of earlier versions.

use std::fs;
use std::path::PathBuf;
use std::sync::Once;

use crate::common::thin::thinned;
use crate::common::{self, Recipe, Scratch, parshall, recipes, verdict};
use crate::judged;
use parshall_core::judge::judge;

/// Recipes of healthy services that are recorded.
const HEALTHY: [&str; 5] = ["iperf3", "nginx", "python-asyncio", "redis", "rpc-echo"];
/// The most bytes of one file.
const BYTES_MAX: usize = 150_000;
const RECORD_TRIES: usize = 5;

fn wanted() -> Vec<Recipe> {
    let healthy = recipes("faults/controls").into_iter().filter(|recipe| HEALTHY.contains(&recipe.name.as_str()));
    recipes("faults").into_iter().chain(healthy).collect()
}

fn path(recipe: &Recipe) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/recordings/{}.json", recipe.name))
}

fn right(recipe: &Recipe, got: &str) -> bool {
    match &recipe.cause {
        Some(cause) => got == cause,
        None => matches!(got, "healthy" | "at-capacity" | "no-dominant-cause"),
    }
}

/// Reads the recordings in the order of their recipes. With BLESS it first makes the missing ones.
fn recordings() -> Vec<(Recipe, String)> {
    static BLESSED: Once = Once::new();
    BLESSED.call_once(|| {
        if std::env::var_os("BLESS").is_some() {
            wanted().iter().filter(|recipe| !path(recipe).exists()).for_each(record);
        }
    });
    let with_path = |recipe: Recipe| {
        let path = path(&recipe).to_str().unwrap().to_owned();
        (recipe, path)
    };
    wanted().into_iter().map(with_path).collect()
}

/// The names of the recipes and the files of their recordings.
pub fn files() -> impl Iterator<Item = (String, PathBuf)> {
    recordings().into_iter().map(|(recipe, path)| (recipe.name, path.into()))
}

#[test]
fn each_recording_gets_the_verdict_of_its_recipe() {
    let recordings = recordings();
    for (recipe, path) in &recordings {
        let size = fs::metadata(path).unwrap_or_else(|e| {
            panic!("{path}: {e}; record it: BLESS=1 cargo test -p parshall --test together recordings")
        });
        assert!(size.len() <= BYTES_MAX as u64, "{} has {} bytes", recipe.name, size.len());
    }
    let mut wrong = Vec::new();
    for ((recipe, _), judged) in recordings.iter().zip(judged::of_faults()) {
        assert_eq!(judged.name, recipe.name);
        let got = verdict(&judged.report);
        if !right(recipe, &got) {
            wrong.push(format!("{}: {got}, not {}", recipe.name, recipe.cause.as_deref().unwrap_or("healthy")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn text_and_json_agree() {
    for (recipe, path) in recordings() {
        let text = parshall(&["show", &path]);
        assert_eq!((text.code, text.stderr.as_str()), (Some(0), ""), "{}", recipe.name);
        if let Some(cause) = &recipe.cause {
            assert!(text.stdout.contains(&format!("({cause}, confidence ")), "{}", text.stdout);
            assert!(text.stdout.contains("\nFIX "), "{}", text.stdout);
        } else {
            assert!(!text.stdout.contains("\nCAUSE "), "{}", text.stdout);
        }
    }
}

#[test]
fn a_damaged_recording_is_an_error_and_no_panic() {
    let scratch = Scratch::new();
    let file = scratch.file("cut.json");
    let whole = fs::read(&recordings()[0].1).unwrap();
    let newer = String::from_utf8_lossy(&whole).replacen("parshall.capture/1", "parshall.capture/99", 1).into_bytes();
    assert_ne!(newer, whole);
    for bytes in [&whole[..whole.len() / 2], &whole[..1], b"", b"[]", b"{\"schema\":3}", b"\xff\xfe\x00", &newer] {
        fs::write(&file, bytes).unwrap();
        let shown = parshall(&["show", file.to_str().unwrap()]);
        assert_eq!(shown.code, Some(1), "{shown:?}");
        shown.error_and_hint();
    }
}

/// Runs a recipe until its verdict is right, both for the whole and for the thinned capture, and saves the latter.
fn record(recipe: &Recipe) {
    let scratch = Scratch::new();
    let file = scratch.file("capture.json");
    let name = file.to_str().unwrap();
    for _ in 0..RECORD_TRIES {
        let done = parshall(&["lab", "run", &recipe.name, "--for", "1500ms", "--format", "json", "--save", name]);
        if done.code != Some(0) || !file.exists() {
            continue;
        }
        let thin = thinned(common::capture(&file));
        let text = serde_json::to_string(&thin).unwrap();
        if text.len() <= BYTES_MAX && right(recipe, &verdict(&judge(&thin))) {
            fs::write(path(recipe), text).unwrap();
            return;
        }
    }
    panic!("{} could not be recorded: as root, with the programs it needs?", recipe.name);
}
