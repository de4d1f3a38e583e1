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
    symptom: most_crypto,
    testable: record::threads,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let setup = &facts.network.setup;
    let rate = ratio(setup.opened as f64, facts.window_s());
    let (tid, crypto) = match handshakes::busy_with(facts) {
        Ok(found) => found,
        Err(Some(denial)) => return denied(*denial),
        Err(None) => return Outcome::Untested("no thread was seen".to_string()),
    };
    let Some(mut candidate) =
        user_cpu_bound::candidate(facts).filter(|c| c.place.tid == Some(tid) || c.place.tid.is_none())
    else {
        return denied(Denial::of(share(crypto, handshakes::SAMPLES)).because("flows hardly wait for it"));
    };
    let busy = facts.thread(tid).map_or(0.0, |t| t.ledger.on_cpu());
    let each = ratio(busy * crypto, setup.opened as f64);
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

fn most_crypto(facts: &Facts<'_>) -> f64 {
    handshakes::at_crypto(facts).map_or(0.0, |(_, share)| share)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Capture, CpuSample, FlowState, Frame, NO_SYSCALL, Release, Role, Stack};

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
    fn a_request_that_computes_hashes_is_no_handshake() {
        assert_eq!(verdict_of(&busy("/usr/lib/libcrypto.so.3", false, 1)), "user-cpu-bound");
    }
}
