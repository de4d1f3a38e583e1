//! The result of a load, as text and JSON (docs/lab.md describes the fields).
use parshall_core::load::{Latencies, Latency, Limit};
use parshall_core::units::{bit_rate, decimal, percent, time_us};
use serde::{Deserialize, Serialize};

use super::common::Clock;

/// The format of a load's result.
pub const LOAD_SCHEMA: &str = "parshall.load/1";

/// The result of a load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// [`LOAD_SCHEMA`].
    pub schema: String,
    /// Kind of load.
    pub kind: String,
    /// `serve`, `connect`, `both` or `relay`.
    pub role: String,
    /// Its process id.
    pub pid: u32,
    /// Its server's TCP port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// How long it ran, or the measured part of it.
    pub seconds: f64,
    /// Answered requests, or writes, or packets.
    pub requests: u64,
    /// The same per second.
    pub rate_per_s: f64,
    /// Bytes moved, both directions.
    pub bytes: u64,
    /// The same per second.
    pub bytes_per_s: f64,
    /// Connections that ended before the load did.
    pub errors: u64,
    /// From when a request was due until its reply was complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Resources that this process used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Resources that the server's process used meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu: Option<Cpu>,
    /// Only of the generators of load.
    #[serde(flatten, default)]
    pub generated: Generated,
}

/// CPU time of a process and its service demand: CPU time for each unit of work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    pub seconds: f64,
    /// For each 1000 bytes moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us_per_kb: Option<f64>,
    /// For each request, write or packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us_per_request: Option<f64>,
    /// Share of the time for which the busiest thread was on a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busiest_thread: Option<f64>,
}

/// Results that only generators have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Generated {
    /// Requests per second of an open loop's schedule, or packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered_per_s: Option<f64>,
    /// Requests of the measured time that had no reply a second after it (`row-lock`: two). Their latency counts until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<u64>,
    /// From when a request was due until the client sent it, where a connection was free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_lag: Option<Latency>,
    /// Bytes per second of bulk transfers beside requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bulk_bytes_per_s: Option<f64>,
    /// Packets that arrived per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_per_s: Option<f64>,
    /// Share of the packets that did not arrive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_share: Option<f64>,
    /// Limits of the load beside the server and the path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
}

impl Cpu {
    /// `seconds` of CPU time, shared among these requests and bytes.
    pub fn new(seconds: f64, requests: u64, bytes: u64) -> Self {
        let per = |units: f64| (units > 0.0).then_some(seconds * 1e6 / units);
        Self { seconds, us_per_kb: per(bytes as f64 / 1e3), us_per_request: per(requests as f64), busiest_thread: None }
    }

    fn text(&self, who: &str) -> String {
        let mut text = format!("{who} {}", time_us(self.seconds * 1e6));
        if let Some(us) = self.us_per_kb {
            text += &format!(", {} µs/KB", three_digits(us));
        }
        if let Some(us) = self.us_per_request {
            text += &format!(", {} µs each", three_digits(us));
        }
        if let Some(share) = self.busiest_thread {
            text += &format!(", busiest thread {}", percent(share));
        }
        text
    }
}

/// A positive number with three significant digits.
fn three_digits(value: f64) -> String {
    let digits = 2 - value.max(1e-6).log10().floor() as i32;
    format!("{value:.*}", digits.clamp(0, 8) as usize)
}

impl Outcome {
    /// The result of a load that began with `clock` and ends now.
    pub fn new(kind: &str, role: &str, port: Option<u16>, clock: &Clock, requests: u64, bytes: u64) -> Self {
        Self::of_window(kind, role, port, clock.elapsed().as_secs_f64(), requests, bytes).with_own_cpu()
    }

    /// With the CPU time of this process.
    pub fn with_own_cpu(mut self) -> Self {
        let seconds = parshall_sys::clock::process_cpu_ns() as f64 / 1e9;
        self.cpu = Some(Cpu::new(seconds, self.requests, self.bytes));
        self
    }

    /// The result of the measured part of a load.
    pub fn of_window(kind: &str, role: &str, port: Option<u16>, seconds: f64, requests: u64, bytes: u64) -> Self {
        Self {
            schema: LOAD_SCHEMA.into(),
            kind: kind.into(),
            role: role.into(),
            pid: std::process::id(),
            port,
            seconds,
            requests,
            rate_per_s: requests as f64 / seconds.max(1e-9),
            bytes,
            bytes_per_s: bytes as f64 / seconds.max(1e-9),
            ..Self::default()
        }
    }

    /// With these latencies, unless there are none.
    pub fn with_latency(mut self, latencies: &Latencies) -> Self {
        self.latency = latencies.summary();
        self
    }

    /// One line of text.
    pub fn line(&self) -> String {
        let mut line = format!(
            "{}  {}/s  {} in {:.2} s  {}",
            self.kind,
            decimal(self.rate_per_s),
            decimal(self.requests as f64),
            self.seconds,
            bit_rate(self.bytes_per_s),
        );
        if let Some(latency) = &self.latency {
            let [p50, p99, max] = [latency.p50_us, latency.p99_us, latency.max_us].map(time_us);
            line += &format!("  latency p50 {p50}, p99 {p99}, max {max}");
        }
        if self.errors > 0 {
            line += &format!("  {} connections lost", self.errors);
        }
        line
    }

    /// The line, and below it the CPU time of both ends and what limited the load.
    pub fn text(&self) -> String {
        let mut lines = vec![self.line()];
        let Generated { offered_per_s, unanswered, bulk_bytes_per_s, received_per_s, lost_share, limits, .. } =
            &self.generated;
        let offered = offered_per_s.map(|offered| format!("offered {}/s", decimal(offered)));
        let schedule: Vec<String> = offered.into_iter().chain(unanswered.map(|n| format!("{n} unanswered"))).collect();
        lines.extend((!schedule.is_empty()).then(|| schedule.join(", ")));
        if let Some((received, lost)) = received_per_s.zip(*lost_share) {
            lines.push(format!("received {}/s, {} lost", decimal(received), percent(lost)));
        }
        lines.extend(bulk_bytes_per_s.map(|rate| format!("bulk {}", bit_rate(rate))));
        let own = if self.server_cpu.is_some() { "client" } else { "this process" };
        let used = [self.cpu.map(|cpu| cpu.text(own)), self.server_cpu.map(|cpu| cpu.text("server"))];
        lines.extend(used.into_iter().flatten().map(|text| format!("CPU time of {text}")));
        lines.extend(limits.iter().map(|limit| format!("limit: {}", limit.sentence())));
        lines.join("\n  ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_back_and_an_older_one_too() {
        let limits = vec![Limit::ClientThread];
        let generated = Generated { offered_per_s: Some(10.0), limits, ..Generated::default() };
        let cpu = Cpu { busiest_thread: Some(0.99), ..Cpu::new(0.5, 1000, 0) };
        let outcome = Outcome::of_window("request-response", "connect", Some(7), 2.0, 1000, 0);
        let outcome = Outcome { cpu: Some(cpu), generated, ..outcome };
        let text = serde_json::to_string(&outcome).expect("JSON");
        assert_eq!(serde_json::from_str::<Outcome>(&text).expect("read back"), outcome);
        let old = r#"{"schema":"parshall.load/1","kind":"stream","role":"both","pid":1,"seconds":1.0,"requests":1,
            "rate_per_s":1.0,"bytes":1,"bytes_per_s":1.0,"errors":0,"latency":{"p50_us":1.0,"p99_us":2.0,"max_us":3.0}}"#;
        assert_eq!(serde_json::from_str::<Outcome>(old).expect("an older one").generated, Generated::default());
    }

    #[test]
    fn service_demand_is_cpu_time_for_each_unit() {
        let cpu = Cpu::new(0.5, 1000, 2_000_000);
        assert_eq!((cpu.us_per_kb, cpu.us_per_request), (Some(250.0), Some(500.0)));
        assert_eq!(Cpu::new(0.5, 0, 0).us_per_kb, None);
    }

    #[test]
    fn small_service_demands_keep_their_digits() {
        assert_eq!([0.0412, 0.5, 1.0, 12.34, 1234.0].map(three_digits), ["0.0412", "0.500", "1.00", "12.3", "1234"]);
    }

    #[test]
    fn the_text_says_what_limited_the_load() {
        let generated = Generated { limits: vec![Limit::ClientThread], ..Generated::default() };
        let outcome = Outcome { generated, ..Outcome::of_window("rpc", "connect", None, 1.0, 5, 5) };
        assert!(outcome.text().ends_with("the rate may be higher") && !outcome.line().contains('\n'));
    }
}
