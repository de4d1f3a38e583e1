//! The meaning of the two languages, their errors and positions; and that no text makes a parser panic.
use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn toml(text: &str) -> Config {
    parse_toml(text).unwrap_or_else(|errors| panic!("{errors:#?}"))
}

fn rinetd(text: &str) -> Config {
    parse_rinetd(text).unwrap_or_else(|errors| panic!("{errors:#?}"))
}

/// `LINE:COLUMN what | hint` for each error.
fn errors(text: &str) -> Vec<String> {
    let errors = parse(text).expect_err("errors");
    errors.iter().map(|m| format!("{}:{} {} | {}", m.line, m.column, m.what, m.hint)).collect()
}

fn ip(text: &str) -> Endpoint {
    Endpoint::Ip(text.parse().unwrap())
}

fn access(listener: &Listener) -> Vec<String> {
    listener.access.iter().map(ToString::to_string).collect()
}

/// The code blocks of the document with this word after the fence.
fn blocks(language: &str) -> Vec<&'static str> {
    let document = include_str!("../../../../../docs/relay.md");
    let fence = format!("```{language}\n");
    document.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// A bug that the fuzzer found: such a line was neither a listener nor an error.
#[test]
fn a_unix_socket_alone_forwards_nothing() {
    for text in ["unix:)", "unix:[: ", "unix:/run/x.sock # nowhere"] {
        let found =
            "1:1 the line has no address to connect to | write what to forward, as in unix:/run/x.sock 10.0.0.2 9001";
        assert_eq!(errors(text), [found], "{text}");
    }
}

#[test]
fn the_example_of_the_document_is_understood() {
    let [text] = blocks("toml")[..] else { panic!("one example in TOML") };
    assert_eq!(language(text), Language::Toml);
    let config = toml(text);
    assert_eq!(config.global.threads, Some(4));
    assert_eq!(config.global.max_connections, Some(20_000));
    assert_eq!(config.global.log, LogTo::File("/var/log/parshall/relay.json".into()));
    assert_eq!(config.listeners.len(), 1 + 2 + 10 + 2);
    // The document says that these are the defaults.
    let web = &config.listeners[1];
    let plain = Listener::new(Protocol::Tcp, web.listen.clone(), web.targets.clone());
    assert_eq!(web.name, "web/0.0.0.0:80");
    assert_eq!(web.timeouts, plain.timeouts);
    assert_eq!(
        web.sockets,
        SocketOptions { receive_buffer: Some(4 << 20), send_buffer: Some(4 << 20), ..plain.sockets }
    );
    assert_eq!(web.health, Health { check: Some(Check::default()), ..plain.health });
    assert_eq!((web.engine, web.buffer), (plain.engine, plain.buffer));
    assert_eq!(web.targets.iter().map(|t| t.weight).collect::<Vec<_>>(), [1, 3, 1]);
    assert_eq!(web.limits.bandwidth, Some(10 << 20));
    assert_eq!(access(web), ["allow 10.0.0.0/8", "allow 2001:db8::/32", "deny 0.0.0.0/0", "deny ::/0"]);
    let range = &config.listeners[12];
    assert_eq!((&range.listen, &range.targets[0].endpoint), (&ip("127.0.0.1:5009"), &ip("10.0.0.3:6009")));
    let dns = &config.listeners[13];
    assert_eq!((dns.name.as_str(), dns.protocol), ("0.0.0.0:53/udp", Protocol::Udp));
    assert_eq!(dns.timeouts.idle, Duration::from_secs(20));
}

#[test]
fn the_rinetd_example_of_the_document_is_understood_but_for_the_unix_socket() {
    let text = blocks("").into_iter().find(|b| b.contains("bindaddress")).unwrap();
    assert_eq!(language(text), Language::Rinetd);
    let found = errors(text);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].contains("its clients have no address"), "{found:#?}");
    let without: String = text.lines().filter(|l| !l.starts_with("unix:")).map(|l| format!("{l}\n")).collect();
    let config = rinetd(&without);
    assert_eq!(config.listeners.len(), 3 + 10);
    assert_eq!(config.listeners[1].protocol, Protocol::Udp);
    assert_eq!(config.listeners[1].timeouts.idle, Duration::from_secs(20));
    assert_eq!(config.listeners[2].source, Some("10.0.1.1".parse().unwrap()));
    assert_eq!(config.listeners[2].sockets.keepalive, None);
    assert_eq!(access(&config.listeners[2]).last().unwrap(), "allow 10.0.7.0/24");
    assert_eq!(access(&config.listeners[0]).last().unwrap(), "allow 10.0.0.0/16");
}

#[test]
fn the_language_is_recognised() {
    let cases = [
        ("threads=2\n", Language::Toml),
        ("# x\n\n[[listener]]\n", Language::Toml),
        ("[defaults]\n", Language::Toml),
        ("listen = [", Language::Toml),
        ("", Language::Toml),
        ("10.0.0.1 80 10.0.0.2 80", Language::Rinetd),
        ("\u{feff}# rinetd.conf\nallow *\n", Language::Rinetd),
        ("[::1] 80 [::1] 81", Language::Rinetd),
        ("localhost 80 10.0.0.2 80 [timeout=3]", Language::Rinetd),
        ("unix:/a=b 10.0.0.2 80", Language::Rinetd),
        ("logcommon", Language::Rinetd),
    ];
    for (text, expected) in cases {
        assert_eq!(language(text), expected, "{text}");
    }
}

#[test]
fn a_listeners_own_setting_overrides_and_defaults_that_do_not_fit_are_left_out() {
    let config = toml(
        r#"
        [[listener]]
        listen = "127.0.0.1:1"
        target = "10.0.0.1:1"
        engine = "copy"
        source = "10.0.0.9"
        limits = { connections = 5 }
        [[listener]]
        protocol = "udp"
        listen = "127.0.0.1:1"
        target = "10.0.0.1:1"
        [[listener]]
        listen = "unix:/run/x"
        target = "10.0.0.1:1"
        [defaults]
        engine = "splice"
        transparent = true
        proxy-in = false
        allow = ["10.0.0.0/8"]
        limits = { connections = 9, rate = 7 }
        timeouts = { idle = "9s", connect = "2s" }
        "#,
    );
    let [tcp, udp, unix] = &config.listeners[..] else { panic!("{config:#?}") };
    assert_eq!((tcp.engine, tcp.transparent, tcp.source.is_some()), (EngineChoice::Copy, false, true));
    assert_eq!((tcp.limits.connections, tcp.limits.rate), (Some(5), Some(7)));
    assert_eq!((udp.engine, udp.timeouts.idle), (EngineChoice::Auto, Duration::from_secs(9)));
    assert_eq!(udp.timeouts.connect, Timeouts::new(Protocol::Udp).connect);
    assert_eq!(access(udp), ["allow 10.0.0.0/8"]);
    assert!(unix.access.is_empty() && !unix.transparent);
    assert_eq!((unix.engine, unix.timeouts.connect), (EngineChoice::Splice, Duration::from_secs(2)));
}

#[test]
fn an_access_default_applies_to_a_unix_socket_with_proxy_headers() {
    let text =
        "[defaults]\nallow = \"10.0.0.0/8\"\nproxy-in = true\n[[listener]]\nlisten=\"unix:@x\"\ntarget=\"a:1\"\n";
    assert_eq!(access(&toml(text).listeners[0]), ["allow 10.0.0.0/8"]);
}

#[test]
fn proxy_headers_need_a_list_of_proxies() {
    let config = toml(&with("proxy-in = true\nproxy-from = [\"10.0.0.5\", \"2001:db8::/32\"]"));
    let networks = |l: &Listener| l.proxy_from.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(networks(&config.listeners[0]), ["10.0.0.5/32", "2001:db8::/32"]);
    assert_eq!(networks(&toml(&with("proxy-in = true\nproxy-from = \"all\"")).listeners[0]), ["0.0.0.0/0", "::/0"]);
    for (line, expected) in [
        ("proxy-in = true", "4:1 `proxy-in` needs `proxy-from`"),
        ("proxy-from = [\"10.0.0.5\"]", "4:1 `proxy-from` cannot be used without `proxy-in`"),
        ("proxy-in = true\nproxy-from = []", "5:14 `proxy-from` is empty | name at least one"),
        ("proxy-in = true\nproxy-from = [\"10.0.0.1/8\"]", "5:15 proxy-from: `10.0.0.1/8` has bits set"),
        ("proxy-in = true\nproxy-from = [7]", "5:15 `proxy-from` holds strings, but this is a number"),
    ] {
        let found = errors(&with(line));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{line}: {found:#?}");
    }
    let unix = with("proxy-in = true\nproxy-from = \"10.0.0.5\"").replace("127.0.0.1:9000", "unix:/run/x");
    assert!(errors(&unix)[0].contains("the rights of the socket"));
    // `proxy-in` without `proxy-from` is an error in the defaults too.
    let found = errors(&format!("[defaults]\nproxy-in = true\n{}", with("")));
    assert!(found.len() == 1 && found[0].starts_with("2:1 `proxy-in` needs `proxy-from`"), "{found:#?}");
    let defaults = "[defaults]\nproxy-in = true\nproxy-from = [\"10.0.0.5\"]\n";
    let config = toml(&format!(
        "{defaults}{}{}{}{}",
        with("proxy-from = [\"10.0.0.6\"]"),
        with("proxy-in = false").replace("9000", "9002"),
        with("").replace("127.0.0.1:9000", "unix:/run/x"),
        with("protocol = \"udp\""),
    ));
    let [own, off, unix, udp] = &config.listeners[..] else { panic!("{config:#?}") };
    assert_eq!((own.proxy_in, networks(own)), (true, vec!["10.0.0.6/32".to_owned()]));
    assert!(!off.proxy_in && off.proxy_from.is_empty() && !udp.proxy_in && udp.proxy_from.is_empty());
    assert!(unix.proxy_in && unix.proxy_from.is_empty());
}

#[test]
fn ranges_become_listeners_with_names_of_their_own() {
    let config = toml("[[listener]]\nname = \"x\"\nlisten = [\":1-2\", \"[::1]:7-8\"]\ntarget = \"b.example:5-6\"");
    let lines: Vec<String> = config.listeners.iter().map(|l| format!("{} {}", l.name, l.targets[0].endpoint)).collect();
    let expected = "x/0.0.0.0:1 b.example:5, x/0.0.0.0:2 b.example:6, x/[::]:1 b.example:5, x/[::]:2 b.example:6, \
                    x/[::1]:7 b.example:5, x/[::1]:8 b.example:6";
    assert_eq!(lines.join(", "), expected);
    let free = toml("[[listener]]\nlisten = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\ntarget = \"a:1\"");
    assert_eq!(free.listeners[1].name, "127.0.0.1:0#2");
}

#[test]
fn rinetd_rules_of_the_file_and_of_a_line_are_combined() {
    let config = rinetd("allow 10.*\ndeny 10.9.*.*\n:: 80 10.0.0.1 80\nallow 10.1.*.*\nallow *.*.*.*\ndeny 10.1.1.1\n");
    assert_eq!(
        access(&config.listeners[0]),
        ["deny 10.9.0.0/16", "deny 10.1.1.1/32", "allow 10.1.0.0/16", "allow 10.0.0.0/8"]
    );
    let found = errors("allow 10.*\n:: 80 10.0.0.1 80\nallow 11.*\n");
    assert!(found[0].starts_with("3:7 `allow 11.0.0.0/8` never holds"), "{found:?}");
}

#[test]
fn every_error_is_reported_with_its_position() {
    let text = "thread = 4\n[[listener]]\nlisten = \"127.0.0.1\"\ntarget = \"10.0.0.2:0\"\n  buffer = \"1TB\"\n\
                [[listener]]\nlisten = 'x:1'\ntargets = [\"ok:1\", { address = \"ok:2\", weight = 0 }]\n\
                allow = [ \"10.0.0.0/8\",\n  \"10.0.0.0/33\" ]\n";
    let found = errors(text);
    let expected = [
        "1:1 unknown key `thread` | did you mean `threads`?",
        "3:10 listen: `127.0.0.1` has no port |",
        "4:10 target: a target cannot have port 0 |",
        "5:12 buffer: `1TB` is not a number of bytes |",
        "8:49 weight: `0` is not a weight |",
        "10:3 allow: `10.0.0.0/33` is not a network: its prefix is not 0 to 32 |",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found} instead of {expected}");
    }
}

/// A listener in TOML with this line in it.
fn with(line: &str) -> String {
    format!("[[listener]]\nlisten = \"127.0.0.1:9000\"\ntarget = \"10.0.0.2:9001\"\n{line}\n")
}

#[test]
fn settings_that_conflict_are_errors() {
    let tcp = [
        ("transparent = true\nsource = \"10.0.0.1\"", "4:1 `source` and `transparent` cannot be used together"),
        ("source = \"::1\"", "4:1 `source` is an IPv6 address, but all targets are IPv4"),
        ("metrics = \"127.0.0.1:1\"", "4:1 unknown key `metrics`"),
        ("idle = \"5s\"", "4:1 unknown key `idle`"),
        ("health = { check = { interval = \"1s\", timeout = \"2s\" } }", "4:39 the check's timeout is longer"),
        ("allow = \"10.0.0.0/8\"\ndeny = \"all\"", "4:9 `allow 10.0.0.0/8` never holds: `deny 0.0.0.0/0` comes first"),
        ("access = [\"allow all\", \"deny ::1\"]", "4:24 `deny ::1/128` never holds: `allow ::/0` comes first"),
        ("allow = \"10.0.0.0/8\"\naccess = []", "4:1 `access` and `allow` cannot be used together"),
        ("targets = [\"a:1\"]", "4:1 the listener has `target` and `targets`"),
        (
            "[[listener]]\nlisten = \"127.0.0.1:9000\"\ntarget = \"b:1\"",
            "5:10 127.0.0.1:9000 is already listened on in line 2",
        ),
        (
            "[[listener]]\nlisten = \"127.0.0.1:9002\"\ntarget = \"127.0.0.1:9002\"",
            "6:10 127.0.0.1:9002 would forward to itself",
        ),
        ("[[listener]]\nlisten = \":1-9\"\ntarget = \"b:1-8\"", "6:10 the target has 8 ports, its listener 9 ports"),
        ("[[listener]]\nlisten = \":1\"\ntarget = \"b:1-8\"", "6:10 the target has 8 ports, its listener one port"),
    ];
    for (line, expected) in tcp {
        let found = errors(&with(line));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{line}: {found:#?}");
    }
    for line in [
        "proxy-in = true",
        "proxy-from = \"::1\"",
        "proxy-out = \"v1\"",
        "engine = \"splice\"",
        "timeouts.connect = \"1s\"",
        "buffer = 4096",
    ] {
        let found = errors(&with(&format!("protocol = \"udp\"\n{line}")));
        assert!(found.len() == 1 && found[0].contains("cannot be used with UDP"), "{line}: {found:#?}");
    }
    for line in ["transparent = true", "allow = \"::1\"", "balance = \"source-hash\"", "limits.per-source = 1"] {
        let unix = with(line).replace("127.0.0.1:9000", "unix:/run/x");
        let found = errors(&unix);
        assert!(found.len() == 1 && found[0].contains("its clients have no address"), "{line}: {found:#?}");
    }
    let udp = with("protocol = \"udp\"").replace("10.0.0.2:9001", "unix:/run/x");
    assert!(errors(&udp)[0].starts_with("3:10 a Unix socket cannot be used with UDP"));
}

#[test]
fn syntax_errors_have_positions() {
    let cases = [
        (
            "threads = 1\nlog = 127.0.0.1:9000 # x\n",
            "2:7 `127.0.0.1:9000` is neither a number nor in quotes | write log = \"",
        ),
        ("threads = 1\nthreads = 2\n", "2:1 this is not TOML: duplicate key"),
        ("a = [1, 2\n", "this is not TOML: "),
        ("user = stdout", "1:8 `stdout` is neither a number nor in quotes | write user = \"stdout\""),
    ];
    for (text, expected) in cases {
        let found = errors(text);
        assert!(found.iter().any(|t| t.contains(expected)), "{text}: {found:#?}");
    }
}

#[test]
fn names_are_unique() {
    let text = "[[listener]]\nname = \"a\"\nlisten = \"127.0.0.1:1\"\ntarget = \"x:1\"\n\
                [[listener]]\nname = \"a\"\nlisten = \"127.0.0.1:2\"\ntarget = \"x:1\"\n";
    assert!(errors(text)[0].starts_with("6:8 the name `a` is already used in line 2"));
}

#[test]
fn too_many_listeners_are_an_error() {
    let found = errors(&with("").replace("127.0.0.1:9000", "127.0.0.1:1-65535"));
    assert!(found.len() == 1 && found[0].starts_with("2:10 there are more than 16384 ports"), "{found:#?}");
}

#[test]
fn errors_in_rinetd_lines_have_positions() {
    let cases = [
        ("10.0.0.1 80 10.0.0.2", "1:13 there is no port behind `10.0.0.2`"),
        ("10.0.0.1 80/udp 10.0.0.2 80", "1:17 the line forwards between TCP and UDP"),
        ("10.0.0.1 80 10.0.0.2 99999", "1:22 `99999` is not a port"),
        ("10.0.0.1 80 10.0.0.2 nosuch", "1:22 the service `nosuch` is not known here"),
        ("10.0.0.1 80 10.0.0.2 80 [timeout=x, scr=1]", "1:26 timeout: `x` is not a number of seconds"),
        ("alow 10.*\n10.0.0.1 80 10.0.0.2 80", "1:1 `alow` begins no line that is known | did you mean `allow`?"),
        ("allow 10.*.3.4?\n10.0.0.1 80 10.0.0.2 80", "1:7 the pattern `10.*.3.4?` takes too many networks"),
        ("allow\n", "1:1 `allow` wants one pattern"),
        ("logcommon\n", "1:1 no line forwards anything"),
        ("é 80 10.0.0.1 80 # x\n", "1:1 `é` is neither an address nor a name"),
    ];
    for (text, expected) in cases {
        let found = parse_rinetd(text).expect_err(text);
        let first = format!("{}:{} {} | {}", found[0].line, found[0].column, found[0].what, found[0].hint);
        assert!(first.starts_with(expected), "{text}: {first}");
    }
}

#[test]
fn addresses() {
    for (text, shown) in [
        ("127.0.0.1:9000", "127.0.0.1:9000"),
        ("[::1]:9000", "[::1]:9000"),
        ("[fe80::1%2]:9000", "[fe80::1%2]:9000"),
        (":9000", "0.0.0.0:9000 [::]:9000"),
        ("*:9000", "0.0.0.0:9000 [::]:9000"),
        ("localhost:0", "localhost:0"),
        ("unix:/run/x.sock", "unix:/run/x.sock"),
        ("unix:@x", "unix:@x"),
    ] {
        let specs = address::listen(text).unwrap();
        assert_eq!(specs.iter().map(|s| s.endpoint(0).to_string()).collect::<Vec<_>>().join(" "), shown);
    }
    let hints = [
        ("9000", "write 127.0.0.1:9000"),
        ("/run/x.sock", "write unix:/run/x.sock for a Unix socket"),
        ("tcp://a:80", "write `a:80` alone"),
        ("http://a:80/", "write `a:80` alone"),
        ("http://10.0.0.2/x?y=1", "write `10.0.0.2:80` alone"),
        ("https://user:secret@[2001:db8::2]/", "write `[2001:db8::2]:443` alone"),
        ("tcp://[::1]:80", "write `[::1]:80` alone"),
        ("redis://a/1", "write `a` alone, and its port behind a colon"),
        ("a:53/udp", "write a:53, and protocol = \"udp\" in a file or --udp on the command line"),
        ("a:80/", "write a:80"),
        ("::1:9000", "write [::1:9000]:9000"),
        ("fe80::1%eth0:80", "write [fe80::1%eth0]:80"),
        ("[fe80::1%eth0]:80", "write its number, as in [fe80::1%2]; `ip link` prints it"),
        ("a:10-5", "write 5-10"),
        ("a:http", "ports are numbers from 1 to 65535, ranges are written as 9000-9010"),
        ("300.0.0.1:80", "write four numbers from 0 to 255, as in 127.0.0.1"),
        ("a b:80", "names are made of letters, digits, `-` and `.`, as in backend.example"),
    ];
    for (text, hint) in hints {
        if let Some(address) = hint.strip_prefix("write `").and_then(|hint| hint.strip_suffix("` alone")) {
            assert!(address::target(address).is_ok(), "{hint} is no help");
        }
        assert_eq!(address::target(text).unwrap_err().hint, hint, "{text}");
    }
    for text in ["", ":", "[", "[]", "[]:1", "[::1]", "[::1]x:1", "-a:1", "a..b:1", "a:0-5", "unix:", "a:+1", ":80"] {
        assert!(address::target(text).is_err(), "{text}");
    }
    assert!(address::unix(&"x".repeat(108)).is_err());
}

/// The invariants of every configuration that a parser returns.
fn check(config: &Config) {
    assert!(!config.listeners.is_empty());
    let mut names: Vec<&str> = config.listeners.iter().map(|l| l.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), config.listeners.len(), "names are unique");
    for l in &config.listeners {
        assert!(!l.targets.is_empty() && l.targets.iter().all(|t| (1..=1000).contains(&t.weight)));
        assert!((1 << 10..=16 << 20).contains(&l.buffer));
        assert!(l.access.iter().all(|r| r.network.trunc() == r.network));
    }
}

fn well_placed(text: &str, errors: &[ConfigError]) {
    assert!(!errors.is_empty());
    for m in errors {
        let line = text.split('\n').nth(m.line as usize - 1).expect("the line exists");
        assert!(m.column as usize <= line.chars().count() + 1, "{m:?} in {line:?}");
        assert!(!m.what.contains(char::is_control) && !m.hint.is_empty(), "{m:?}");
    }
}

/// Pieces of both languages, so that random texts get past the first line.
fn piece() -> impl Strategy<Value = String> {
    const WORDS: &[&str] = &[
        "[[listener]]\n",
        "[defaults]\n",
        "[listener.limits]\n",
        "listen",
        "target",
        " = ",
        "\"127.0.0.1:80\"",
        "\":1-3\"",
        "\"a:1\"",
        "\n",
        "{",
        "}",
        "[",
        "]",
        ",",
        "weight",
        "protocol = \"udp\"\n",
        "engine = \"splice\"\n",
        "allow = ",
        "\"10.0.0.0/8\"",
        "access = [\"deny all\"]\n",
        "threads = 1\n",
        "allow ",
        "deny ",
        "10.*",
        " 10.0.0.1 ",
        " 80 ",
        "53/udp",
        "[timeout=1,src=::1]",
        "unix:/x ",
        "#",
        "true",
        "1.5",
        "'",
        "\u{feff}",
        "\t",
        "é",
        "timeouts.idle = \"1s\"\n",
    ];
    prop_oneof![9 => prop::sample::select(WORDS).prop_map(str::to_owned), 1 => ".{0,4}"]
}

proptest! {
    #[test]
    fn any_text_is_a_configuration_or_has_errors_in_it(pieces in prop::collection::vec(piece(), 0..24)) {
        let text = pieces.concat();
        for result in [parse_toml(&text), parse_rinetd(&text)] {
            match result {
                Ok(config) => check(&config),
                Err(errors) => well_placed(&text, &errors),
            }
        }
    }

    #[test]
    fn both_languages_say_the_same(
        a: [u8; 4], b: u128, from in 1u16..=65_000, to in 1u16..=65_000, count in 0u16..5, udp: bool,
    ) {
        let (listen, target) = (std::net::Ipv4Addr::from(a), std::net::Ipv6Addr::from(b));
        let (last_from, last_to) = (from + count, to + count);
        let (suffix, protocol) = if udp { ("/udp", "udp") } else { ("", "tcp") };
        let lines = format!("{listen} {from}-{last_from}{suffix} {target} {to}-{last_to}{suffix}");
        let table = format!(
            "[[listener]]\nprotocol = \"{protocol}\"\nlisten = \"{listen}:{from}-{last_from}\"\ntarget = \"[{target}]:{to}-{last_to}\""
        );
        let config = parse(&lines).unwrap();
        check(&config);
        prop_assert_eq!(config.listeners.len(), usize::from(count) + 1);
        prop_assert_eq!(config, parse(&table).unwrap());
    }

    #[test]
    fn a_shown_address_reads_back(v6: u128, v4: u32, port in 1u16.., name in "[a-z]{1,9}(\\.[a-z0-9]{1,5}){0,3}") {
        for text in [
            format!("{}:{port}", std::net::Ipv4Addr::from(v4)),
            format!("[{}]:{port}", std::net::Ipv6Addr::from(v6)),
            format!("{name}.x:{port}"),
            format!("unix:/{name}"),
        ] {
            prop_assert_eq!(address::target(&text).unwrap().endpoint(0).to_string(), text);
        }
    }
}
