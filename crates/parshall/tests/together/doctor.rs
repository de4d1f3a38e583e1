//! `parshall doctor` on the host of the tests: it always succeeds, and both formats agree.

use crate::common::parshall;

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
