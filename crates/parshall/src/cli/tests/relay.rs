//! Arguments that `parshall relay` takes, and its errors for others.
use std::time::Duration;

use parshall_core::relay::config::{Balance, Config, Endpoint, EngineChoice, LogTo, Protocol, ProxyVersion};

use super::{Invocation, Request, parse};
use parshall_host::output::Format;
use parshall_relay::request::{RelayRequest, Source};

fn request(line: &str) -> RelayRequest {
    match parse(line.split_whitespace()).unwrap() {
        Invocation::Do { request, .. } => match *request {
            Request::Relay(request) => request,
            other => panic!("{other:?}"),
        },
        Invocation::Print(text) => panic!("printed {text}"),
    }
}

fn given(line: &str) -> Config {
    match request(line) {
        RelayRequest::Run(Source::Given(config)) => *config,
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_addresses_are_enough() {
    let config = given("parshall relay 127.0.0.1:9000 127.0.0.1:9001");
    let [listener] = &config.listeners[..] else { panic!("{config:?}") };
    assert_eq!(listener.listen, Endpoint::Ip("127.0.0.1:9000".parse().unwrap()));
    assert_eq!(listener.targets[0].endpoint, Endpoint::Ip("127.0.0.1:9001".parse().unwrap()));
    assert_eq!((listener.engine, listener.buffer, listener.protocol), (EngineChoice::Auto, 64 << 10, Protocol::Tcp));
    assert_eq!(config.global, Default::default());
}

#[test]
fn flags_reach_the_configuration() {
    let config = given(
        "parshall relay :80-81 a.example:80-81 unix:/run/x --engine splice --buffer 32KiB --threads 2 --allow 10.0.0.0/8 \
         --allow ::1 --deny 10.9.0.0/16 --max-connections 99 --metrics 127.0.0.1:9100 --log stdout --connect-timeout 2s \
         --idle-timeout off --proxy-in --proxy-from 10.0.0.5 --proxy-from ::1 --proxy-out v1 --balance source-hash --rate 5/s --per-source 3 --bandwidth 1MiB/s \
         --drain 5s --user nobody --control /run/c",
    );
    assert_eq!(config.listeners.len(), 4, "two ports on IPv4 and on IPv6");
    let l = &config.listeners[1];
    assert_eq!(l.targets.iter().map(|t| t.endpoint.to_string()).collect::<Vec<_>>(), ["a.example:81", "unix:/run/x"]);
    assert_eq!((l.engine, l.buffer, l.balance), (EngineChoice::Splice, 32 << 10, Balance::SourceHash));
    assert_eq!((l.limits.rate, l.limits.per_source, l.limits.bandwidth), (Some(5), Some(3), Some(1 << 20)));
    assert_eq!((l.timeouts.connect, l.timeouts.idle), (Duration::from_secs(2), Duration::ZERO));
    assert_eq!((l.proxy_in, l.proxy_from.len(), l.proxy_out), (true, 2, Some(ProxyVersion::V1)));
    assert_eq!(l.access.iter().map(|r| r.allow).collect::<Vec<_>>(), [false, true, true]);
    let global = &config.global;
    assert_eq!((global.threads, global.max_connections), (Some(2), Some(99)));
    assert_eq!((&global.log, global.drain), (&LogTo::Stdout, Duration::from_secs(5)));
    assert_eq!((global.user.as_deref(), global.control.as_deref()), (Some("nobody"), Some("/run/c")));
    let udp = given("parshall relay --udp 127.0.0.1:53 10.0.0.2:53");
    assert_eq!((udp.listeners[0].protocol, udp.listeners[0].timeouts.idle), (Protocol::Udp, Duration::from_secs(60)));
}

#[test]
fn files_and_commands_are_told_from_addresses() {
    assert!(
        matches!(request("parshall relay -c x.toml"), RelayRequest::Run(Source::File(path)) if path.ends_with("x.toml"))
    );
    match request("parshall relay check check --format json") {
        RelayRequest::Check { path, output } => assert!(path.ends_with("check") && output.format == Format::Json),
        other => panic!("{other:?}"),
    }
    assert!(matches!(request("parshall relay top"), RelayRequest::Top { control: None, .. }));
    assert!(matches!(request("parshall relay top --control /c"), RelayRequest::Top { control: Some(_), .. }));
    let check = given("parshall relay check:80 top:81");
    assert_eq!(check.listeners[0].listen, Endpoint::Name("check".to_owned(), 80));
}

#[test]
fn errors_have_a_hint() {
    let cases = [
        ("", "what to forward is not given", "or a file with -c"),
        ("9000 127.0.0.1:1", "`9000` has no port", "write 127.0.0.1:9000"),
        ("127.0.0.1:9000", "there is no target for 127.0.0.1:9000", "name one"),
        ("relay.toml", "`relay.toml` has no port", "`parshall relay -c relay.toml`"),
        ("chekc relay.toml", "`chekc` has no port", "`relay check`"),
        ("check", "<FILE> is not given", "parshall relay check --help"),
        ("127.0.0.1:1 127.0.0.1:0", "a target cannot have port 0", "1 to 65535"),
        ("127.0.0.1:1 127.0.0.1:1", "127.0.0.1:1 would forward to itself", "another target"),
        ("127.0.0.1:1-3 127.0.0.1:7-8", "the target has 2 ports, its listener 3 ports", "map one to one"),
        ("127.0.0.1:1 a:1 --buffer 64KB2", "--buffer: `64KB2` is not a number of bytes", "64KiB"),
        ("127.0.0.1:1 a:1 --engine splcie", "--engine: `splcie` is not one of its values", "did you mean `splice`?"),
        ("127.0.0.1:1 a:1 --allow 10.0.0.1/8", "--allow: `10.0.0.1/8` has bits set", "write 10.0.0.0/8"),
        ("127.0.0.1:1 a:1 --allow ::1 --deny all", "`allow ::1/128` never holds", "narrower"),
        ("127.0.0.1:1 a:1 --udp --engine splice", "`engine` cannot be used with UDP", "leave it out"),
        ("127.0.0.1:1 a:1 --proxy-out v3", "--proxy-out: `v3` is not one of its values", "choose one of v1, v2"),
        ("127.0.0.1:1 a:1 --proxy-in", "`proxy-in` needs `proxy-from`", "name the proxies"),
        ("127.0.0.1:1 a:1 --proxy-in --proxy-from x", "--proxy-from: `x` is not an address or a network", "10.0.0.0/8"),
        ("127.0.0.1:1 a:1 --source eth0", "--source: `eth0` is not an address", "as 192.0.2.1"),
        ("-c x.toml --threads 2", "cannot be used together", "write it into the file"),
        ("-c x.toml 127.0.0.1:1 a:1", "cannot be used together", "write it into the file"),
        ("127.0.0.1:1 a:1 --theads 2", "`--theads` is not an option of `parshall relay`", "did you mean `--threads`?"),
    ];
    for (line, what, hint) in cases {
        let words = ["parshall", "relay"].into_iter().chain(line.split_whitespace());
        let error = parse(words).unwrap_err();
        assert!(!error.what.contains('\n') && !error.hint.contains('\n'), "{error:?}");
        assert!(error.what.contains(what) && error.hint.contains(hint), "{line}: {error:?}");
    }
}
