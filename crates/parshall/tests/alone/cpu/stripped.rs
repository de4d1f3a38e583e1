//! A program whose symbols are stripped.

use std::process::Command;

use crate::common::{self, Scratch, built, finish, has, parshall, undisturbed, verdict};

#[test]
fn a_program_without_symbols() {
    let what = "stacks of a stripped program";
    if !has(&["cc", "strip"], what) || !common::btf(what) {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.file("case.json");
    let program = built(&scratch, &["cc", "-O1", "-fno-omit-frame-pointer"], "stripped.c");
    assert_eq!(finish(Command::new("strip").arg(&program)).code, Some(0));
    let (running, _) = common::serve_with(&mut Command::new(&program));
    let pid = running.pid().to_string();
    let attach = ["attach", "--pid", &pid, "--for", "1s", "--format", "json", "--save", file.to_str().unwrap()];
    let Some(done) = undisturbed(what, || parshall(&attach)) else { return };
    let report = done.orderly().report();
    assert_eq!(verdict(&report), "user-cpu-bound", "{report:#?}");
    let capture = common::capture(&file);
    let frames = capture.stacks.iter().flat_map(|stack| &stack.frames).filter(|frame| !frame.kernel);
    let own: Vec<&str> = frames.filter(|f| f.module.ends_with("stripped")).map(|f| f.name.as_str()).collect();
    assert!(own.iter().any(|name| name.starts_with("0x")), "addresses in place of names: {:?}", capture.stacks);
    assert!(own.iter().all(|name| !name.contains("a_name_that_strip_removes")), "{own:?}");
}
