//! The cases, faults and controls that are embedded in the binary. A new one needs its file and a line here.
use std::time::Duration;

use super::recipe::Recipe;
use super::study::Study;
use parshall_host::error::UserError;

/// The kind of a recipe's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A named investigation: diagnose, change one thing, measure again.
    Case,
    /// Something broken on purpose, with a known cause.
    Fault,
    /// Nothing broken: there must never be a verdict against it.
    Control,
}

/// An embedded file.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    text: &'static str,
}

macro_rules! entries {
    ($($kind:ident $dir:literal: $($name:literal)*;)*) => {
        &[$($(Entry {
            name: $name,
            kind: Kind::$kind,
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../", $dir, "/", $name, ".toml")),
        },)*)*]
    };
}

/// All of them, in the order of `lab list`.
pub const ENTRIES: &[Entry] = entries! {
    Case "cases": "nagle-stall" "held-row-lock" "missing-gbits" "rcvbuf-collapse" "socket-collector" "uring-tunnel";
    Fault "faults":
        "nagle-delayed-ack" "nagle-hold" "cork-held" "small-copy-buffer" "user-cpu-bound" "slow-reader"
        "slow-reader-own-sender"
        "peer-window-limited" "packet-loss" "packet-loss-far" "packet-loss-thin" "timer-wait" "cpu-throttled" "app-limited"
        "rcvbuf-locked" "sndbuf-limited" "buffer-sysctl-cap" "buffer-sysctl-cap-send" "rtt-window-bound" "local-shaper"
        "bottleneck-bandwidth" "serial-protocol" "connection-per-request" "resets" "accept-queue-overflow" "fd-limit"
        "port-exhaustion" "syn-loss" "pmtu-black-hole" "udp-rcvbuf-overflow" "handshake-per-request" "receive-queue-collapse";
    Control "faults/controls":
        "python-asyncio" "nginx" "redis" "iperf3" "rpc-echo"
        "nagle-twin-nodelay" "nagle-twin-together" "nagle-hold-twin-nodelay" "cork-twin-uncorked"
        "slow-reader-twin" "peer-window-twin" "packet-loss-twin" "think-time-twin" "client-pauses"
        "large-copy-buffer" "quota-not-reached"
        "rcvbuf-twin-near" "sndbuf-twin-near" "shaper-twin-unreached" "connection-per-request-twin"
        "resets-twin" "accept-queue-twin" "fd-limit-twin" "pmtu-twin" "udp-twin" "handshake-twin"
        "app-limited-twin" "bottleneck-twin-unfilled" "buffer-cap-twin-near" "buffer-cap-send-twin-near" "paced-client"
        "port-exhaustion-twin" "receive-queue-collapse-twin" "rtt-window-twin-near" "serial-protocol-twin-near" "syn-loss-twin";
};

/// The contents of a file.
#[derive(Debug)]
pub enum Content {
    Recipe(Box<Recipe>),
    /// A case that is made of comparisons.
    Study(Study),
}

impl Entry {
    /// Parses the file. The embedded files are tested, so an error here is a fault of the build. Observations last for `window`, and
    /// the load of a study's trial for `time`, if that is given.
    pub fn read(&self, window: Duration, time: Option<Duration>) -> Result<Content, UserError> {
        if Study::is_one(self.text) {
            return Study::parse(self.name, self.text, window, time).map(Content::Study);
        }
        Recipe::parse(self.name, self.text).map(|recipe| Content::Recipe(Box::new(recipe)))
    }
}

/// The entries for a name: one, or all of a kind for `faults`, `controls` and `cases`.
pub fn find(name: &str) -> Result<Vec<Entry>, UserError> {
    let group = match name {
        "cases" => Some(Kind::Case),
        "faults" => Some(Kind::Fault),
        "controls" => Some(Kind::Control),
        _ => None,
    };
    let found: Vec<Entry> =
        ENTRIES.iter().copied().filter(|entry| entry.name == name || Some(entry.kind) == group).collect();
    if found.is_empty() {
        let near = near_names(name);
        let hint = match near.as_slice() {
            [] => "`parshall lab list` shows all names".to_owned(),
            near => format!("did you mean {}? `parshall lab list` shows all names", near.join(" or ")),
        };
        return Err(UserError::new(format!("there is no case, fault or control named `{name}`"), hint));
    }
    Ok(found)
}

/// Up to three names that share a part with `name` or are a few letters away from it, nearest first.
fn near_names(name: &str) -> Vec<&'static str> {
    let mut near: Vec<(usize, &'static str)> = ENTRIES
        .iter()
        .filter_map(|entry| {
            let letters = distance(name, entry.name);
            let contains = name.len() >= 3 && (entry.name.contains(name) || name.contains(entry.name));
            (contains || letters <= 3.max(name.len() / 3)).then_some((letters, entry.name))
        })
        .collect();
    near.sort();
    near.into_iter().take(3).map(|(_, name)| name).collect()
}

/// Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_embedded_file_parses_and_holds_its_own_name() {
        for entry in ENTRIES {
            let content = entry.read(Duration::from_secs(5), None);
            let recipe = match content.unwrap_or_else(|error| panic!("{} ({})", error.what, error.hint)) {
                Content::Recipe(recipe) => recipe,
                Content::Study(study) => {
                    assert_eq!((study.id.as_str(), entry.kind), (entry.name, Kind::Case));
                    continue;
                }
            };
            assert_eq!(recipe.id, entry.name);
            match entry.kind {
                Kind::Control => assert!(recipe.expect.not_accused, "{}", entry.name),
                Kind::Fault => assert!(!recipe.expect.not_accused, "{}", entry.name),
                Kind::Case => assert!(recipe.change.is_some() && recipe.measure.is_some(), "{}", entry.name),
            }
        }
    }

    #[test]
    fn every_file_is_embedded() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (dir, kind) in [("cases", Kind::Case), ("faults", Kind::Fault), ("faults/controls", Kind::Control)] {
            for file in std::fs::read_dir(root.join(dir)).expect("the directory") {
                let path = file.expect("an entry").path();
                if path.extension().is_some_and(|extension| extension == "toml") {
                    let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
                    assert!(ENTRIES.iter().any(|entry| entry.name == name && entry.kind == kind), "{dir}/{name}");
                }
            }
        }
    }

    #[test]
    fn an_unknown_name_gets_similar_ones_as_hints() {
        let error = find("nagel-stall").expect_err("unknown");
        assert!(error.hint.contains("nagle-stall"), "{}", error.hint);
        assert!(find("loss").expect_err("unknown").hint.contains("packet-loss"));
        assert!(!find("zzzzzzzzzzzz").expect_err("unknown").hint.contains("did you mean"));
        assert!(find("faults").expect("a group").len() > 5);
    }
}
