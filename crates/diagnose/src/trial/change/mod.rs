//! The changes that can be tried: one file each, and this table.
//!
//! A change defines what it sets on which places, what cannot be reverted, and how to keep it. It does not know how places are
//! found or when it is made.
mod affinity;
mod congestion;
mod definition;
mod nice;
mod nodelay;
mod notsent_lowat;
mod pacing;
mod quickack;
mod quota;
mod rcvbuf;
mod sndbuf;
mod sysctl;

use parshall_core::text::{quote, suggest};
use parshall_host::error::UserError;

pub use definition::{Change, Kind, On};

/// The changes, in the order of the help. A sysctl has no name of its own.
pub const KINDS: [Kind; 10] = [
    nodelay::KIND,
    quickack::KIND,
    rcvbuf::KIND,
    sndbuf::KIND,
    notsent_lowat::KIND,
    congestion::KIND,
    pacing::KIND,
    affinity::KIND,
    nice::KIND,
    quota::KIND,
];

/// Parses a change.
///
/// # Errors
/// There is no such change, or its value is invalid.
pub fn parse(text: &str) -> Result<Change, UserError> {
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    if name.starts_with("net.") || name.starts_with("net/") {
        return sysctl::make(name, value.unwrap_or_default());
    }
    let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
        let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
        return Err(UserError::new(
            format!("{} is not a change that can be tried", quote(name)),
            format!("{}; a sysctl is written as net.ipv4.NAME=VALUE", suggest(name, &names)),
        ));
    };
    match (kind.value.is_empty(), value.is_none_or(str::is_empty)) {
        (true, false) => {
            let hint = format!("write `{name}` alone");
            return Err(UserError::new(format!("{name} takes no value"), hint));
        }
        (false, true) => {
            let hint = format!("write it as `{name}={}`: {}", kind.value, kind.help);
            return Err(UserError::new(format!("{name} needs a value"), hint));
        }
        _ => {}
    }
    (kind.make)(value.unwrap_or_default())
}

/// The table for the help: a line for each change.
pub fn help() -> String {
    let typed = |kind: &Kind| match kind.value {
        "" => kind.name.to_owned(),
        value => format!("{}={value}", kind.name),
    };
    let lines = KINDS.iter().map(|kind| format!("  {:<20} {}\n", typed(kind), kind.help));
    lines.chain([format!("  {:<20} {}\n", "net.NAME=VALUE", sysctl::HELP)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_can_be_parsed() {
        let typed = [
            "nodelay",
            "quickack",
            "rcvbuf=1MiB",
            "rcvbuf=auto",
            "sndbuf=64k",
            "notsent-lowat=16KiB",
            "congestion=cubic",
            "pacing=10MB/s",
            "affinity=0-1,3",
            "nice=-5",
            "quota=1.5",
            "quota=max",
        ];
        for text in typed {
            let change = parse(text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
            assert!(!change.sets.is_empty() && !change.keep.is_empty() && !change.value.is_empty(), "{change:?}");
            assert!(change.name.starts_with(text.split('=').next().expect("a name")), "{change:?}");
            assert_eq!(parse(&change.name).expect("a name reads back").value, change.value);
        }
        let kinds = typed.iter().map(|text| text.split('=').next().expect("a name"));
        assert_eq!(kinds.collect::<std::collections::BTreeSet<_>>().len(), KINDS.len());
        assert_eq!(parse("net.ipv4.tcp_slow_start_after_idle=0").expect("a sysctl").value, "0");
    }

    #[test]
    fn an_unknown_change_is_an_error_with_a_hint() {
        let wrong = [
            "",
            "nodelya",
            "nodelay=1",
            "rcvbuf",
            "rcvbuf=",
            "rcvbuf=lots",
            "rcvbuf=8GiB",
            "congestion=a/b",
            "congestion=averylongnamethatis",
            "pacing=fast",
            "affinity=",
            "affinity=3-1",
            "affinity=x",
            "nice=20",
            "nice=",
            "quota=0",
            "quota=-1",
            "quota=inf",
            "net.ipv4.tcp_rmem",
            "net.ipv4.tcp_rmem=",
            "net.../etc/passwd=1",
            "net/../kernel/panic=1",
            "kernel.panic=1",
        ];
        for text in wrong {
            let error = parse(text).err().unwrap_or_else(|| panic!("{text}"));
            assert!(!error.what.is_empty() && !error.hint.is_empty(), "{text}: {error:?}");
        }
        assert!(parse("nodelya").expect_err("no change").hint.contains("nodelay"));
    }

    #[test]
    fn the_help_has_every_change() {
        let help = help();
        assert_eq!(help.lines().count(), KINDS.len() + 1);
        assert!(KINDS.iter().all(|kind| help.contains(kind.help)));
    }
}
