//! The system call that a process spends most of its CPU time in, where it makes that many times for each request: with that known, nobody has
//! to look for it in the functions of the kernel.
use std::collections::BTreeMap;

use parshall_evidence::{Evidence, SyscallCell};

use crate::judge::facts::Facts;
use crate::judge::words;
use crate::stats::ratio;
use crate::units;

/// A call that takes less of the CPU time is not what the requests cost.
const SHARE_MIN: f64 = 0.15;
/// A call that is made fewer times for a request is not made too often.
const EACH_MIN: f64 = 10.0;
/// A call that moves no more bytes costs far more than they do.
const FEW_BYTES: f64 = 256.0;

/// A call that is made many times for each request.
#[derive(Debug, Clone, PartialEq)]
pub struct Frequent {
    name: String,
    /// Calls for each request.
    each: f64,
    /// Bytes that one of them moves, mean; 0 where it moves none.
    bytes: f64,
    /// They were counted in slices, whose ends cut requests.
    scaled: bool,
}

/// The call of a process that takes most of its CPU time, if it makes it many times for each of the requests that it answered.
pub fn frequent(facts: &Facts<'_>, pid: u32, requests: u64) -> Option<Frequent> {
    let mut cpu_ns = 0.0;
    let mut calls: BTreeMap<&str, SyscallCell> = BTreeMap::new();
    for thread in facts.threads.iter().filter(|thread| thread.rec.pid == pid) {
        cpu_ns += thread.ledger.on_cpu() * ratio(thread.rec.observed_ns as f64, thread.ledger.wall_ns);
        for call in &thread.rec.syscalls {
            let sum = calls.entry(&call.name).or_default();
            sum.count = sum.count.saturating_add(call.count);
            sum.bytes = sum.bytes.saturating_add(call.bytes);
            sum.on_cpu_ns = sum.on_cpu_ns.saturating_add(call.on_cpu_ns);
        }
    }
    let (name, most) =
        calls.into_iter().max_by_key(|(_, call)| call.on_cpu_ns).filter(|(_, most)| most.on_cpu_ns > 0)?;
    let each = ratio(most.count as f64, requests as f64);
    let matters = each >= EACH_MIN && most.on_cpu_ns as f64 >= SHARE_MIN * cpu_ns;
    let bytes = ratio(most.bytes as f64, most.count as f64);
    matters.then(|| Frequent { name: name.to_owned(), each, bytes, scaled: facts.scaled() })
}

impl Frequent {
    /// A sentence that follows the one about the function.
    pub fn sentence(&self) -> String {
        let of_bytes =
            if self.bytes > 0.0 { format!(", with {} each", units::bytes(self.bytes)) } else { String::new() };
        let each = words::about(self.scaled, units::plural_f(self.each, "time", "times"));
        format!(" It calls {} {each} a request{of_bytes}.", self.name)
    }

    /// The figure that says so.
    pub fn figure(&self) -> Evidence {
        let figure = words::valued(format!("calls of {} a request", self.name), self.each, "1");
        Evidence { scaled: self.scaled, ..figure }
    }

    /// How to make it less often; None where what it moves with each is enough.
    pub fn fix(&self, who: &str) -> Option<String> {
        (self.bytes > 0.0 && self.bytes <= FEW_BYTES)
            .then(|| format!("Let {who} move some kilobytes with each call of {}: put a buffer before it.", self.name))
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{Capture, FdKind, HopKind, Report, SyscallCell};

    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::{MS, ThreadBuilder};

    /// 20 requests that take 30 ms of CPU time each, nearly all in the kernel, and `calls` of `write` for each, with `bytes` each, which
    /// take `share` of the CPU time.
    fn report(calls: u64, bytes: u64, share: f64) -> Report {
        let works = Hops::new().thread(100, 101, "app").on(HopKind::OnCpu, "");
        let mut capture: Capture = with(ServiceBuilder::new(7000).requests(20, 30.0).part(works, 1.0));
        let thread = ThreadBuilder::new(101).samples(10, 90).blocked(0, 400 * MS, "epoll_wait", FdKind::Anon);
        capture.threads = vec![thread.fill().record];
        capture.threads[0].syscalls = vec![SyscallCell {
            name: "write".to_owned(),
            fd: FdKind::Tcp,
            count: 20 * calls,
            bytes: 20 * calls * bytes,
            on_cpu_ns: (share * 600e6) as u64,
            ..SyscallCell::default()
        }];
        judge(&capture)
    }

    #[test]
    fn a_call_that_is_made_many_times_a_request_is_named() {
        let small = report(3_000, 12, 0.6);
        assert_eq!(small.verdict.cause.as_deref(), Some("kernel-cpu-bound"), "{small:#?}");
        assert!(small.verdict.summary.contains("calls write 3,000 times a request, with 12 B each"), "{small:#?}");
        assert!(small.findings[0].fix.text.contains("put a buffer before it"), "{small:#?}");
        // Each moves much: what is done with it is another question.
        let large = report(3_000, 65_536, 0.6);
        assert!(large.verdict.summary.contains("calls write 3,000 times a request"), "{large:#?}");
        assert!(!large.findings[0].fix.text.contains("a buffer"), "{large:#?}");
        for other in [report(5, 12, 0.6), report(3_000, 12, 0.1)] {
            assert!(!other.verdict.summary.contains("times a request"), "{other:#?}");
        }
    }
}
