//! Each request opens a connection with a TLS handshake, and the CPU time of the handshakes is what the service is busy with.
//!
//! Look-alikes: connections without TLS (`connection-per-request`), TLS on kept connections (its ciphers cost little per request),
//! other computing (`user-cpu-bound`).
use parshall_evidence::Evidence;

use super::base::{Cause, Outcome, denied};
use super::user_cpu_bound;
use crate::judge::denial::{Denial, share};
use crate::judge::facts::Facts;
use crate::judge::handshakes;
use crate::judge::record;
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "handshake-per-request",
    title: "Each request pays for a TLS handshake",
    test,
    symptom: handshakes::most_crypto,
    testable: record::threads,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let setup = &facts.network.setup;
    let rate = ratio(setup.opened as f64, facts.window_s());
    let computes = user_cpu_bound::candidate(facts);
    let named = computes.as_ref().and_then(|candidate| candidate.place.tid);
    let (tid, crypto) = match handshakes::busy_with(facts, named) {
        Ok(found) => found,
        Err(Some(denial)) => return denied(*denial),
        Err(None) => return Outcome::Untested("no thread was seen".to_string()),
    };
    let Some(mut candidate) = computes else {
        return denied(Denial::of(share(crypto, handshakes::SAMPLES)).because("flows hardly wait for it"));
    };
    let each = ratio(handshakes::crypto_ns(facts), setup.opened as f64);
    let to = setup.service.map(|address| format!(" to {address}")).unwrap_or_default();
    candidate.summary = format!(
        "{} a second{to}, each with a TLS handshake, and {:.1} exchanges in all: {} of thread {tid}'s CPU time is cryptography, about {} \
         a connection.",
        units::plural_f(rate, "connection", "connections"),
        setup.exchanges.max(1.0),
        units::percent(crypto),
        units::duration(each)
    );
    let own: Vec<Evidence> = vec![
        words::counted("connections opened in the window", setup.opened),
        words::valued("share of the thread's samples in a cryptographic library", crypto, "1"),
        words::valued("CPU time of cryptography for each connection", each / 1e6, "ms"),
    ];
    candidate.evidence.splice(0..0, own);
    candidate.fix = "Keep connections (HTTP keep-alive, a pool in the client), resume sessions (`ssl_session_cache shared:TLS:10m` and \
                     session tickets in nginx), and use an ECDSA key: a P-256 signature costs a tenth of one with RSA 2048."
        .to_string();
    Outcome::Holds(Box::new(candidate))
}

/// Does this capture show handshakes rather than the opening of connections alone?
pub fn explains(facts: &Facts<'_>) -> bool {
    matches!(test(facts), Outcome::Holds(_))
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Capture, CpuSample, FlowState, Frame, HopKind, NO_SYSCALL, Release, Role, Stack};

    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder};
    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, capture, verdict_of};

    fn busy(module: &str, kept: bool, exchanges: u64) -> Capture {
        let short = (0..200).map(|i| {
            let mut flow = FlowBuilder::new(2 * i, Role::Server)
                .cell(FlowState::RxWaiting, Release::AppRecv, 3 * MS, 1)
                .talks(1, 600);
            if !kept {
                (flow.record.begin_ns, flow.record.end_ns) = (i * 4 * MS + 1, i * 4 * MS + 4 * MS);
                flow.record.last.state = 7;
            }
            flow.record.calls.exchanges = exchanges;
            flow
        });
        let mut capture = capture(short.collect(), vec![ThreadBuilder::new(101).samples(950, 20)]);
        capture.stacks =
            vec![Stack { frames: vec![Frame { name: "0x130e78".into(), module: module.into(), kernel: false }] }];
        capture.samples = vec![CpuSample {
            tid: 101,
            user: true,
            syscall: NO_SYSCALL,
            syscall_name: String::new(),
            stack: Some(0),
            count: 900,
        }];
        capture
    }

    #[test]
    fn handshakes_are_what_a_thread_computes() {
        assert_eq!(verdict_of(&busy("/usr/lib/libcrypto.so.3", false, 2)), "handshake-per-request");
        assert_eq!(verdict_of(&busy("/usr/bin/service", false, 2)), "user-cpu-bound");
        assert_eq!(verdict_of(&busy("/usr/lib/libcrypto.so.3", true, 2)), "user-cpu-bound");
    }

    #[test]
    fn of_several_workers_the_one_that_requests_wait_for_counts() {
        // 102 was sampled a few times only, all of them in the library; 201 writes letters of its own with it.
        let way = || Hops::new().thread(100, 101, "starman").on(HopKind::OnCpu, "");
        let service = || ServiceBuilder::new(7000).requests(200, 20.0).part(way(), 0.9).cpu(0.1).build();
        let mut capture = busy("/usr/lib/libcrypto.so.3", false, 2);
        capture.services = vec![service()];
        capture.threads.push(ThreadBuilder::new(102).samples(3, 900).record);
        capture.samples.push(CpuSample { tid: 102, count: 3, ..capture.samples[0].clone() });
        let plain =
            Stack { frames: vec![Frame { name: "page".into(), module: "/usr/bin/starman".into(), kernel: false }] };
        capture.stacks.push(plain);
        capture.samples.push(CpuSample { stack: Some(1), count: 600, ..capture.samples[0].clone() });
        assert_eq!(verdict_of(&capture), "handshake-per-request");
        capture.samples.last_mut().expect("a sample").count = 9_000;
        let report = judge(&capture);
        assert_eq!(report.verdict.cause.as_deref(), Some("user-cpu-bound"));
        let entry = report.ruled_out.iter().find(|entry| entry.cause == super::CAUSE.id).expect("an entry");
        assert!(entry.seen, "102 is on record: {}", entry.why);
    }

    #[test]
    fn a_request_that_computes_hashes_is_no_handshake() {
        assert_eq!(verdict_of(&busy("/usr/lib/libcrypto.so.3", false, 1)), "user-cpu-bound");
    }
}
