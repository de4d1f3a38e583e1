//! The service by one window: requests, bytes, CPU time; and the figures that are made of them.
use parshall_evidence::{Capture, TrialWindow};

use crate::judge;
use crate::judge::facts::{Facts, FlowFact, Shape};
use crate::judge::ledger::flow::State;
use crate::judge::ledger::flow_rules::serves;
use crate::stats::ratio;

/// Requests in a window from which on the time of a request says something.
const REQUESTS_MIN: f64 = 5.0;
/// From this size of a request and its reply on, the connections are streams that are answered now and then.
const STREAM_BYTES: f64 = 4e6;

/// A figure by which windows are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// Time in which requests were under way, for each request answered: by Little's law the mean time of a request.
    TimePerRequest,
    /// Requests answered in a second.
    Requests,
    /// Bytes carried in a second.
    Throughput,
    /// CPU time of the processes for each request.
    CpuPerRequest,
    /// CPU time of the processes for each byte.
    CpuPerByte,
}

impl Figure {
    /// Its id in results.
    pub fn id(self) -> &'static str {
        self.names().0
    }

    /// Its name for people.
    pub fn label(self) -> &'static str {
        self.names().1
    }

    /// Its SI unit.
    pub fn unit(self) -> &'static str {
        self.names().2
    }

    /// The figure with this id.
    pub fn of_id(id: &str) -> Option<Self> {
        let all = [Self::TimePerRequest, Self::Requests, Self::Throughput, Self::CpuPerRequest, Self::CpuPerByte];
        all.into_iter().find(|figure| figure.id() == id)
    }

    /// A smaller value is the better one.
    pub fn lower_is_better(self) -> bool {
        !matches!(self, Self::Requests | Self::Throughput)
    }

    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::TimePerRequest => ("time-per-request", "time of a request", "ms"),
            Self::Requests => ("requests", "requests", "1/s"),
            Self::Throughput => ("throughput", "throughput", "B/s"),
            Self::CpuPerRequest => ("cpu-per-request", "CPU time of a request", "us"),
            Self::CpuPerByte => ("cpu-per-byte", "CPU time of a byte", "ns"),
        }
    }

    /// Its value in a window. An event that did not happen at all counts as one, so that a service that stands still is
    /// compared too, and with too good a value.
    pub fn value(self, window: &TrialWindow) -> f64 {
        let (requests, bytes) = (window.requests.max(1.0), window.bytes.max(1) as f64);
        match self {
            Self::TimePerRequest => window.busy_ms / requests,
            Self::Requests => ratio(requests, window.length_s),
            Self::Throughput => ratio(bytes, window.length_s),
            Self::CpuPerRequest => window.cpu_ms * 1e3 / requests,
            Self::CpuPerByte => window.cpu_ms * 1e6 / bytes,
        }
    }
}

/// The figures to compare, the deciding one first, by what the windows before the change showed; none when nothing moved.
pub fn measured(before: &TrialWindow) -> Vec<Figure> {
    if before.requests >= REQUESTS_MIN && (before.bytes as f64) < before.requests * STREAM_BYTES {
        vec![Figure::TimePerRequest, Figure::Requests, Figure::Throughput, Figure::CpuPerRequest]
    } else if before.bytes > 0 {
        vec![Figure::Throughput, Figure::CpuPerByte]
    } else {
        Vec::new()
    }
}

/// Reads the window that a capture observed.
pub fn window(capture: &Capture) -> TrialWindow {
    let services = judge::services(capture);
    let facts = Facts::new(capture, &services);
    let mut window = TrialWindow {
        length_s: facts.window_s(),
        cpu_ms: facts.threads.iter().map(|thread| thread.rec.cpu_ns as f64).sum::<f64>() / 1e6,
        ..TrialWindow::default()
    };
    for flow in &facts.flows {
        window.data_segments += flow.data_segs;
        window.retransmitted += flow.retransmitted;
    }
    for flow in ends(&facts) {
        window.bytes += bytes(flow);
        window.connections += 1;
        if flow.shape == Shape::RequestReply {
            window.requests += requests(&facts, flow);
            window.busy_ms += busy_ns(flow) / 1e6;
        }
    }
    window
}

/// One end of each connection that moved data and belongs to the service: of those that are served here if there are any, else
/// of all. The client's end where it is known, since it sees all of a request's time.
fn ends<'f, 'a>(facts: &'f Facts<'a>) -> Vec<&'f FlowFact<'a>> {
    let moved = || facts.flows.iter().filter(|flow| flow.shape != Shape::Idle);
    if moved().any(|flow| serves(flow.rec)) {
        return moved()
            .filter(|flow| serves(flow.rec))
            .map(|flow| flow.pair.map_or(flow, |client| &facts.flows[client]))
            .collect();
    }
    moved().collect()
}

/// Bytes that a connection carried, by the kernel's own count.
fn bytes(flow: &FlowFact<'_>) -> u64 {
    flow.rec.acked_bytes() + flow.rec.received_bytes()
}

/// Both ends count what is asked and answered; the client does not count the last request before it closes. Where probes ran in
/// slices only, the bytes of a request are known from them, and the bytes of the whole window say how many there were.
fn requests(facts: &Facts<'_>, flow: &FlowFact<'_>) -> f64 {
    let count = |flow: &FlowFact<'_>| {
        let calls = &flow.rec.calls;
        let scale = match calls.send_bytes + calls.recv_bytes {
            seen if seen > 0 && flow.ledger.scaled => bytes(flow) as f64 / seen as f64,
            _ => flow.ledger.scale,
        };
        calls.exchanges as f64 * scale
    };
    let other = flow.pair.map_or(0.0, |other| count(&facts.flows[other]));
    count(flow).max(other)
}

/// Time in which something was under way. An ACK that comes late and holds nothing up is waited for by nobody.
fn busy_ns(flow: &FlowFact<'_>) -> f64 {
    let ledger = &flow.ledger;
    (ledger.wall_ns - ledger.of(State::NothingToSend) - ledger.of(State::AckDelayed)).max(0.0)
}

#[cfg(test)]
mod tests {
    use parshall_evidence::{FlowState, Release, Role};

    use super::*;
    use crate::testkit::{FlowBuilder, MS, ThreadBuilder, capture};

    /// 20 requests a second of 40 ms each: the client waits 800 ms of 1,000.
    fn client() -> FlowBuilder {
        FlowBuilder::new(1, Role::Client)
            .cell(FlowState::IdleAfterSend, Release::RxData, 800 * MS, 20)
            .cell(FlowState::IdleAfterRecv, Release::AppSend, 200 * MS, 20)
            .talks(20, 100)
    }

    #[test]
    fn the_time_of_a_request_is_what_its_client_waits() {
        let window = window(&capture(vec![client()], vec![ThreadBuilder::new(101).samples(10, 10)]));
        assert_eq!((window.requests, window.connections, window.length_s), (20.0, 1, 1.0));
        assert!((Figure::TimePerRequest.value(&window) - 40.0).abs() < 1.0, "{window:?}");
        assert_eq!(measured(&window)[0], Figure::TimePerRequest);
    }

    #[test]
    fn a_connection_whose_ends_are_both_here_counts_once() {
        let client = client();
        let server = FlowBuilder::new(2, Role::Server)
            .to(&client)
            .cell(FlowState::IdleAfterRecv, Release::AppSend, 700 * MS, 20)
            .cell(FlowState::IdleAfterSend, Release::RxData, 300 * MS, 20)
            .talks(20, 100);
        let window = window(&capture(vec![client, server], Vec::new()));
        assert_eq!((window.requests, window.connections), (20.0, 1));
        assert!((Figure::TimePerRequest.value(&window) - 40.0).abs() < 1.0, "{window:?}");
    }

    #[test]
    fn what_stands_still_has_no_figure_and_no_infinite_one() {
        let idle = window(&capture(vec![FlowBuilder::new(1, Role::Server)], Vec::new()));
        assert_eq!((idle.connections, measured(&idle)), (0, Vec::new()));
        for figure in [Figure::TimePerRequest, Figure::Throughput, Figure::CpuPerByte] {
            assert!(figure.value(&idle).is_finite(), "{figure:?}");
        }
    }

    #[test]
    fn slices_are_scaled_by_the_bytes_of_the_whole_window() {
        let mut busy = capture(vec![client()], Vec::new());
        let flow = &mut busy.flows[0];
        // A tenth of the time was observed, and in it a twentieth of what was carried.
        flow.cells.iter_mut().for_each(|cell| cell.ns /= 10);
        flow.observed_ns /= 10;
        (flow.calls.send_bytes, flow.calls.recv_bytes) = (2_000, 2_000);
        (flow.last.bytes_acked, flow.last.bytes_received) =
            (flow.first.bytes_acked + 40_000, flow.first.bytes_received + 40_000);
        let window = window(&busy);
        assert_eq!((window.bytes, window.requests.round()), (80_000, 400.0));
    }

    #[test]
    fn ids_lead_back() {
        for figure in [Figure::TimePerRequest, Figure::CpuPerByte] {
            assert_eq!(Figure::of_id(figure.id()), Some(figure));
        }
        assert_eq!(Figure::of_id("speed"), None);
    }
}
