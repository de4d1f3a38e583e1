//! Who runs on a CPU while requests wait for it.

use std::process::Command;

use parshall_evidence::HopKind;

use crate::common::{has, start_lines, undisturbed};
use crate::follow::{Chain, observe, ready, targets};

#[test]
fn who_uses_the_cpu_instead_is_named() {
    let what = "who uses the CPU instead";
    if !ready(what) || !has(&["taskset"], what) {
        return;
    }
    let chain = Chain::start_in(&["taskset", "-c", "0", "python3"], &["serve", "127.0.0.1"], 1);
    chain.load();
    let spins = "echo spins; end=$((SECONDS+20)); while [ $SECONDS -lt $end ]; do :; done";
    let (hog, _) = start_lines(Command::new("taskset").args(["-c", "0", "bash", "-c", spins]), 1);
    let Some(capture) = undisturbed(what, || observe(&["--port", &chain.port.to_string()])) else { return };
    let found = targets(&capture, HopKind::RunQueue);
    let named = format!("bash {}", hog.pid());
    assert!(found.contains(&named.as_str()), "{found:?}, not {named}");
    assert!(!found.iter().any(|target| target.starts_with("thread ")), "{found:?}");
}
