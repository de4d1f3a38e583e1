//! The log on stderr: one format, and levels by `-v`, `-q` and `PARSHALL_LOG`.
//!
//! Anything may log with the macros of `tracing`. The result of a command is data and goes to stdout; the `error:` and
//! `hint:` lines with which a command fails are [`crate::error`]'s.
use std::fmt;
use std::io::IsTerminal;
use std::time::SystemTime;

use parshall_core::text::printable;
use tracing::{Event, Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::filter::{Filtered, Targets};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, Layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::{LookupSpan, Registry};

use crate::error::UserError;
use crate::log_writer::LogWriter;
use crate::utc;

/// A level for everything, or `target=level` pairs, separated by commas. The flags add to the level for everything.
const VARIABLE: &str = "PARSHALL_LOG";

/// The crates of the products: a target may be named without the prefix, as in `relay=debug`.
const PREFIX: &str = "parshall_";

/// Crates that several products share. Their messages carry no product's name.
const SHARED: [&str; 6] = ["bpf", "core", "evidence", "host", "sys", "parshall"];

/// The levels from quiet to verbose, with their names in `PARSHALL_LOG`.
const LEVELS: [(&str, LevelFilter); 5] = [
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// The index in [`LEVELS`] without flags and without the variable.
const DEFAULT: usize = 2;

/// Starts the log of this process. `steps` is how many levels the flags ask for, above (`-v`) or below (`-q`) the default or
/// the variable's level. Fails when the variable cannot be read as levels.
pub fn start(steps: i32) -> Result<(), UserError> {
    let variable = std::env::var(VARIABLE).unwrap_or_default();
    let targets = targets(&variable, steps)?;
    // Tests may start the log twice; the first start counts.
    tracing::subscriber::set_global_default(subscriber(targets)).ok();
    Ok(())
}

fn subscriber(targets: Targets) -> impl Subscriber + Send + Sync {
    // The journal writes the time of each line itself.
    let time = !std::io::stderr().is_terminal() && std::env::var_os("JOURNAL_STREAM").is_none();
    let layer = Layer::<Registry>::new().with_writer(|| LogWriter).event_format(Lines { time });
    Registry::default().with(Filtered::new(layer, targets))
}

/// Levels of the log by target. Other crates log nothing unless they are named.
fn targets(variable: &str, steps: i32) -> Result<Targets, UserError> {
    let mut all = DEFAULT;
    let mut named = Vec::new();
    for word in variable.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        match word.split_once('=') {
            Some((target, level)) => named.push((target.trim(), LEVELS[position(level.trim())?].1)),
            None => all = position(word)?,
        }
    }
    let all = (all as i32).saturating_add(steps).clamp(0, LEVELS.len() as i32 - 1) as usize;
    let mut targets = Targets::new().with_target("parshall", LEVELS[all].1);
    for (target, level) in named {
        targets = targets.with_target(target, level).with_target(format!("{PREFIX}{target}"), level);
    }
    Ok(targets)
}

fn position(level: &str) -> Result<usize, UserError> {
    LEVELS.iter().position(|(name, _)| level.eq_ignore_ascii_case(name)).ok_or_else(|| {
        UserError::new(
            format!("{VARIABLE}: `{level}` is not a level"),
            format!("write one of error, warn, info, debug, trace, or targets as in `{VARIABLE}=info,relay=debug`"),
        )
    })
}

/// `warning: relay: MESSAGE`, preceded by the time if `time` is set.
struct Lines {
    time: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        if self.time {
            write!(to, "{} ", utc::iso(SystemTime::now()))?;
        }
        write!(to, "{}: ", word(*metadata.level()))?;
        let from = origin(metadata.target(), *metadata.level());
        if !from.is_empty() {
            write!(to, "{from}: ")?;
        }
        // Names of files, peers and processes: none of them may begin a line of its own.
        let mut fields = String::new();
        context.format_fields(Writer::new(&mut fields), event)?;
        writeln!(to, "{}", printable(&fields, ' '))
    }
}

fn word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "note",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// The product that a target belongs to; for `debug` and `trace` the whole module.
fn origin(target: &str, level: Level) -> &str {
    let module = target.strip_prefix(PREFIX).unwrap_or(target);
    if level >= Level::DEBUG {
        return module;
    }
    let product = module.split("::").next().unwrap_or_default();
    if SHARED.contains(&product) { "" } else { product }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_come_from_the_variable_and_the_flags() {
        let enables = |variable: &str, steps, target: &str, level| {
            targets(variable, steps).expect("levels").would_enable(target, &level)
        };
        assert!(enables("", 0, "parshall_relay::run", Level::INFO));
        assert!(!enables("", 0, "parshall_relay::run", Level::DEBUG));
        assert!(enables("", 1, "parshall_relay::run", Level::DEBUG));
        assert!(!enables("", -1, "parshall_relay::run", Level::INFO));
        assert!(enables("", -9, "parshall_relay::run", Level::ERROR));
        assert!(enables("warn", 9, "parshall_relay::run", Level::TRACE));
        assert!(!enables("error", 0, "parshall_relay::run", Level::WARN));
        assert!(enables("warn, relay=debug", 0, "parshall_relay::run", Level::DEBUG));
        assert!(!enables("warn,relay=debug", 0, "parshall_sockets", Level::INFO));
        assert!(enables("relay::worker=TRACE", 0, "parshall_relay::worker::accept", Level::TRACE));
    }

    #[test]
    fn other_crates_are_silent_unless_named() {
        let enables = |variable| targets(variable, 0).expect("levels").would_enable("rskafka::client", &Level::WARN);
        assert!(!enables("trace"));
        assert!(enables("rskafka=warn"));
    }

    #[test]
    fn an_unknown_level_is_refused() {
        for variable in ["loud", "relay=loud", "info,relay="] {
            let error = targets(variable, 0).expect_err(variable);
            assert!(error.what.starts_with("PARSHALL_LOG: `"), "{error:?}");
        }
    }

    #[test]
    fn a_line_names_its_product_or_its_module() {
        assert_eq!(origin("parshall_relay::worker::accept", Level::WARN), "relay");
        assert_eq!(origin("parshall_relay::worker::accept", Level::DEBUG), "relay::worker::accept");
        assert_eq!(origin("parshall_host::http", Level::WARN), "");
        assert_eq!(origin("parshall", Level::INFO), "");
    }
}
