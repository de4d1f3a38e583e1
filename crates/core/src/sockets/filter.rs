//! The text of a filter → its expression. A mistake names the word and says what would be right.
use std::net::{IpAddr, Ipv6Addr};

use parshall_evidence::socket::expression::{ALL_STATES, Compare, Expression, Term};
use parshall_evidence::socket::selection::state::{CLOSE, ESTABLISHED, LISTEN, SYN_RECV, SYN_SENT, TIME_WAIT};
use parshall_evidence::socket::selection::{STATES, state_named};

/// What is wrong with a filter, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterError {
    /// What is wrong.
    pub what: String,
    /// What would be right.
    pub hint: String,
}

fn wrong<T>(what: impl Into<String>, hint: impl Into<String>) -> Result<T, FilterError> {
    Err(FilterError { what: what.into(), hint: hint.into() })
}

const EXAMPLE: &str =
    "write it as for ss, such as 'state established dst 10.0.0.0/8' or '( dport = :443 or sport = :443 )'";

/// Words that a statement begins with.
const WORDS: [&str; 7] = ["state", "exclude", "src", "dst", "sport", "dport", "not"];

/// What `ss` knows beside these: better said than called unknown.
const NOT_HERE: [(&str, &str); 4] = [
    ("dev", "sockets of an interface are not selected; `--netns` and `src ADDRESS` are near"),
    ("fwmark", "sockets of a mark are not selected; `--format json --fields attributes` shows `mark`"),
    ("cgroup", "say --cgroup PATH instead"),
    ("autobound", "name the ports instead, such as 'sport >= :32768'"),
];

/// Parses a filter; `service` gives the port of a service's name.
///
/// # Errors
/// The first thing that is not understood.
pub fn parse(text: &str, service: &dyn Fn(&str) -> Option<u16>) -> Result<Expression, FilterError> {
    let words = words(text);
    let mut parser = Parser { words: &words, service };
    let expression = parser.any()?;
    match parser.words {
        [] => Ok(expression),
        [")", ..] => wrong("the filter closes a parenthesis that it did not open", EXAMPLE),
        [word, ..] => unknown(word),
    }
}

/// Words, parentheses and signs. A sign ends a word, so `dport=:443` is three of them.
fn words(text: &str) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), text.trim_start());
    while !rest.is_empty() {
        let sign = ["==", "!=", "<=", ">=", "&&", "||", "=", "<", ">", "&", "|", "!", "(", ")"];
        let length = sign.iter().find(|sign| rest.starts_with(**sign)).map_or_else(
            || rest.find(|c: char| c.is_whitespace() || "=!<>&|()".contains(c)).unwrap_or(rest.len()),
            |sign| sign.len(),
        );
        let (word, after) = rest.split_at(length);
        words.push(word);
        rest = after.trim_start();
    }
    words
}

struct Parser<'a> {
    words: &'a [&'a str],
    service: &'a dyn Fn(&str) -> Option<u16>,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (word, rest) = self.words.split_first()?;
        self.words = rest;
        Some(word)
    }

    /// Takes the next word if it is one of these.
    fn took(&mut self, wanted: &[&str]) -> bool {
        let there = self.words.first().is_some_and(|word| wanted.contains(word));
        if there {
            self.words = &self.words[1..];
        }
        there
    }

    fn any(&mut self) -> Result<Expression, FilterError> {
        let mut parts = vec![self.all()?];
        while self.took(&["or", "||", "|"]) {
            parts.push(self.all()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Any(parts) })
    }

    fn all(&mut self) -> Result<Expression, FilterError> {
        let mut parts = vec![self.one()?];
        loop {
            let said = self.took(&["and", "&&", "&"]);
            if !said && self.words.first().is_none_or(|word| matches!(*word, "or" | "||" | "|" | ")")) {
                break;
            }
            let part = self.one()?;
            // `state a state b` without a word between is either, as for ss.
            if let (false, Some(Expression::Is(Term::State(before))), Expression::Is(Term::State(states))) =
                (said, parts.last_mut(), &part)
            {
                *before |= states;
                continue;
            }
            parts.push(part);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::All(parts) })
    }

    fn one(&mut self) -> Result<Expression, FilterError> {
        let Some(word) = self.next() else { return wrong("the filter ends too early", EXAMPLE) };
        match word {
            "!" | "not" => Ok(Expression::Not(Box::new(self.one()?))),
            "(" => {
                let inner = self.any()?;
                if self.took(&[")"]) {
                    return Ok(inner);
                }
                match self.words.first() {
                    Some(word) => unknown(word),
                    None => wrong("the filter opens a parenthesis and does not close it", EXAMPLE),
                }
            }
            "state" => Ok(Expression::Is(Term::State(self.states()?))),
            "exclude" => Ok(Expression::Not(Box::new(Expression::Is(Term::State(self.states()?))))),
            "src" | "dst" => self.end(word == "dst"),
            "sport" | "dport" => self.port(word),
            _ => unknown(word),
        }
    }

    fn states(&mut self) -> Result<u32, FilterError> {
        let Some(name) = self.next() else {
            return wrong("the filter names no state", format!("write one behind it: {}", STATES.join(", ")));
        };
        named_states(name)
    }

    /// `src` and `dst`: `[=|!=] [ADDRESS[/LENGTH]][:PORT]`.
    fn end(&mut self, remote: bool) -> Result<Expression, FilterError> {
        let negated = match self.words.first() {
            Some(&("=" | "==" | "eq")) => self.next().is_none(),
            Some(&("!=" | "ne" | "neq")) => self.next().is_some(),
            _ => false,
        };
        let at = if remote { "dst" } else { "src" };
        let Some(word) = self.next().filter(|word| *word != ")") else {
            return wrong(format!("`{at}` has no address"), format!("write {at} 10.0.0.0/8, {at} [::1] or {at} :443"));
        };
        let (address, port) = split_port(word);
        let mut parts = Vec::new();
        if !matches!(address, "" | "*") {
            let (network, length) = network(address)?;
            parts.push(Expression::Is(Term::Address { remote, network, length }));
        }
        if let Some(port) = port.filter(|port| *port != "*") {
            let port = self.number(port)?;
            parts.push(Expression::Is(Term::Port { remote, compare: Compare::Equal, port }));
        }
        let all = if parts.len() == 1 { parts.remove(0) } else { Expression::All(parts) };
        Ok(if negated { Expression::Not(Box::new(all)) } else { all })
    }

    /// `sport` and `dport`: `OPERATOR [:]PORT`; without an operator it is `=`.
    fn port(&mut self, word: &str) -> Result<Expression, FilterError> {
        use Compare::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual};
        let operator = match self.words.first().copied().unwrap_or_default() {
            "=" | "==" | "eq" => Some((Equal, false)),
            "!=" | "ne" | "neq" => Some((Equal, true)),
            "<" | "lt" => Some((Less, false)),
            "<=" | "le" | "leq" => Some((LessOrEqual, false)),
            ">" | "gt" => Some((Greater, false)),
            ">=" | "ge" | "geq" => Some((GreaterOrEqual, false)),
            _ => None,
        };
        if operator.is_some() {
            self.next();
        }
        let (compare, negated) = operator.unwrap_or((Equal, false));
        let Some(value) = self.next().filter(|value| *value != ")") else {
            return wrong(format!("`{word}` has no port"), format!("write {word} = :443 or {word} >= :1024"));
        };
        let port = self.number(value.strip_prefix("*:").or(value.strip_prefix(':')).unwrap_or(value))?;
        let is = Expression::Is(Term::Port { remote: word == "dport", compare, port });
        Ok(if negated { Expression::Not(Box::new(is)) } else { is })
    }

    fn number(&self, port: &str) -> Result<u16, FilterError> {
        if port.starts_with(|c: char| c.is_ascii_digit()) {
            let hint = "ports are 0 to 65535; for a range write 'sport >= :1000 sport <= :2000'";
            return port.parse().or_else(|_| wrong(format!("`{port}` is not a port"), hint));
        }
        match (self.service)(port) {
            Some(port) => Ok(port),
            None => wrong(
                format!("no service is called `{port}`"),
                "/etc/services names the services; a number always works, such as :443",
            ),
        }
    }
}

/// The port behind an address: `10.0.0.1:80`, `[::1]:80`, `*:80`, `:80`. An address of IPv6 needs no brackets without a port.
fn split_port(word: &str) -> (&str, Option<&str>) {
    let colons = word.bytes().filter(|byte| *byte == b':').count();
    let bare = word.split('/').next().unwrap_or_default();
    if colons > 1 && (bare.parse::<Ipv6Addr>().is_ok() || word.ends_with(']')) {
        return (word, None);
    }
    match word.rsplit_once(':') {
        Some((address, port)) if !port.contains(']') => (address, Some(port)),
        _ => (word, None),
    }
}

fn network(text: &str) -> Result<(IpAddr, u8), FilterError> {
    let (ip, length) = text.split_once('/').map_or((text, None), |(ip, length)| (ip, Some(length)));
    // The length may stand inside the brackets or behind them.
    let ip = ip.trim_start_matches('[').trim_end_matches(']');
    let Ok(ip) = ip.parse::<IpAddr>() else {
        return wrong(
            format!("`{text}` is not an address"),
            "write an address or network, such as 10.0.0.0/8, [2001:db8::]/32 or 10.0.0.1:443; names are not looked up",
        );
    };
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let length = match length.map(|length| length.trim_end_matches(']').parse::<u8>()) {
        None => most,
        Some(Ok(length)) if length <= most => length,
        Some(_) => {
            return wrong(format!("`{text}` has no length of a prefix"), format!("write 0 to {most} behind the `/`"));
        }
    };
    Ok((masked(ip, length), length))
}

/// The address without the bits behind the prefix, which `ss` ignores too.
fn masked(ip: IpAddr, length: u8) -> IpAddr {
    let cut = |bits: u32| bits.saturating_sub(u32::from(length));
    match ip {
        IpAddr::V4(ip) => IpAddr::V4((ip.to_bits() & u32::MAX.checked_shl(cut(32)).unwrap_or(0)).into()),
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & u128::MAX.checked_shl(cut(128)).unwrap_or(0)).into()),
    }
}

/// The states of a name: those of the formats, and what `ss` calls others and sets of them.
fn named_states(name: &str) -> Result<u32, FilterError> {
    let all_but = |states: &[u8]| states.iter().fold(ALL_STATES, |all, state| all & !(1 << state));
    Ok(match name {
        "all" => u32::MAX,
        "connected" => all_but(&[LISTEN, CLOSE]) & !1,
        "synchronized" => all_but(&[LISTEN, CLOSE, SYN_SENT]) & !1,
        "bucket" => 1 << SYN_RECV | 1 << TIME_WAIT,
        "big" => all_but(&[SYN_RECV, TIME_WAIT]),
        "listening" => 1 << LISTEN,
        "unconnected" | "close" => 1 << CLOSE,
        "estab" => 1 << ESTABLISHED,
        name => match state_named(name) {
            Some(state) => 1 << state,
            None => {
                let sets = ["all", "connected", "synchronized", "bucket", "big"];
                let near = near(name, STATES.iter().chain(&sets).copied());
                return wrong(
                    format!("there is no state `{name}`"),
                    format!("{near}there are: {}, {}", STATES.join(", "), sets.join(", ")),
                );
            }
        },
    })
}

fn near<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> String {
    let near = names.max_by(|a, b| strsim::jaro(a, word).total_cmp(&strsim::jaro(b, word)));
    near.filter(|near| strsim::jaro(near, word) > 0.7).map_or(String::new(), |near| format!("did you mean `{near}`? "))
}

/// What a word means that stands where a statement should.
fn unknown<T>(word: &str) -> Result<T, FilterError> {
    let what = format!("`{word}` is not part of a filter");
    if let Some((_, hint)) = NOT_HERE.iter().find(|(name, _)| *name == word) {
        return wrong(what, *hint);
    }
    if matches!(word, "tcp" | "udp" | "mptcp" | "unix") {
        return wrong(what, format!("say --kind {word} instead"));
    }
    if state_named(word).is_some() {
        return wrong(what, format!("write `state` in front: state {word}"));
    }
    if word.parse::<IpAddr>().is_ok() || word.contains('/') {
        return wrong(what, format!("say at which end: src {word} or dst {word}"));
    }
    if word.strip_prefix(':').unwrap_or(word).parse::<u16>().is_ok() {
        return wrong(what, format!("say at which end: sport = {word} or dport = {word}; --port takes either"));
    }
    wrong(what, format!("{}{EXAMPLE}", near(word, WORDS.into_iter())))
}

#[cfg(test)]
mod tests;
