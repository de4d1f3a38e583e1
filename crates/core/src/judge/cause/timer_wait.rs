//! The reply is written in the turn that a timer began: a sleep, a poll interval, a retry delay or a rate limit on the way of a
//! request.
//!
//! A client's timer stands between two parts of a request in the same way: it waits for leave to send the rest, which does not come.
//!
//! So do pieces of a stream that a proxy keeps and passes on at even times.
//!
//! Look-alikes: an idle loop with a tick (no request is outstanding), or one in whose turns few replies happen to be written; a lock whose
//! holder sleeps (lock-contention); and requests that are served one at a time, each with a timer of its own (serialized-service: their
//! replies are evenly spaced).
use parshall_evidence::{Figure, HopKind, Service, Timeline};

use super::base::{Candidate, Cause, Outcome, denied, main_thread, place_of, stalls, thread_name, who};
use super::common::{Waits, not_spent};
use crate::critical_path::{may_be_news, may_be_signs};
use crate::judge::chain::named;
use crate::judge::confidence::FEW;
use crate::judge::denial::{Denial, count};
use crate::judge::facts::requests::watches_many;
use crate::judge::facts::{Blame, Facts, Part, Spent};
use crate::judge::record;
use crate::judge::words;
use crate::stats::quantile;
use crate::units;

/// The entry in the list.
pub const CAUSE: Cause = Cause {
    id: "timer-wait",
    title: "Requests wait for a timer",
    test,
    symptom: |facts| facts.requests.share(Spent::Timer).max(facts.raw_share(&[Blame::HeldBack])),
    testable: record::requests,
};

fn test(facts: &Facts<'_>) -> Outcome {
    let Some(waits) = Waits::on(facts, Spent::Timer) else { return of_stream(facts) };
    let leaf = waits.leaf;
    // A timer that ends a wait for any of many things begins a turn of which the reply may be no part: both ends of a connection may send
    // signs of life at times of their own.
    if waits.loss.requests < FEW && !waits.loss.waited && watches_many(leaf) {
        let replies = Figure {
            limit: Some(FEW as f64),
            ..count(waits.loss.requests, "requests", "whose reply came in a timer's turn")
        };
        return denied(
            Denial::of(replies).seen().because("the thread watches other things too, so that may be chance"),
        );
    }
    let function = waits.loss.chain.last().map(|h| h.text.clone()).unwrap_or_default();
    let summary = match waits.hop(|h| h.kind == HopKind::Client) {
        Some(hop) => waits.summary(&format!(
            "{} waits for the rest of requests, up to {}: a timer of the client{} ends this wait, always after the same time.",
            named(hop),
            units::duration(waits.longest_ns()),
            if leaf.process.is_empty() { String::new() } else { format!(" ({})", named(leaf)) }
        )),
        None => waits.summary(&format!("{} {function}, {} a request.", named(leaf), waits.each())),
    };
    let rec = waits.service.rec;
    let spread = rec.p99_ns.zip(rec.p50_ns).map(|(p99, p50)| {
        let medians = crate::stats::ratio(p99 as f64, p50 as f64);
        words::valued("p99 of the request time, in medians", medians, "times")
    });
    let gap_ms = rec.reply_gap_p50_ns as f64 / 1e6;
    let gap = (gap_ms > 0.0).then(|| words::valued("median time between replies while others wait", gap_ms, "ms"));
    let evidence = spread.into_iter().chain(gap).collect();
    if waits.hop(|h| h.kind == HopKind::Client).is_some() {
        let fix = "The client has sent the head of a request and waits for leave to send the rest (`Expect: 100-continue`), until it gives up \
                   waiting. Answer such a head at once (100 Continue; HTTP/1.1 servers and proxies can), or have the client leave the header \
                   out (curl: `-H 'Expect:'`).";
        return waits.candidate(summary, evidence, fix).holds();
    }
    let fix = format!(
        "Shorten or remove this wait in {} (a sleep, a poll interval, a retry delay, a rate limit), or wake on the event instead.",
        units::or(&leaf.process, "the program")
    );
    let timeline = facts.capture.timeline.as_ref();
    let mut candidate = waits.candidate(summary, evidence, fix);
    candidate.may_be = timeline.filter(|_| watches_many(leaf)).and_then(|timeline| no_requests(timeline, rec));
    candidate.holds()
}

/// What the requests of an event loop may be instead of requests that wait for its timer.
fn no_requests(timeline: &Timeline, service: &Service) -> Option<&'static str> {
    if may_be_signs(timeline, service) {
        return Some("signs of life that the service asks for");
    }
    may_be_news(timeline, service).then_some("waits for news that come at such times, as long polls are")
}

/// A stream whose pieces wait in a process that passes them on.
fn of_stream(facts: &Facts<'_>) -> Outcome {
    let take = |part: &Part| part.blame == Blame::HeldBack;
    let lost = facts.lost(take);
    let Some(worst) = lost.worst() else { return not_spent(facts, Spent::Timer) };
    let mut sent: Vec<u64> =
        facts.parts.iter().filter(|part| take(part) && part.flow == worst).filter_map(end_of).collect();
    sent.sort_unstable();
    let apart: Vec<f64> = sent.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
    let every_ns = quantile(&apart, 0.5).unwrap_or(lost.p50_ns);
    let tid = main_thread(facts, take);
    let process = if tid != 0 { thread_name(facts, tid) } else { "the process".to_owned() };
    let summary = format!(
        "{}: {process} keeps what it receives of a stream and passes it on every {}, whatever arrives: pieces wait up to {}.",
        who(facts, &lost),
        units::duration(every_ns),
        units::duration(lost.p50_ns)
    );
    let evidence = vec![
        stalls("times in which pieces of the stream were kept", &lost),
        words::valued("between two sends, median", every_ns / 1e6, "ms"),
    ];
    let mut place = place_of(facts, &lost);
    place.tid = (tid != 0).then_some(tid);
    let fix = "Pass each piece on when it arrives: lower the time after which the buffer is flushed, or flush it after each piece (Go: \
               FlushInterval of -1; nginx: proxy_buffering off; Java: flush after each write).";
    Candidate::new(lost, place, summary, evidence, fix).holds()
}

fn end_of(part: &Part) -> Option<u64> {
    part.span.map(|(begin, ns)| begin.saturating_add(ns))
}

#[cfg(test)]
mod tests {
    use parshall_evidence::timeline::Waker;
    use parshall_evidence::{Capture, Confidence, Frame, HopKind, Interpreted, Stack, Status};

    use crate::judge::judge;
    use crate::testkit::service::{Hops, ServiceBuilder, with};
    use crate::testkit::timeline::{Script, served_socket};
    use crate::testkit::{MS, empty_capture, verdict_of};

    fn timer() -> ServiceBuilder {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Timer, "epoll_wait");
        ServiceBuilder::new(7000).requests(200, 20.0).part(way, 0.98).cpu(0.02)
    }

    #[test]
    fn a_timer_on_the_way_of_each_request() {
        assert_eq!(verdict_of(&with(timer().gaps(100_000, 5_000_000, 9_000_000))), "timer-wait");
    }

    #[test]
    fn a_timer_before_which_nobody_is_accepted() {
        let service = |own: u32, syscall: &str| {
            let way = Hops::new().thread(100, 101, "haproxy").on(HopKind::AcceptQueue, "");
            let way = way.thread(100, own, "haproxy").on(HopKind::Timer, syscall);
            judge(&with(ServiceBuilder::new(7000).requests(200, 20.0).workers(2).part(way, 0.98).cpu(0.02)))
        };
        let report = service(101, "epoll_wait");
        assert_eq!(report.verdict.cause.as_deref(), Some("timer-wait"));
        assert_eq!(
            report.verdict.summary,
            "haproxy 100 does not accept yet: it waits for a timer in epoll_wait, 19.6 ms a request."
        );
        // A worker that sleeps for the request in its hands is one of too few.
        assert_eq!(service(101, "clock_nanosleep").verdict.cause.as_deref(), Some("workers-exhausted"));
        assert_eq!(service(102, "epoll_wait").verdict.cause.as_deref(), Some("workers-exhausted"));
    }

    #[test]
    fn time_between_replies_is_none_where_no_others_wait() {
        let evidence = |service: ServiceBuilder| {
            let report = judge(&with(service));
            report.findings[0].evidence.iter().map(|e| e.what.clone()).collect::<Vec<_>>()
        };
        let between = "median time between replies while others wait".to_owned();
        assert!(evidence(timer().gaps(100_000, 5_000_000, 9_000_000)).contains(&between));
        assert!(!evidence(timer()).contains(&between));
    }

    #[test]
    fn a_few_replies_in_turns_of_a_timer_may_be_chance() {
        let service = |requests: u64, syscall: &str| {
            let way = Hops::new().thread(100, 101, "app").on(HopKind::Timer, syscall);
            verdict_of(&with(ServiceBuilder::new(7000).requests(requests, 700.0).part(way, 0.98).cpu(0.02)))
        };
        assert!(!["timer-wait", "healthy"].contains(&service(4, "poll").as_str()), "{}", service(4, "poll"));
        assert_eq!(service(5, "poll"), "timer-wait");
        // A thread that only sleeps lets the request wait.
        assert_eq!(service(4, "clock_nanosleep"), "timer-wait");
    }

    #[test]
    fn short_messages_at_each_tick_may_be_signs_of_life() {
        // Twelve clients, each of which has its turn when a timer of its own ends, of 600 ms.
        let verdict = |bytes: u32, syscall: i32| {
            let script =
                (1..=12).fold(Script::new(), |script, id| script.socket(id, served_socket(7000), 100 + id as u32));
            let mut script = (1..=12).fold(script, |script, id| {
                let tid = 100 + id as u32;
                (0..4).fold(script, |script, n| {
                    let at = 3 * id * id * MS + n * 600 * MS;
                    let script = script.sends(tid, id, at).receives(tid, id, at + MS, at + MS + 1_000);
                    script.sleeps(tid, at + MS + 10_000, at + 599 * MS, syscall, Waker::HardIrq)
                })
            });
            for call in script.timeline.calls.values_mut().flatten() {
                call.bytes = bytes;
            }
            script.timeline.slices = vec![(0, 2_600 * MS)];
            script.timeline.asked_ports = vec![7000];
            let mut capture = empty_capture();
            capture.window_ns = 2_600 * MS;
            capture.timeline = Some(script.timeline);
            judge(&capture).verdict
        };
        const EPOLL: i32 = 232;
        const SLEEP: i32 = 35;
        let unsure = verdict(36, EPOLL);
        assert_eq!(unsure.status, Status::InsufficientEvidence, "{unsure:?}");
        assert!(unsure.summary.ends_with("or signs of life that the service asks for, was not seen."), "{unsure:?}");
        // Replies with content, and a thread that only sleeps: nobody asks for signs of life in this way.
        for (bytes, syscall) in [(400, EPOLL), (36, SLEEP)] {
            let sure = verdict(bytes, syscall);
            assert_eq!((sure.cause.as_deref(), sure.confidence), (Some("timer-wait"), Confidence::High), "{sure:?}");
        }
    }

    #[test]
    fn one_after_the_other_is_something_else() {
        assert_eq!(verdict_of(&with(timer().gaps(4_900_000, 5_000_000, 5_100_000))), "serialized-service");
    }

    #[test]
    fn a_databases_wait_for_a_row_is_no_timer() {
        let way = Hops::new().thread(100, 101, "postgres").on(HopKind::Timer, "epoll_wait").stack(0);
        let mut capture = with(ServiceBuilder::new(5432).requests(20, 100.0).part(way, 0.98).cpu(0.02));
        assert_eq!(verdict_of(&capture), "timer-wait");
        let frame = |name: &str| Frame { name: name.to_string(), module: "postgres".to_string(), kernel: false };
        capture.stacks = vec![Stack { frames: vec![frame("WaitLatch"), frame("ProcSleep")] }];
        assert_eq!(verdict_of(&capture), "lock-contention");
        capture.stacks = vec![Stack { frames: vec![frame("MDL_wait::timed_wait(MDL_context_owner*, timespec*)")] }];
        assert_eq!(verdict_of(&capture), "lock-contention");
        capture.stacks = vec![Stack { frames: vec![frame("handler::ha_index_read_map(unsigned char*)")] }];
        let report = judge(&capture);
        assert_eq!(report.verdict.cause.as_deref(), Some("lock-contention"));
        assert_eq!(report.verdict.confidence, Confidence::Medium, "its holder was not seen");
        let text = &report.findings[0].chain[0].text;
        assert!(text.ends_with("(handler::ha_index_read_map)"), "{text}");
    }

    #[test]
    fn the_sleep_of_a_python_program_is_named_with_its_line() {
        let way = Hops::new().thread(100, 101, "python3").on(HopKind::Timer, "clock_nanosleep").stack(0);
        let mut capture = with(ServiceBuilder::new(7000).requests(20, 100.0).part(way, 0.98).cpu(0.02));
        let python = |name: &str, from| Frame::of_interpreter(name.to_string(), "python3.11", from);
        let native = Frame { name: "clock_nanosleep".to_string(), module: "libc.so.6".to_string(), kernel: false };
        let frames = vec![
            native,
            python("wait (threading.py:320)", Interpreted::Library),
            python("retry (tenacity/__init__.py:9)", Interpreted::Package),
            python("_view_orders (app.py:42)", Interpreted::Application),
            python("dispatch (flask/app.py:1823)", Interpreted::Package),
            python("<module> (app.py:60)", Interpreted::Application),
        ];
        let text = |frames: &[Frame], capture: &mut Capture| {
            capture.stacks = vec![Stack { frames: frames.to_vec() }];
            judge(capture).findings[0].chain[0].text.clone()
        };
        let own = "waits for a timer in clock_nanosleep from _view_orders (app.py:42)";
        assert_eq!(text(&frames, &mut capture), own);
        // A thread that runs nothing of the application's.
        let library = [frames[0].clone(), frames[1].clone(), frames[5].clone()];
        assert!(text(&library, &mut capture).ends_with(" from wait (threading.py:320)"));
    }

    #[test]
    fn a_client_may_wait_for_leave_to_send_the_rest() {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Client, "").thread(0, 0, "").on(HopKind::Timer, "");
        let report = judge(&with(ServiceBuilder::new(7000).requests(6, 1_000.0).part(way, 0.98).cpu(0.02)));
        assert_eq!(report.verdict.cause.as_deref(), Some("timer-wait"));
        assert!(report.verdict.summary.contains("a timer of the client ends"), "{}", report.verdict.summary);
        assert!(report.findings[0].fix.text.contains("100-continue"), "{}", report.findings[0].fix.text);
    }

    #[test]
    fn below_the_floor_it_is_healthy() {
        let way = Hops::new().thread(100, 101, "app").on(HopKind::Timer, "nanosleep");
        let service = ServiceBuilder::new(7000).requests(5000, 0.1).part(way, 0.9).cpu(0.1);
        assert_eq!(verdict_of(&with(service)), "healthy");
    }
}
