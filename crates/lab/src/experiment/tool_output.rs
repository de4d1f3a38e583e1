//! Values out of the output of other generators of load, by name: `iperf3.bytes_per_s`, `wrk.p99_us`.
use parshall_core::load::tool::{self, Tool};
use serde_json::Value;

/// The programs, with the flags that their output needs, and their values.
const PROGRAMS: [(&str, Option<Tool>, &[&str]); 4] = [
    (
        "iperf3",
        None,
        &["bytes_per_s", "sent_bytes_per_s", "retransmits", "lost_share", "client_us_per_kb", "server_us_per_kb"],
    ),
    (
        "netperf",
        Some(Tool::Netperf),
        &[
            "bytes_per_s",
            "rate_per_s",
            "mean_us",
            "min_us",
            "p50_us",
            "p90_us",
            "p99_us",
            "max_us",
            "client_us_per_kb",
            "server_us_per_kb",
        ],
    ),
    (
        "wrk",
        Some(Tool::Wrk),
        &["rate_per_s", "bytes_per_s", "mean_us", "p50_us", "p75_us", "p90_us", "p99_us", "max_us", "errors"],
    ),
    (
        "redis-benchmark",
        Some(Tool::RedisBenchmark),
        &["rate_per_s", "mean_us", "min_us", "p50_us", "p95_us", "p99_us", "max_us"],
    ),
];

/// A value of a program's output.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolValue {
    program: &'static str,
    /// None for iperf3, which prints JSON.
    tool: Option<Tool>,
    name: &'static str,
}

impl ToolValue {
    /// Reads `PROGRAM.VALUE`. The error says what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (program, name) = text.split_once('.').unwrap_or((text, ""));
        let Some((program, tool, names)) = PROGRAMS.iter().find(|(known, ..)| *known == program) else {
            let programs = PROGRAMS.map(|(program, ..)| program).join(", ");
            return Err(format!("write PROGRAM.VALUE, such as iperf3.bytes_per_s; the programs are {programs}"));
        };
        match names.iter().find(|known| **known == name) {
            Some(name) => Ok(Self { program, tool: *tool, name }),
            None => Err(format!("{program} has {}", names.join(", "))),
        }
    }

    /// The value in what the program wrote to stdout.
    pub fn read(&self, stdout: &str) -> Result<f64, String> {
        let value = match self.tool {
            Some(tool) => tool::read(tool, stdout).get(self.name).copied(),
            None => document(stdout).and_then(|document| iperf3(&document, self.name)),
        };
        let flags = match self.program {
            "iperf3" => "--json",
            "netperf" => "-- -k all",
            "wrk" => "--latency",
            _ => "--csv",
        };
        value.ok_or_else(|| format!("the output has no {}; run {} with {flags}", self.name, self.program))
    }
}

/// Values of the document of `iperf3 --json`: of all streams together, and at the receiver where it says so.
fn iperf3(document: &Value, name: &str) -> Option<f64> {
    let number = |pointer: &str| document.pointer(pointer).and_then(Value::as_f64);
    let first = |pointers: [&str; 2]| pointers.into_iter().find_map(number);
    let bytes_per_s = || Some(first(["/end/sum_received/bits_per_second", "/end/sum/bits_per_second"])? / 8.0);
    // CPU time in per cent of one CPU; for each second this many KB were moved.
    let demand = |pointer: &str| Some(number(pointer)? / 100.0 * 1e6 / (bytes_per_s()? / 1e3));
    let value = match name {
        "bytes_per_s" => bytes_per_s(),
        "sent_bytes_per_s" => Some(first(["/end/sum_sent/bits_per_second", "/end/sum/bits_per_second"])? / 8.0),
        "retransmits" => number("/end/sum_sent/retransmits"),
        "lost_share" => Some(number("/end/sum/lost_percent")? / 100.0),
        "client_us_per_kb" => demand("/end/cpu_utilization_percent/host_total"),
        "server_us_per_kb" => demand("/end/cpu_utilization_percent/remote_total"),
        _ => None,
    };
    value.filter(|value| value.is_finite())
}

/// The JSON document that a program wrote, alone or as the last of several lines.
pub fn document(output: &str) -> Option<serde_json::Value> {
    let line = || output.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    serde_json::from_str(output).ok().or_else(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str, output: &str) -> Result<f64, String> {
        ToolValue::parse(value).expect(value).read(output)
    }

    #[test]
    fn iperf3_as_it_prints() {
        let output = include_str!("golden/iperf3.json");
        let rounded = |value: &str| (read(value, output).expect(value) * 1e3).round() / 1e3;
        assert_eq!(rounded("iperf3.bytes_per_s"), 1_138_385_487.447);
        assert_eq!(rounded("iperf3.retransmits"), 13.0);
        // 14.5 % and 50.1 % of a CPU at 1138385 KB/s.
        assert_eq!(rounded("iperf3.client_us_per_kb"), 0.128);
        assert_eq!(rounded("iperf3.server_us_per_kb"), 0.44);
        let why = read("iperf3.lost_share", output).expect_err("it is TCP");
        assert!(why.contains("no lost_share; run iperf3 with --json"), "{why}");
    }

    #[test]
    fn an_output_without_the_value_says_which_flags_it_needs() {
        for (value, flags) in
            [("wrk.p99_us", "--latency"), ("redis-benchmark.p99_us", "--csv"), ("netperf.p99_us", "-k all")]
        {
            assert!(read(value, "nothing").is_err_and(|why| why.contains(flags)), "{value}");
        }
        assert!(read("iperf3.bytes_per_s", "[]").is_err());
    }

    #[test]
    fn a_wrong_name_gets_those_that_there_are() {
        assert!(ToolValue::parse("wrk.p99_ms").is_err_and(|hint| hint.contains("wrk has") && hint.contains("p99_us")));
        for unknown in ["curl.time", "wrk2", ""] {
            assert!(ToolValue::parse(unknown).is_err_and(|hint| hint.contains("PROGRAM.VALUE")), "{unknown}");
        }
    }
}
