//! `parshall doctor` on the host of the tests: it always succeeds, and both formats agree.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::common::{Scratch, parshall};

fn doctor(arguments: &[&str]) -> String {
    let done = parshall(&[&["doctor"], arguments].concat());
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    done.stdout
}

#[test]
fn both_formats_agree() {
    let page = doctor(&[]);
    let document: serde_json::Value = serde_json::from_str(&doctor(&["--format", "json"])).unwrap();
    assert_eq!(document["schema"], "parshall.doctor/1");
    let origin = &document["origin"];
    assert_eq!(origin["command_line"], serde_json::json!(["parshall", "doctor", "--format", "json"]));
    assert_eq!((&origin["kernel"], &origin["version"]), (&document["kernel"], &env!("CARGO_PKG_VERSION").into()));
    assert!(origin["time"].as_str().unwrap().ends_with('Z') && !origin["host"].as_str().unwrap().is_empty());
    let rung = document["rung"].as_str().unwrap();
    assert!(page.contains(&format!("\nrung: {rung}\n")), "{page}");
    for check in document["checks"].as_array().unwrap() {
        let line = format!("{:<9}{}", check["state"].as_str().unwrap(), check["name"].as_str().unwrap());
        assert!(page.contains(&line), "{line}\n{page}");
        assert_eq!(check["state"] == "ok", check["cost"].is_null(), "{check}");
    }
}

#[test]
fn a_bundle_says_what_became_of_every_object_and_names_no_host() {
    let scratch = Scratch::new();
    let path = scratch.file("bundle.txt");
    let page = doctor(&["--bundle", path.to_str().unwrap(), "--color", "never"]);
    let bundle = fs::read_to_string(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let document: serde_json::Value = serde_json::from_str(&doctor(&["--format", "json"])).unwrap();
    for section in ["doctor", "host", "objects", "facts", "messages of libbpf"] {
        assert!(bundle.contains(&format!("== {section}\n")), "{bundle}");
    }
    let rung = format!("rung: {}", document["rung"].as_str().unwrap());
    assert!(page.contains(&rung) && bundle.contains(&rung), "{bundle}");
    let objects: Vec<&str> =
        bundle.lines().filter(|line| line.contains(": works") || line.contains(": refused: ")).collect();
    assert_eq!(objects.len(), 6, "{bundle}");
    let works = document["rung"] == "btf";
    assert_eq!(objects[0] == "probes of the rung btf: works", works, "{bundle}");
    assert_eq!(bundle.lines().any(|line| line == "    used: on_switch"), works, "{bundle}");
    let host = document["origin"]["host"].as_str().unwrap();
    assert!(host.len() < 4 || !bundle.contains(host), "{bundle}");

    let refused = parshall(&["doctor", "--bundle", "/nonexistent/bundle.txt"]);
    assert!(refused.error_and_hint().1.contains("give --bundle a path"), "{refused:?}");
    assert_eq!(refused.stdout, "");
}
