//! Golden outputs of each program, and properties of any text.
use proptest::prelude::*;

use super::*;

fn shown(values: &Values) -> String {
    values.iter().map(|(name, value)| format!("{name} {value:.2}\n")).collect()
}

#[test]
fn wrk_as_it_prints() {
    let values = read(Tool::Wrk, include_str!("wrk.txt"));
    let expected =
        "bytes_per_s 504913.92\nerrors 977.00\nmax_us 17750.00\nmean_us 4190.00\np50_us 3220.00\np75_us 5840.00
p90_us 8010.00\np99_us 12340.00\nrate_per_s 970.64\n";
    assert_eq!(shown(&values), expected);
}

#[test]
fn wrk_with_socket_errors_and_without_any() {
    let failed = "  Socket errors: connect 1, read 20, write 300, timeout 4000\nRequests/sec:  5.0\n";
    assert_eq!(read(Tool::Wrk, failed)["errors"], 4321.0);
    assert_eq!(read(Tool::Wrk, "Requests/sec:  5.0\n")["errors"], 0.0);
    assert_eq!(read(Tool::Wrk, "unable to connect\n"), Values::new());
}

#[test]
fn redis_benchmark_as_it_prints() {
    let values = read(Tool::RedisBenchmark, include_str!("redis-benchmark.csv"));
    let expected = "max_us 6223.00\nmean_us 1219.00\nmin_us 232.00\np50_us 807.00\np95_us 3959.00\np99_us 5455.00
rate_per_s 28571.43\n";
    assert_eq!(shown(&values), expected);
}

#[test]
fn netperf_with_keyword_output() {
    let values = read(Tool::Netperf, include_str!("netperf.txt"));
    let expected =
        "max_us 1893.00\nmean_us 18.22\nmin_us 12.00\np50_us 17.00\np90_us 20.00\np99_us 35.00\nrate_per_s 54321.12\n";
    assert_eq!(shown(&values), expected);
    let bulk = "THROUGHPUT=8000.00\nTHROUGHPUT_UNITS=10^6bits/s\nLOCAL_SD=1.024\nREMOTE_SD=2.048\nSD_UNITS=usec/KB\n";
    assert_eq!(
        shown(&read(Tool::Netperf, bulk)),
        "bytes_per_s 1000000000.00\nclient_us_per_kb 1.00\nserver_us_per_kb 2.00\n"
    );
}

#[test]
fn netperf_s_tables() {
    const STREAM: &str =
        "MIGRATED TCP STREAM TEST from 0.0.0.0 (0.0.0.0) port 0 AF_INET to 10.0.0.2 () port 0 AF_INET : demo
Recv   Send    Send                          Utilization       Service Demand
Socket Socket  Message  Elapsed              Send     Recv     Send    Recv
Size   Size    Size     Time     Throughput  local    remote   local   remote
bytes  bytes   bytes    secs.    10^6bits/s  % S      % S      us/KB   us/KB

131072  16384  16384    10.00      8000.00   20.10    31.70    1.024   2.048
";
    assert_eq!(
        shown(&read(Tool::Netperf, STREAM)),
        "bytes_per_s 1000000000.00\nclient_us_per_kb 1.00\nserver_us_per_kb 2.00\n"
    );
    const DATAGRAMS: &str = "Socket  Message  Elapsed      Messages
Size    Size     Time         Okay Errors   Throughput
bytes   bytes    secs            #      #   10^6bits/sec

212992    1024   10.00      976562      0     800.00
212992           10.00      488281            400.00
";
    assert_eq!(shown(&read(Tool::Netperf, DATAGRAMS)), "bytes_per_s 50000000.00\n");
    const REQUESTS: &str = "Local /Remote
Socket Size   Request  Resp.   Elapsed  Trans.
Send   Recv   Size     Size    Time     Rate
bytes  Bytes  bytes    bytes   secs.    per sec

16384  131072 1        1       10.00    48123.45
16384  131072
";
    assert_eq!(shown(&read(Tool::Netperf, REQUESTS)), "rate_per_s 48123.45\n");
}

#[test]
fn netperf_s_selected_values_as_csv() {
    let text = "MIGRATED TCP REQUEST/RESPONSE TEST from 0.0.0.0 (0.0.0.0) port 0 AF_INET to 10.0.0.2 () port 0 AF_INET
Minimum Latency Microseconds,Mean Latency Microseconds,99th Percentile Latency Microseconds,Transaction Rate Tran/s
41,56.63,90,17730.719
";
    assert_eq!(shown(&read(Tool::Netperf, text)), "mean_us 56.63\nmin_us 41.00\np99_us 90.00\nrate_per_s 17730.72\n");
}

proptest! {
    #[test]
    fn any_text_is_read(text in "[ -~\n]{0,400}") {
        for tool in [Tool::Netperf, Tool::Wrk, Tool::RedisBenchmark] {
            prop_assert!(read(tool, &text).values().all(|value| value.is_finite() && *value >= 0.0));
        }
    }

    #[test]
    fn lines_that_are_almost_right_are_read(
        lines in proptest::collection::vec(
            prop_oneof![
                "(50%|99%|Latency|Requests/sec:|Transfer/sec:|Socket errors:|Non-2xx) +[0-9.]{0,4}[a-zA-Z]{0,2}( [0-9]{1,3}){0,3}",
                "bytes +(secs|secs\\.) +(per sec|# +10\\^6bits/sec|10\\^[0-9]{1,3}bits/s us/KB)",
                "([0-9.]{1,5} +){3,9}",
                "(Throughput|Mean Latency Microseconds|x)(,(Throughput Units|x|1))?",
                "(THROUGHPUT|THROUGHPUT_UNITS|LOCAL_SD|SD_UNITS)=[-0-9.ebits/s^]{0,10}",
                "\"?(test|rps|GET)\"?(,\"?(rps|max_latency_ms|[0-9.]{0,5})\"?){0,3}",
            ],
            0..12,
        ),
    ) {
        let text = lines.join("\n");
        for tool in [Tool::Netperf, Tool::Wrk, Tool::RedisBenchmark] {
            prop_assert!(read(tool, &text).values().all(|value| value.is_finite() && *value >= 0.0));
        }
    }
}
