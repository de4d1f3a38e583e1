//! Reads the configuration in the language of rinetd: `bindaddress bindport connectaddress connectport [options]`.
//!
//! Valid files of rinetd mean the same here. `docs/relay.md` lists the extensions (port ranges, Unix sockets, networks in
//! access rules) and the lines that are ignored.
mod forward;
mod pattern;

use super::at::{At, Word};
use super::draft::{Draft, assemble, check_access};
use super::error::{ConfigError, ConfigErrors};
use super::model::{AccessRule, LogTo, Protocol};
use super::setting::Setting;
use super::table::{Config, Global};
use crate::text::{quote, suggest};
use crate::values::ValueError;

/// The first words of lines that forward nothing.
pub const DIRECTIVES: [&str; 5] = ["allow", "deny", "logfile", "pidlogfile", "logcommon"];

/// Reads a configuration.
pub fn parse(text: &str) -> Result<Config, Vec<ConfigError>> {
    let mut file =
        File { errors: ConfigErrors::new(text), log: LogTo::Nowhere, rules: Rules::default(), forwards: Vec::new() };
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        file.line(&words(line, start));
        start += line.len();
    }
    let File { mut errors, log, rules, forwards } = file;
    if forwards.is_empty() && errors.is_empty() {
        let hint = "write what to forward, as in 127.0.0.1 9000 10.0.0.2 9001";
        errors.add(0, ValueError::new("no line forwards anything", hint));
    }
    let drafts: Vec<Draft> = forwards.into_iter().map(|forward| with_access(forward, &rules, &mut errors)).collect();
    let global = Global { log, ..Global::default() };
    let config = assemble(global, &[], &drafts, &mut errors);
    if errors.is_empty() { Ok(config) } else { Err(errors.finish()) }
}

struct File<'t> {
    errors: ConfigErrors<'t>,
    log: LogTo,
    /// The rules above the first forwarding line.
    rules: Rules,
    forwards: Vec<(Draft, Rules)>,
}

/// The rules of the file or of one forwarding line. A client is refused if a deny rule matches, or if there are allow
/// rules and none matches.
#[derive(Debug, Default)]
struct Rules {
    allow: Vec<At<AccessRule>>,
    deny: Vec<At<AccessRule>>,
}

impl File<'_> {
    fn line(&mut self, words: &[Word<'_>]) {
        let Some(first) = words.first() else { return };
        match first.value {
            "allow" | "deny" => self.rule(first, &words[1..]),
            "logfile" => match words.get(1) {
                Some(path) if words.len() == 2 => self.log = LogTo::File(path.value.to_owned()),
                _ => self
                    .errors
                    .add(first.at, ValueError::new("`logfile` wants one path", "write logfile /var/log/relay.json")),
            },
            // Ignored: the log is always JSON, and there is no pid file.
            "logcommon" | "pidlogfile" => {}
            word if words.len() < 3 && !word.starts_with("unix:") => self.unknown(first, words.get(1)),
            _ => {
                let draft = forward::read(words, &mut self.errors);
                // Rules after an invalid line belong to it, not to the line before.
                self.forwards.push((draft.unwrap_or_else(nothing), Rules::default()));
            }
        }
    }

    fn unknown(&mut self, word: &Word<'_>, next: Option<&Word<'_>>) {
        let (what, hint) = match next {
            Some(port) if forward::is_port(port.value) => (
                "the line has no address to connect to".to_owned(),
                "write bindaddress bindport connectaddress connectport, as in 127.0.0.1 9000 10.0.0.2 9001".to_owned(),
            ),
            _ => (format!("{} begins no line that is known", quote(word.value)), suggest(word.value, &DIRECTIVES)),
        };
        let more =
            if hint.starts_with("choose") { "; or write bindaddress bindport connectaddress connectport" } else { "" };
        self.errors.add(word.at, ValueError::new(what, format!("{hint}{more}")));
    }

    fn rule(&mut self, keyword: &Word<'_>, words: &[Word<'_>]) {
        let [pattern] = words else {
            let at = words.get(1).map_or(keyword.at, |extra| extra.at);
            let what = format!("`{}` wants one pattern", keyword.value);
            self.errors.add(at, ValueError::new(what, format!("write {} 10.0.*.* or {0} 10.0.0.0/16", keyword.value)));
            return;
        };
        let allow = keyword.value == "allow";
        let Some(networks) = self.errors.keep(pattern.at, pattern::networks(pattern.value)) else { return };
        let rules = self.forwards.last_mut().map_or(&mut self.rules, |(_, rules)| rules);
        let list = if allow { &mut rules.allow } else { &mut rules.deny };
        list.extend(networks.into_iter().map(|network| At::new(AccessRule { allow, network }, pattern.at)));
    }
}

/// A draft in place of an invalid line.
fn nothing() -> Draft {
    Draft { name: None, protocol: Protocol::Tcp, listen: Vec::new(), targets: Vec::new(), settings: Vec::new() }
}

/// The draft with the rules of the file and its own as one list, in which the first match decides.
fn with_access((mut draft, own): (Draft, Rules), file: &Rules, errors: &mut ConfigErrors<'_>) -> Draft {
    let mut rules: Vec<At<AccessRule>> = file.deny.iter().chain(&own.deny).copied().collect();
    rules.extend(match (file.allow.is_empty(), own.allow.is_empty()) {
        (_, true) => file.allow.clone(),
        (true, false) => own.allow.clone(),
        // A client must be allowed by the file and by the line.
        (false, false) => own.allow.iter().flat_map(|rule| narrowed(rule, &file.allow, errors)).collect(),
    });
    check_access(&rules, "deny goes before allow, wherever it stands: make the denied pattern narrower", errors);
    if let Some(first) = rules.first() {
        let at = first.at;
        let rules: Vec<AccessRule> = rules.iter().map(|rule| rule.value).collect();
        draft.settings.push(At::new(Setting::new("access", move |l| l.access.clone_from(&rules)), at));
    }
    draft
}

fn narrowed(rule: &At<AccessRule>, by: &[At<AccessRule>], errors: &mut ConfigErrors<'_>) -> Vec<At<AccessRule>> {
    let inside = |inner: &AccessRule, outer: &AccessRule| outer.network.contains(&inner.network);
    let mut both = Vec::new();
    for outer in by {
        if inside(&rule.value, &outer.value) {
            return vec![*rule];
        }
        if inside(&outer.value, &rule.value) {
            both.push(At::new(outer.value, rule.at));
        }
    }
    if both.is_empty() {
        let what = format!("`{}` never holds: no allow rule of the file covers it", rule.value);
        errors.add(
            rule.at,
            ValueError::new(what, "allow it above the first forwarding line too, or only below the lines"),
        );
    }
    both
}

/// The words of a line without its comment.
fn words(line: &str, start: usize) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut at = 0;
    while let Some(begin) = line[at..].find(|c: char| !c.is_whitespace() && c != '\u{feff}').map(|i| at + i) {
        if line[begin..].starts_with('#') {
            break;
        }
        let end = line[begin..].find(char::is_whitespace).map_or(line.len(), |i| begin + i);
        words.push(At::new(&line[begin..end], start + begin));
        at = end;
    }
    words
}
