//! A guest: a kernel of Debian under qemu, and what a script in it reports. `scripts/kernels` makes and boots it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::common::{PARSHALL, has, skip};
use crate::expected::Machine;

/// Guests at once. Each keeps one CPU busy.
const AT_ONCE: usize = 2;

/// The output of a command in the guest.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Reported {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// The reports of a guest by name.
pub type Reports = BTreeMap<String, Reported>;

/// Something that a guest has beside the programs of `scripts/kernels`: a file or directory of the host, and its path there.
pub type With = (PathBuf, String);

/// Boots a machine and runs a script of `guest/`, with this name, in it. None, with a reported skip, where the kernel or qemu is missing.
pub fn run(machine: &Machine, name: &str, script: &str, with: &[With], limit_s: u32) -> Option<Reports> {
    let what = format!("parshall on the kernel {} of scripts/kernels", machine.kernel);
    if cfg!(not(target_arch = "x86_64")) {
        skip(&what, "the guests are made on x86_64");
        return None;
    }
    let qemu = if machine.is_arm64() { "qemu-system-aarch64" } else { "qemu-system-x86_64" };
    if !has(&[qemu, "busybox", "cpio", "setpriv", "timeout"], &what) {
        return None;
    }
    if let Err(why) = there(&machine.kernel) {
        skip(&what, &format!("it is not there: {why}"));
        return None;
    }
    let Some(parshall) = parshall(machine) else {
        skip(&what, "its program is not there: scripts/dist --arch aarch64 --trial makes it");
        return None;
    };
    let _turn = Turn::take();
    // They stay until the next run, for whoever wants to know more than the test says.
    let logs =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/kernels/logs").join(machine.name.replace(' ', "-"));
    std::fs::create_dir_all(&logs).unwrap();
    let [file, console, report] = ["sh", "console", "report"].map(|kind| logs.join(format!("{name}.{kind}")));
    std::fs::write(&file, format!("{}\n{script}\necho end 0 0 0 >/dev/ttyS1\n", include_str!("guest/common.sh")))
        .unwrap();
    // A guest does not outlive the test: every process between it and this thread dies with its parent.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL"])
        .arg(project_script("kernels"))
        .args(["boot", &machine.kernel])
        .args(&machine.boot);
    command.args(["--memory", "1536", "--limit", &limit_s.to_string()]);
    command.arg("--with").arg(format!("{}=/usr/bin/parshall", parshall.display()));
    if !machine.is_arm64() {
        let own = std::env::current_exe().unwrap();
        command.arg("--with").arg(format!("{}=/usr/bin/kernels", own.display()));
    }
    for (from, to) in with {
        command.arg("--with").arg(format!("{}={to}", from.display()));
    }
    command.arg("--console").arg(&console).arg("--report").arg(&report).arg(&file);
    let mut once = || {
        // A guest that is not even booted must not report what an earlier one did.
        for file in [&report, &console] {
            let _ = std::fs::remove_file(file);
        }
        let done = command.stdin(Stdio::null()).output().unwrap();
        (done, parse(&std::fs::read(&report).unwrap_or_default()))
    };
    let (mut done, mut reports) = once();
    // A kernel that stopped before the script began says nothing about parshall.
    if reports.is_empty() {
        (done, reports) = once();
    }
    assert!(
        reports.contains_key("end"),
        "the guest {} ended early or was killed after {limit_s} s ({}): {}\nits last reports: {:?}\nits console:\n{}",
        machine.name,
        done.status,
        String::from_utf8_lossy(&done.stderr),
        reports.keys().collect::<Vec<_>>(),
        last_lines(&console),
    );
    Some(reports)
}

/// The program that is tested. That of arm64 is built by scripts/check, as cargo has built only that of this host.
fn parshall(machine: &Machine) -> Option<PathBuf> {
    if !machine.is_arm64() {
        return Some(PARSHALL.into());
    }
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/trial-aarch64/parshall");
    built.exists().then_some(built)
}

fn project_script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(name)
}

/// The binaries of other suites with their names, which are built where that is needed.
pub fn suites(names: &[&str]) -> Vec<(String, PathBuf)> {
    let mut command = Command::new(project_script("suites"));
    // scripts/suites sets it for the tests. Build scripts look at it, so all would be built again.
    command.arg("--list").env_remove("RUSTC_BOOTSTRAP").stdin(Stdio::null());
    let list = command.output().unwrap();
    assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let binary = |name: &&str| {
        let line = list.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        let (_, binary) =
            line.and_then(|line| line.split_once(' ')).unwrap_or_else(|| panic!("no suite {name}: {list}"));
        ((*name).to_owned(), PathBuf::from(binary))
    };
    names.iter().map(binary).collect()
}

/// Whether a kernel was fetched, or why not.
fn there(kernel: &str) -> Result<(), String> {
    let list = Command::new(project_script("kernels")).arg("list").output().unwrap();
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let line = list.lines().find_map(|line| line.strip_prefix(&format!("{kernel}: ")));
    match line.map(|line| line.strip_prefix("missing: ")) {
        Some(None) => Ok(()),
        Some(Some(why)) => Err(why.to_owned()),
        None => panic!("scripts/kernels has no kernel {kernel}: {list}"),
    }
}

fn last_lines(console: &Path) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(console).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

/// Splits what came over the serial port (`guest/common.sh`). Output behind an incomplete report is left out.
fn parse(mut bytes: &[u8]) -> Reports {
    let mut reports = Reports::new();
    while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
        bytes = &bytes[end + 1..];
        let [name, code, out, err] = line.split(' ').collect::<Vec<_>>()[..] else { break };
        let (Ok(code), Ok(out), Ok(err)) = (code.parse(), out.parse::<usize>(), err.parse::<usize>()) else { break };
        let Some((output, rest)) = out.checked_add(err).and_then(|size| bytes.split_at_checked(size)) else { break };
        let [stdout, stderr] = [&output[..out], &output[out..]].map(|part| String::from_utf8_lossy(part).into_owned());
        reports.insert(name.to_owned(), Reported { code, stdout, stderr });
        bytes = rest;
    }
    reports
}

/// The right to run a guest.
struct Turn;

static TURNS: (Mutex<usize>, Condvar) = (Mutex::new(AT_ONCE), Condvar::new());

impl Turn {
    fn take() -> Self {
        let free = TURNS.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = TURNS.1.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TURNS.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        TURNS.1.notify_one();
    }
}

#[test]
fn reports_are_split_and_an_incomplete_one_is_left_out() {
    let reports = parse(b"a 0 3 2\none\nx\nb 1 0 0\nc 0 9 0\ncut");
    let reported = |code, stdout: &str, stderr: &str| Reported { code, stdout: stdout.into(), stderr: stderr.into() };
    let a = ("a".to_owned(), reported(0, "one", "\nx"));
    assert_eq!(reports, Reports::from([a]), "the sizes of `a` are wrong by one, so the line after it is no report");
    let reports = parse(b"a 0 4 2\none\nx\nb 1 0 0\nc 0 9 0\ncut");
    let a = ("a".to_owned(), reported(0, "one\n", "x\n"));
    assert_eq!(reports, Reports::from([a, ("b".to_owned(), reported(1, "", ""))]));
}
