//! parshall on the stock kernels of Debian: what it reports in guests, compared with what is expected.
//!
//! - `guest`: boots a machine and returns what its script reports
//! - `expected`: the machines, the expectations, what was seen, and why that differs
//! - `checks`: from the reports to values that are compared
//! - `sockets`: the rows of each backend against those of ss
//! - `programs`: the BPF programs that each machine holds during an observation, in `programs.toml`
//! - `page`: docs/kernels.md, drawn from these files
//! - `guest/*.sh`: the scripts that run in the guests
//!
//! A kernel that could not be fetched is reported as skipped.
#![allow(clippy::unwrap_used)] // A panic in a test is its report.

#[path = "../common/mod.rs"]
mod common;

mod checks;
mod expected;
mod guest;
mod page;
mod programs;
mod sockets;

use checks::Values;
use common::Scratch;

/// The time after which a guest is killed: many times what it takes on a host that does nothing else.
const LIGHT_LIMIT_S: u32 = 1800;
const LIMIT_S: u32 = 5400;

/// What each machine shows. `make test` has the time for the first part of one, the oldest: this host has a new one.
fn light(machine: &str) {
    let mut machine = expected::machine(machine);
    // With one CPU theirs is a clock that does not depend on this host (`scripts/kernels`).
    if ["5.10", "6.1"].contains(&machine.kernel.as_str()) {
        machine.boot.extend(["--cpus", "1"].map(str::to_owned));
    }
    let parts = [include_str!("guest/light.sh"), include_str!("guest/observed.sh")];
    let parts = common::some_of(&parts, 1);
    let Some(reports) = guest::run(&machine, "light", &parts.join("\n"), &[], LIGHT_LIMIT_S) else {
        return;
    };
    let mut values = Values::new();
    checks::promised(&reports, &mut values);
    sockets::backends(&reports, &mut values);
    checks::tunnel(&reports, &mut values);
    if parts.len() > 1 {
        programs::compare(&machine, &reports);
        programs::explained(&reports, &mut values);
        checks::listener(&reports, &mut values);
        // Other suites may run at the same time.
        checks::verdicts(&reports, false, &mut values);
    }
    expected::compare(&machine, &values);
}

#[test]
fn linux_5_10() {
    light("5.10");
}

#[test]
#[ignore = "make test-all"]
fn linux_6_1() {
    light("6.1");
}

#[test]
#[ignore = "make test-all"]
fn linux_6_12() {
    light("6.12");
}

#[test]
#[ignore = "make test-all"]
fn the_newest_linux() {
    light("newest");
}

#[test]
#[ignore = "make test-all"]
fn linux_6_12_locked_down() {
    light("6.12 lockdown");
}

#[test]
#[ignore = "make test-all"]
fn linux_6_12_without_tcp_diag() {
    light("6.12 without tcp_diag");
}

#[test]
#[ignore = "make test-all"]
fn linux_6_12_without_btf() {
    light("6.12 without BTF");
}

/// Faults of the lab.
fn verdicts(machine: &str) {
    let machine = expected::machine(machine);
    let Some(reports) = guest::run(&machine, "verdicts", include_str!("guest/verdicts.sh"), &[], LIMIT_S) else {
        return;
    };
    let mut values = Values::new();
    checks::verdicts(&reports, true, &mut values);
    expected::compare(&machine, &values);
}

/// Testbeds by the lab's emulator and by netem.
fn testbeds(machine: &str) {
    let machine = expected::machine(machine);
    let Some(reports) = guest::run(&machine, "lab", include_str!("guest/lab.sh"), &[], LIMIT_S) else { return };
    let mut values = Values::new();
    checks::testbeds(&reports, &mut values);
    expected::compare(&machine, &values);
}

/// A service that uses io_uring.
fn uring(machine: &str) {
    let machine = expected::machine(machine);
    let what = format!("io_uring on the kernel {}", machine.kernel);
    if !common::has(&["gcc"], &what) {
        return;
    }
    let scratch = Scratch::new();
    let program = common::built(&scratch, &["gcc", "-O1", "-static"], "uring.c");
    let with = [(program.into(), "/usr/bin/uring".to_owned())];
    let Some(reports) = guest::run(&machine, "uring", include_str!("guest/uring.sh"), &with, LIMIT_S) else { return };
    let mut values = Values::new();
    checks::uring(&reports, &mut values);
    expected::compare(&machine, &values);
}

/// The relay, the tunnel, the sockets and a part of the probes by their own suites.
fn suites(machine: &str) {
    let machine = expected::machine(machine);
    let binaries = guest::suites(&["relay", "tunnel", "together", "sockets", "probes"]);
    let path = Scratch::new();
    std::fs::write(path.file("path"), common::PARSHALL).unwrap();
    let mut with = vec![(path.file("path"), "/etc/parshall-path".to_owned())];
    with.extend(binaries.into_iter().map(|(name, binary)| (binary, format!("/usr/bin/{name}"))));
    let script = include_str!("guest/suites.sh");
    let Some(reports) = guest::run(&machine, "suites", script, &with, LIMIT_S) else { return };
    let mut values = Values::new();
    checks::suites(&reports, &mut values);
    expected::compare(&machine, &values);
}

/// The same on arm64, by the program that `scripts/dist --arch aarch64 --trial` builds.
fn arm64(machine: &str) {
    let machine = expected::machine(machine);
    let Some(reports) = guest::run(&machine, "arm64", include_str!("guest/arm64.sh"), &[], LIMIT_S) else { return };
    let mut values = Values::new();
    checks::promised(&reports, &mut values);
    checks::listener(&reports, &mut values);
    // Without their confidence: it differed from run to run when their clock was that of the slow emulation.
    checks::verdicts(&reports, false, &mut values);
    checks::transfers(&reports, &mut values);
    checks::tunnel(&reports, &mut values);
    sockets::of_load(&reports, &mut values);
    expected::compare(&machine, &values);
}

/// A test of each kind for each machine, with the name of the machine.
macro_rules! long {
    ($($module:ident = $machine:literal: $($kind:ident)*;)*) => {
        $(mod $module {
            $(#[test]
            #[ignore = "make test-all"]
            fn $kind() {
                super::$kind($machine);
            })*
        })*
    };
}

long! {
    on_5_10 = "5.10": verdicts testbeds suites uring;
    on_6_1 = "6.1": verdicts testbeds suites uring;
    on_6_12 = "6.12": verdicts testbeds suites uring;
    on_newest = "newest": verdicts testbeds suites uring;
    on_arm64_6_1 = "6.1 arm64": arm64;
    on_arm64_6_12 = "6.12 arm64": arm64;
    on_arm64_6_12_16k = "6.12 arm64 16k": arm64;
    without_tcp_diag = "6.12 without tcp_diag": verdicts;
    without_btf = "6.12 without BTF": verdicts;
}
