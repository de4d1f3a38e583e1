//! Files of experiments: what is right, and every error with its line and a hint.
use super::*;

const GOOD: &str = r#"title = "t"
variable = { name = "size", a = "8KiB", b = 65536 }
command = ["program", "--size", "{size}"]
environment = { SIZE = "{size}" }
timeout = "2s"
blocks = 16
smallest_effect = "5%"
limits = { steal = "off", other_cpu = "20%" }
wire = { kind = "veth", loss_percent = 1.0 }

[[process]]
name = "server"
side = "server"
command = ["program", "--serve", "{addr}:{port}"]

[[metric]]
name = "rate"
unit = "1/s"
better = "higher"
json = "/rate"

[[metric]]
name = "demand"
better = "lower"
measure = "cpu-time"
of = "all"
per = "rate"
"#;

fn parsed(text: &str) -> Experiment {
    Experiment::parse("x.toml", text).unwrap_or_else(|error| panic!("{error:?}"))
}

#[test]
fn a_right_file_is_read() {
    let experiment = parsed(GOOD);
    let [a, b] = &experiment.variable.values[..] else { panic!("two values") };
    assert_eq!(experiment.command(a), ["program", "--size", "8KiB"]);
    assert_eq!(experiment.command(b), ["program", "--size", "65536"]);
    assert_eq!(experiment.environment(b)["SIZE"], "65536");
    assert_eq!((experiment.blocks, experiment.smallest, experiment.timeout.as_secs()), (16, 0.05, 2));
    assert_eq!((experiment.limits.steal, experiment.limits.other_cpu), (None, Some(0.2)));
    assert_eq!(experiment.metrics.len(), 2);
    assert!(experiment.stage(a).needs_root());
    experiment.check_programs().expect("it needs none");
}

#[test]
fn a_list_stands_for_whole_arguments() {
    let text = GOOD.replace("a = \"8KiB\", b = 65536", "a = [], b = [\"--nodelay\", \"--cork\"]");
    let text = text.replace("\"--size\", \"{size}\"", "\"{size}\", \"last\"");
    let experiment = parsed(&text);
    let commands: Vec<Vec<String>> = experiment.variable.values.iter().map(|value| experiment.command(value)).collect();
    assert_eq!(commands, [vec!["program", "last"], vec!["program", "--nodelay", "--cork", "last"]]);
}

#[test]
fn whole_commands_may_be_the_variable() {
    let text = GOOD.replace("a = \"8KiB\", b = 65536", "a = [\"old\"], b = [\"new\", \"-x\"]");
    let experiment = parsed(&text.replace("\"program\", \"--size\", \"{size}\"", "\"{size}\""));
    assert_eq!(experiment.command(&experiment.variable.values[1]), ["new", "-x"]);
}

#[test]
fn a_missing_program_is_named_with_its_line() {
    let experiment = parsed(&GOOD.replace("blocks = 16", "needs = [\"sh\",\n\"no-such-program-anywhere\"]"));
    let error = experiment.check_programs().expect_err("not installed");
    assert!(error.what.contains("x.toml:7: `no-such-program-anywhere` is not installed"), "{error:?}");
}

#[test]
fn errors_have_file_line_and_hint() {
    for (from, to, line, what, hint) in [
        ("timeout", "timeuot", 5, "unknown field `timeuot`", "did you mean `timeout`?"),
        ("timeout = \"2s\"", "timeout = \"1ms\"", 5, "too short", "from 100ms to 24h"),
        ("timeout = \"2s\"", "timeout = 2", 5, "invalid type", "docs/lab.md"),
        ("blocks = 16", "blocks = 4", 6, "4 is out of range", "from 8 to 256"),
        ("smallest_effect = \"5%\"", "smallest_effect = \"5\"", 7, "`5` is no share", "\"2%\""),
        ("smallest_effect = \"5%\"", "smallest_effect = 5", 7, "a share is needed", "\"2%\""),
        ("steal = \"off\"", "steal = \"much\"", 8, "`much` is no limit", "\"off\""),
        ("steal = \"off\"", "steel = \"off\"", 8, "unknown field `steel`", "did you mean `steal`?"),
        ("loss_percent = 1.0", "loss_percent = 200.0", 9, "out of range", "0 to 100"),
        ("kind = \"veth\"", "kind = \"loopback\"", 9, "loses nothing", "veth"),
        ("name = \"size\"", "name = \"port\"", 2, "cannot be the name", "placeholders"),
        ("name = \"size\"", "name = \"sise\"", 2, "`{sise}` is used nowhere", "{sise}"),
        ("b = 65536", "second = 65536", 2, "unknown field `second`", "choose one of"),
        ("a = \"8KiB\", b = 65536", "a = 1, values = [1, 2]", 2, "needs its values", "lab sweep"),
        ("a = \"8KiB\", b = 65536", "values = [1]", 2, "a sweep over 1 values", "2 to 64"),
        ("a = \"8KiB\", b = 65536", "values = [1, 2, 1]", 2, "`1` stands there twice", "passes repeat"),
        ("[\"program\", \"--size\", \"{size}\"]", "[]", 3, "the command is empty", "PROGRAM"),
        ("name = \"server\"", "name = \"all\"", 11, "the name `all` is taken", "name of its own"),
        ("json = \"/rate\"", "json = \"rate\"", 20, "`rate` is no JSON pointer", "slash"),
        ("json = \"/rate\"", "regex = '[0-9]+'", 20, "needs one group", "parentheses"),
        ("json = \"/rate\"", "regex = '([0-9]+'", 20, "is wrong", "rate: ([0-9.]+)"),
        ("json = \"/rate\"", "", 17, "`rate` needs one source", "json, output or measure"),
        ("better = \"higher\"", "better = \"neither\"", 17, "needs a direction", "higher"),
        ("better = \"higher\"", "better = \"more\"", 19, "unknown variant `more`", "choose one of"),
        ("name = \"demand\"", "name = \"rate\"", 23, "twice", "name of its own"),
        ("of = \"all\"", "of = \"client\"", 26, "no process `client`", "[[process]]"),
        ("per = \"rate\"", "per = \"bytes\"", 27, "no other metric `bytes`", "another metric"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        let error = Experiment::parse("x.toml", &text).expect_err(to);
        assert!(error.what.contains(&format!("x.toml:{line}: ")), "{to}: {error:?}");
        assert!(error.what.contains(what), "{to}: {error:?}");
        assert!(error.hint.contains(hint), "{to}: {error:?}");
    }
}

#[test]
fn a_metric_by_difference_needs_a_smallest_effect_in_its_unit() {
    let text = GOOD.replace("json = \"/rate\"", "json = \"/rate\"\ncompare = \"difference\"");
    let error = Experiment::parse("x.toml", &text).expect_err("a share");
    assert!(error.what.contains("a number above 0"), "{error:?}");
    assert_eq!(parsed(&text.replace("\"5%\"", "0.5")).smallest, 0.5);
    let sweep = text.replace("a = \"8KiB\", b = 65536", "values = [1, 2]");
    let error = Experiment::parse("x.toml", &sweep).expect_err("a sweep");
    assert!(error.what.contains("x.toml:2: `rate` is compared by its difference"), "{error:?}");
    let error = Experiment::parse("x.toml", &text.replace("smallest_effect = \"5%\"", "")).expect_err("none");
    assert!(error.what.contains("no smallest_effect is set"), "{error:?}");
}

#[test]
fn a_file_without_metrics_is_refused() {
    let text = GOOD.split("[[metric]]").next().expect("the front");
    let error = Experiment::parse("x.toml", text).expect_err("no metric");
    assert!(error.what.contains("0 metrics") && error.hint.contains("[[metric]]"), "{error:?}");
}

#[test]
fn the_variable_may_be_a_sysctl_of_a_testbed() {
    let testbed = "[[testbed.namespace]]
name = \"client\"
[[testbed.namespace]]
name = \"server\"
sysctls = { \"net.ipv4.tcp_rmem\" = \"4096 {size} {size}\" }
[[testbed.link]]
a = { namespace = \"client\", device = \"eth0\", address = \"10.1.0.2/24\" }
b = { namespace = \"server\", device = \"eth0\", address = \"10.1.0.1/24\" }
";
    let text = GOOD.replace("wire = { kind = \"veth\", loss_percent = 1.0 }\n", "");
    let text =
        text.replace("\"--size\", \"{size}\"", "\"--size\"").replace("environment = { SIZE = \"{size}\" }\n", "");
    let text = format!("{text}{testbed}");
    let experiment = parsed(&text);
    let network = experiment.stage(&experiment.variable.values[1]).network.expect("a testbed");
    assert_eq!(network.namespaces[1].sysctls[0].1, "4096 65536 65536");
    let wrong = text.replace("10.1.0.1/24", "10.2.0.1/24");
    let line = wrong[..wrong.find("10.2.0.1").expect("it is there")].lines().count();
    let error = Experiment::parse("x.toml", &wrong).expect_err("two networks");
    assert!(error.what.starts_with(&format!("x.toml:{line}: ")), "{}", error.what);
}

#[test]
fn two_commands_are_an_experiment() {
    let commands = ["gzip -1 \"a b\" | wc -c".to_owned(), "true".to_owned()];
    let experiment = Experiment::of_commands(&commands).expect("an experiment");
    let [a, b] = &experiment.variable.values[..] else { panic!("{:?}", experiment.variable) };
    assert_eq!(experiment.command(a), ["sh", "-c", commands[0].as_str()]);
    assert_eq!(experiment.command(b), ["sh", "-c", "true"]);
    let metrics: Vec<&str> = experiment.metrics.iter().map(|metric| metric.name.as_str()).collect();
    assert_eq!((experiment.variable.kind, metrics), (Kind::Ab, vec!["time", "cpu", "memory"]));
}
