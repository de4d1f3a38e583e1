//! Experiments from the file to the verdict: small commands whose numbers are known, interrupted, resumed and compared.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{self, Done, PARSHALL, Scratch, finish};
use serde_json::Value;

/// Prints `rate: N`: B is as much faster as `gain` says, and trials differ by up to 10 %. A file counts the trials, so that the
/// numbers are the same in each run.
fn ab(scratch: &Scratch, name: &str, gain: f64) -> PathBuf {
    let counter = scratch.file(&format!("{name}.count"));
    let script = format!(
        "n=$(wc -l < {0}); echo >> {0}; awk -v n=$n -v v={{factor}} 'BEGIN {{ printf \"rate: %f\\n\", v * (1000 + n * 7919 % 100) }}'",
        counter.display()
    );
    std::fs::write(&counter, "").unwrap();
    write(
        scratch,
        name,
        &format!(
            "variable = {{ name = \"factor\", a = 1, b = {gain} }}
command = [\"sh\", \"-c\", '''{script}''']
seed = 5
limits = {{ steal = \"off\" }}
[[metric]]
name = \"rate\"
unit = \"1/s\"
better = \"higher\"
regex = 'rate: ([0-9.]+)'
"
        ),
    )
}

fn write(scratch: &Scratch, name: &str, text: &str) -> PathBuf {
    let path = scratch.file(&format!("{name}.toml"));
    std::fs::write(&path, text).unwrap();
    path
}

fn lab(arguments: &[&str]) -> Done {
    finish(Command::new(PARSHALL).arg("lab").args(arguments))
}

fn run(kind: &str, file: &Path, more: &[&str]) -> Done {
    lab(&[&[kind, file.to_str().unwrap(), "--format", "json"], more].concat())
}

fn json(done: &Done) -> Value {
    serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("a document: {error}: {done:?}"))
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn trials(path: &Path) -> usize {
    lines(path).iter().filter(|line| line["record"] == "trial").count()
}

#[test]
fn the_verdict_decides_the_exit_code() {
    let scratch = Scratch::new();
    for (name, gain, verdict, code) in
        [("up", 1.5, "better", 0), ("down", 0.6, "worse", 3), ("none", 1.0, "inconclusive", 4)]
    {
        let done = run("ab", &ab(&scratch, name, gain), &["--blocks", "8"]);
        let report = json(&done);
        assert_eq!((report["ab"]["verdict"].as_str(), done.code), (Some(verdict), Some(code)), "{done:?}");
        assert_eq!(
            (report["schema"].as_str(), report["complete"].as_bool()),
            (Some("parshall.lab-experiment/1"), Some(true))
        );
        assert_eq!((report["ab"]["blocks"].as_u64(), report["trials"].as_array().map(Vec::len)), (Some(8), Some(24)));
        let effect = &report["ab"]["metrics"][0]["effect"];
        let (low, high) = (effect["low"].as_f64().unwrap(), effect["high"].as_f64().unwrap());
        assert!(low < gain - 1.0 + 0.01 && gain - 1.0 - 0.01 < high, "{effect}");
        assert_eq!(trials(&scratch.file(&format!("{name}.results.jsonl"))), 24);
    }
}

#[test]
fn reports_are_text_and_markdown_and_pictures_too() {
    let scratch = Scratch::new();
    let file = ab(&scratch, "up", 1.5);
    let file = file.to_str().unwrap();
    let pictures = scratch.file("pictures");
    let html = scratch.file("page.html");
    let to = ["--pictures", pictures.to_str().unwrap(), "--html", html.to_str().unwrap()];
    let text = lab(&[&["ab", file, "--blocks", "8"][..], &to].concat());
    assert!(text.stdout.contains("BETTER") && text.stdout.contains("A = 1, B = 1.5"), "{}", text.stdout);
    let picture = std::fs::read_to_string(pictures.join("trials-rate.svg")).unwrap();
    assert_eq!(picture.matches("<circle").count(), 24);
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.contains("<h2>BETTER</h2>") && page.matches("<circle").count() == 24, "{page}");
    let markdown = lab(&["ab", file, "--blocks", "8", "--format", "markdown"]);
    assert!(
        markdown.stdout.contains("**BETTER.**") && markdown.stdout.contains("| 7 | A again |"),
        "{}",
        markdown.stdout
    );
}

/// A trial waits for another one to be there, and says whether it came: each leaves a mark, so that pairs leave an even number. The
/// first one of each value, which shows that the command works, is alone.
#[test]
fn a_duet_runs_two_trials_at_a_time() {
    let scratch = Scratch::new();
    let here = scratch.file("here");
    std::fs::create_dir(&here).unwrap();
    let script = format!(
        "mkdir {1}-{{rate}} 2>/dev/null && echo met: 1 rate: {{rate}} && exit; mktemp -d {0}/XXXXXX >/dev/null; met=0; \
         for n in $(seq 5000); do [ $(($(ls {0} | wc -l) % 2)) = 0 ] && met=1 && break; sleep 0.02; done; \
         echo met: $met rate: {{rate}}",
        here.display(),
        scratch.file("first").display()
    );
    let text = format!(
        "variable = {{ name = \"rate\", a = 100, b = 150 }}
command = [\"sh\", \"-c\", '''{script}''']
timeout = \"10m\"
limits = {{ steal = \"off\" }}
[[metric]]
name = \"rate\"
better = \"higher\"
regex = 'rate: ([0-9.]+)'
[[metric]]
name = \"met\"
better = \"neither\"
regex = 'met: ([01])'
"
    );
    let file = write(&scratch, "duet", &text);
    let done = run("ab", &file, &["--blocks", "8", "--duet"]);
    let report = json(&done);
    assert_eq!((report["ab"]["verdict"].as_str(), done.code), (Some("better"), Some(0)), "{done:?}");
    let trials = report["trials"].as_array().unwrap();
    assert!(trials.iter().all(|trial| trial["metrics"]["met"] == 1.0), "{done:?}");
    for role in ["a", "b", "control", "beside"] {
        assert_eq!(trials.iter().filter(|trial| trial["role"] == role).count(), 8, "{role}: {done:?}");
    }
    let strict = text.replace("steal = \"off\"", "other_cpu = \"20%\"");
    let done = run("ab", &write(&scratch, "strict", &strict), &["--duet"]);
    assert!(done.stderr.contains("other_cpu") && done.code != Some(0), "{done:?}");
}

#[test]
fn a_duet_of_which_one_fails_ends_at_once_with_its_reason() {
    let scratch = Scratch::new();
    let failed = scratch.file("failed");
    // Beside 150, 100 would go on until its timeout, which tells nothing. The first pair may be two of 100.
    let script = format!(
        "[ {{rate}} = 150 ] && touch {0} && exit 3; for n in $(seq 50); do [ -e {0} ] && exec sleep 600; sleep 0.02; done; echo rate: {{rate}}",
        failed.display()
    );
    let text = format!(
        "variable = {{ name = \"rate\", a = 100, b = 150 }}
command = [\"sh\", \"-c\", '{script}']
timeout = \"10m\"
limits = {{ steal = \"off\" }}
[[metric]]
name = \"rate\"
better = \"higher\"
regex = 'rate: ([0-9.]+)'
"
    );
    let done = run("ab", &write(&scratch, "one", &text), &["--blocks", "8", "--duet"]);
    let why = "the trial of `150` failed: it ended with exit status: 3";
    assert!(done.code == Some(1) && done.stderr.contains(why), "{done:?}");
}

#[test]
fn a_check_runs_nothing() {
    let scratch = Scratch::new();
    let file = ab(&scratch, "up", 1.5);
    let done = lab(&["ab", file.to_str().unwrap(), "--check"]);
    assert!(done.code == Some(0) && done.stdout.contains("is right"), "{done:?}");
    assert_eq!(std::fs::read_to_string(scratch.file("up.count")).unwrap(), "");
    assert!(!scratch.file("up.results.jsonl").exists());
    let (error, hint) = (run("sweep", &file, &[]), "use: parshall lab ab");
    assert!(error.error_and_hint().1.contains(hint), "{error:?}");
    let broken = write(&scratch, "broken", "variable = 3\n");
    let done = lab(&["ab", broken.to_str().unwrap(), "--check"]);
    assert!(done.error_and_hint().0.contains("broken.toml:1: "), "{done:?}");
}

#[test]
fn an_interrupted_run_goes_on_where_it_was() {
    let scratch = Scratch::new();
    let file = ab(&scratch, "up", 1.5);
    let results = scratch.file("up.results.jsonl");
    let mut command = Command::new(PARSHALL);
    command.args(["lab", "ab", file.to_str().unwrap(), "--blocks", "8"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let give_up = Instant::now() + Duration::from_secs(60);
    while trials(&results) < 5 {
        assert!(Instant::now() < give_up, "no trials");
        std::thread::sleep(Duration::from_millis(5));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(130), 0), "{stderr}");
    assert!(stderr.contains("--resume") && !stderr.contains("error:"), "{stderr}");
    let kept = trials(&results);
    assert!((5..24).contains(&kept));

    let report = json(&run("ab", &file, &["--resume"]));
    assert_eq!((report["ab"]["verdict"].as_str(), report["ab"]["blocks"].as_u64()), (Some("better"), Some(8)));
    // At most the trials of the block that was interrupted were made in vain.
    assert!((24..=26).contains(&trials(&results)), "{}", trials(&results));
    assert_eq!(lines(&results).iter().filter(|line| line["record"] == "run").count(), 1);

    let again = run("ab", &file, &["--resume"]);
    assert!(again.error_and_hint().0.contains("holds no interrupted run"), "{again:?}");
}

#[test]
fn a_killed_run_loses_no_trial() {
    let scratch = Scratch::new();
    let file = ab(&scratch, "up", 1.5);
    let results = scratch.file("up.results.jsonl");
    let mut command = Command::new(PARSHALL);
    let mut child =
        command.args(["lab", "ab", file.to_str().unwrap(), "--blocks", "8"]).stderr(Stdio::null()).spawn().unwrap();
    let give_up = Instant::now() + Duration::from_secs(60);
    while trials(&results) < 4 {
        assert!(Instant::now() < give_up, "no trials");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let kept: Vec<Value> = lines(&results);
    let report = json(&run("ab", &file, &["--resume"]));
    assert_eq!((report["ab"]["verdict"].as_str(), report["ab"]["blocks"].as_u64()), (Some("better"), Some(8)));
    assert_eq!(lines(&results)[..kept.len()], kept);
}

#[test]
fn another_experiment_is_not_resumed() {
    let scratch = Scratch::new();
    let file = ab(&scratch, "up", 1.5);
    let results = scratch.file("up.results.jsonl");
    run("ab", &file, &["--blocks", "8"]);
    let text = std::fs::read_to_string(&results).unwrap();
    let unfinished: Vec<&str> = text.lines().filter(|line| !line.contains("\"record\":\"end\"")).collect();
    std::fs::write(&results, unfinished.join("\n")).unwrap();
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + "# a change\n").unwrap();
    let done = run("ab", &file, &["--resume"]);
    assert!(done.error_and_hint().0.contains("up.toml has changed"), "{done:?}");
}

#[test]
fn a_trial_that_fails_ends_the_run_and_what_was_measured_is_kept() {
    let scratch = Scratch::new();
    let file = ab(&scratch, "up", 1.5);
    let counter = scratch.file("up.count");
    let text = std::fs::read_to_string(&file).unwrap();
    let fails = format!("test $(wc -l < {}) -lt 9 || {{ echo no luck >&2; exit 7; }}; n=$(wc", counter.display());
    std::fs::write(&file, text.replace("n=$(wc", &fails)).unwrap();
    let done = run("ab", &file, &[]);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("exit status: 7") && done.stderr.contains("no luck"), "{done:?}");
    assert!(done.stderr.contains("7 trials kept") && done.stderr.contains("hint: "), "{done:?}");
    assert_eq!(trials(&scratch.file("up.results.jsonl")), 7);

    let slow = text.replace("seed = 5", "seed = 5\ntimeout = \"200ms\"").replace("n=$(wc", "sleep 60; n=$(wc");
    std::fs::write(&file, slow).unwrap();
    let done = run("ab", &file, &[]);
    assert!(done.error_and_hint().0.contains("took longer than 200ms"), "{done:?}");
}

#[test]
fn runs_are_compared_on_like_hosts_only() {
    let scratch = Scratch::new();
    let file = ab(&scratch, "up", 1.5);
    let results = scratch.file("up.results.jsonl");
    run("ab", &file, &["--blocks", "8"]);
    run("ab", &file, &["--blocks", "8"]);
    let path = results.to_str().unwrap();
    let same = lab(&["compare", path, "--format", "json"]);
    assert_eq!((same.code, json(&same)["lines"][0]["verdict"].as_str()), (Some(0), Some("no-difference")), "{same:?}");

    // The program of B is slower than it was. The variable is still the same, so the script changes.
    let slower = std::fs::read_to_string(&file).unwrap().replace("v * (", "(v > 1 ? 1.2 : 1) * (");
    std::fs::write(&file, slower).unwrap();
    run("ab", &file, &["--blocks", "8"]);
    let worse = lab(&["compare", path, "--format", "json"]);
    assert_eq!((worse.code, json(&worse)["lines"][0]["verdict"].as_str()), (Some(3), Some("worse")), "{worse:?}");
    assert!(lab(&["compare", path]).stdout.contains("WORSE"));

    let other = scratch.file("other.jsonl");
    let text = std::fs::read_to_string(&results).unwrap();
    std::fs::write(&other, text.replace("\"cpus\":", "\"cpus\":9")).unwrap();
    let refused = lab(&["compare", path, other.to_str().unwrap()]);
    assert!(refused.error_and_hint().0.contains("the hosts of the two runs differ: CPUs"), "{refused:?}");
}

#[test]
fn a_sweep_finds_the_knee_and_the_collapse() {
    let scratch = Scratch::new();
    let file = write(
        &scratch,
        "sweep",
        r#"variable = { name = "buffer", values = ["4KiB", "16KiB", "64KiB", "256KiB", "1MiB", "4MiB"] }
command = ["sh", "-c", '''case {buffer} in 4KiB) v=20;; 16KiB) v=60;; 4MiB) v=50;; *) v=100;; esac; echo "{\"rate\": $v}"''']
passes = 5
limits = { steal = "off" }
[[metric]]
name = "rate"
unit = "B/s"
better = "higher"
json = "/rate"
"#,
    );
    let done = run("sweep", &file, &["--pictures", scratch.file("p").to_str().unwrap()]);
    let report = json(&done);
    let curve = &report["curves"][0];
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(
        (curve["knee"]["at"].as_str(), curve["collapse"]["at"].as_str()),
        (Some("64KiB"), Some("4MiB")),
        "{curve}"
    );
    assert_eq!((curve["passes"].as_u64(), curve["points"][0]["number"].as_f64()), (Some(5), Some(4096.0)));
    assert!(std::fs::read_to_string(scratch.file("p/curve-rate.svg")).unwrap().contains("knee at 64KiB"));
    assert!(report["summary"].as_str().is_some_and(|text| text.contains("It falls off from 4MiB on")), "{report}");
}

#[test]
fn trials_run_in_a_testbed_of_their_own() {
    if !common::root("experiments in a testbed") {
        return;
    }
    let scratch = Scratch::new();
    let file = write(
        &scratch,
        "veth",
        // On a busy host the time may be over before anything was sent.
        r#"variable = { name = "bytes", a = 256, b = 65536 }
command = ["sh", "-c", '''
until result=$("{parshall}" lab load stream --connect {addr}:{port} --write-bytes {bytes} --for 400ms --format json)
    echo "$result" | grep -q '"bytes": *[1-9]'; do :; done
echo "$result"''']
wire = { kind = "veth" }
blocks = 8
limits = { steal = "off" }
[[process]]
name = "server"
side = "server"
command = ["{parshall}", "lab", "load", "stream", "--serve", "{addr}:{port}", "--for", "{for}", "--format", "json"]
[[metric]]
name = "throughput"
unit = "B/s"
better = "higher"
json = "/bytes_per_s"
[[metric]]
name = "demand"
unit = "ns/B"
better = "lower"
measure = "cpu-time"
of = "all"
per = "bytes"
scale = 1e9
[[metric]]
name = "bytes"
unit = "B"
better = "neither"
json = "/bytes"
"#,
    );
    let done = run("ab", &file, &[]);
    let report = json(&done);
    // On a busy host A may differ from its repeat, and then the answer is refused, whatever B does.
    let answer = (report["ab"]["verdict"].as_str(), done.code);
    assert!([(Some("better"), Some(0)), (Some("control-differs"), Some(4))].contains(&answer), "{answer:?}");
    assert!(report["ab"]["metrics"][0]["effect"]["low"].as_f64().unwrap() > 1.0, "{}", report["ab"]["metrics"][0]);
    let demand = &report["ab"]["metrics"][1];
    assert!(demand["name"] == "demand" && demand["effect"]["change"].as_f64().unwrap() < -0.5, "{demand}");
    let trial = &lines(&scratch.file("veth.results.jsonl"))[1];
    assert!(
        trial["cpu_s"]["server"].as_f64().unwrap() > 0.0 && trial["counters"]["TcpInSegs"].as_u64().unwrap() > 10,
        "{trial}"
    );
}

#[test]
fn the_setups_of_a_case_that_compares_can_run() {
    can_run(&[("missing-gbits", 5)]);
}

#[test]
#[ignore = "make test-all"]
fn the_setups_of_the_other_cases_that_compare_can_run() {
    can_run(&[("rcvbuf-collapse", 1), ("socket-collector", 3), ("uring-tunnel", 4)]);
}

/// Asserts that as many comparisons of these cases can run.
fn can_run(cases: &[(&str, usize)]) {
    let what = "the cases that compare";
    if !common::root(what) || !common::has(&["ip", "unshare", "mount"], what) {
        return;
    }
    for (name, comparisons) in cases {
        let done = lab(&["run", name, "--check"]);
        assert_eq!(done.code, Some(0), "{done:?}");
        let ready = done.stdout.lines().filter(|line| line.ends_with(" can run here")).count();
        assert_eq!(ready, *comparisons, "{name}: {done:?}");
    }
}
