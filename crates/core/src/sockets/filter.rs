//! Parses a filter in the language of `ss` into an expression. An error names the word and what to write instead.
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use parshall_evidence::socket::expression::{ALL_STATES, Compare, Expression, Term};
use parshall_evidence::socket::selection::state::{CLOSE, ESTABLISHED, LISTEN, SYN_RECV, SYN_SENT, TIME_WAIT};
use parshall_evidence::socket::selection::{STATES, state_named};

use crate::networks;
use crate::text::suggest;
use crate::values::ValueError;

fn wrong<T>(what: impl Into<String>, hint: impl Into<String>) -> Result<T, ValueError> {
    Err(ValueError::new(what, hint))
}

const EXAMPLE: &str =
    "write it as for ss, such as 'state established dst 10.0.0.0/8' or '( dport = :443 or sport = :443 )'";

/// The first words of conditions.
const KEYWORDS: [&str; 7] = ["state", "exclude", "src", "dst", "sport", "dport", "not"];

/// Conditions of `ss` that are not supported, each with a hint.
const UNSUPPORTED: [(&str, &str); 4] = [
    ("dev", "sockets cannot be selected by interface; use `--netns` or `src ADDRESS`"),
    ("fwmark", "sockets cannot be selected by mark; `--format json --fields attributes` shows it as `mark`"),
    ("cgroup", "say --cgroup PATH instead"),
    ("autobound", "name the ports instead, such as 'sport >= :32768'"),
];

/// Parses a filter. `service` returns the port of a service's name.
///
/// # Errors
/// The first error in the text.
pub fn parse(text: &str, service: &dyn Fn(&str) -> Option<u16>) -> Result<Expression, ValueError> {
    let tokens = tokens(text);
    let mut parser = Parser { tokens: &tokens, service };
    let expression = parser.any()?;
    match parser.tokens {
        [] => Ok(expression),
        [")", ..] => wrong("the filter closes a parenthesis that is not open", EXAMPLE),
        [word, ..] => unexpected(word),
    }
}

/// Splits a filter into words, parentheses and operators. An operator ends a word, so `dport=:443` has three tokens.
fn tokens(text: &str) -> Vec<&str> {
    let (mut tokens, mut rest) = (Vec::new(), text.trim_start());
    while !rest.is_empty() {
        let operators = ["==", "!=", "<=", ">=", "&&", "||", "=", "<", ">", "&", "|", "!", "(", ")"];
        let length = operators.iter().find(|operator| rest.starts_with(**operator)).map_or_else(
            || rest.find(|c: char| c.is_whitespace() || "=!<>&|()".contains(c)).unwrap_or(rest.len()),
            |operator| operator.len(),
        );
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

struct Parser<'a> {
    tokens: &'a [&'a str],
    service: &'a dyn Fn(&str) -> Option<u16>,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (token, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(token)
    }

    /// Consumes the next token if it is one of `wanted`, and returns whether it was.
    fn accept(&mut self, wanted: &[&str]) -> bool {
        let accepted = self.tokens.first().is_some_and(|token| wanted.contains(token));
        if accepted {
            self.tokens = &self.tokens[1..];
        }
        accepted
    }

    fn any(&mut self) -> Result<Expression, ValueError> {
        let mut parts = vec![self.all()?];
        while self.accept(&["or", "||", "|"]) {
            parts.push(self.all()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Any(parts) })
    }

    fn all(&mut self) -> Result<Expression, ValueError> {
        let mut parts = vec![self.one()?];
        loop {
            let explicit_and = self.accept(&["and", "&&", "&"]);
            if !explicit_and && self.tokens.first().is_none_or(|word| matches!(*word, "or" | "||" | "|" | ")")) {
                break;
            }
            let part = self.one()?;
            // `state a state b` without `and` between them means either, as for ss.
            if let (false, Some(Expression::Is(Term::State(before))), Expression::Is(Term::State(states))) =
                (explicit_and, parts.last_mut(), &part)
            {
                *before |= states;
                continue;
            }
            parts.push(part);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::All(parts) })
    }

    fn one(&mut self) -> Result<Expression, ValueError> {
        let Some(word) = self.next() else { return wrong("the filter ends too early", EXAMPLE) };
        match word {
            "!" | "not" => Ok(Expression::Not(Box::new(self.one()?))),
            "(" => {
                let inner = self.any()?;
                if self.accept(&[")"]) {
                    return Ok(inner);
                }
                match self.tokens.first() {
                    Some(word) => unexpected(word),
                    None => wrong("the filter does not close a parenthesis", EXAMPLE),
                }
            }
            "state" => Ok(Expression::Is(Term::State(self.states()?))),
            "exclude" => Ok(Expression::Not(Box::new(Expression::Is(Term::State(self.states()?))))),
            "src" | "dst" => self.end(word == "dst"),
            "sport" | "dport" => self.port(word),
            _ => unexpected(word),
        }
    }

    fn states(&mut self) -> Result<u32, ValueError> {
        let Some(name) = self.next() else {
            return wrong("`state` has no name of a state", format!("choose from {}", STATES.join(", ")));
        };
        named_states(name)
    }

    /// The rest of `src` and `dst`: `[=|!=] [ADDRESS[/LENGTH]][:PORT]`.
    fn end(&mut self, remote: bool) -> Result<Expression, ValueError> {
        let negated = match self.tokens.first() {
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
            let network = network(address)?;
            let (network, length) = (network.network(), network.prefix_len());
            parts.push(Expression::Is(Term::Address { remote, network, length }));
        }
        if let Some(port) = port.filter(|port| *port != "*") {
            let port = self.number(port)?;
            parts.push(Expression::Is(Term::Port { remote, compare: Compare::Equal, port }));
        }
        let all = if parts.len() == 1 { parts.remove(0) } else { Expression::All(parts) };
        Ok(if negated { Expression::Not(Box::new(all)) } else { all })
    }

    /// The rest of `sport` and `dport`: `[OPERATOR] [:]PORT`, where `=` is the default operator.
    fn port(&mut self, word: &str) -> Result<Expression, ValueError> {
        use Compare::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual};
        let operator = match self.tokens.first().copied().unwrap_or_default() {
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

    fn number(&self, port: &str) -> Result<u16, ValueError> {
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

/// Splits an address from its port: `10.0.0.1:80`, `[::1]:80`, `*:80`, `:80`. An IPv6 address without a port needs no brackets.
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

/// A network as `ss` reads it: host bits are ignored, and the prefix may stand inside the brackets of an address or behind them.
fn network(text: &str) -> Result<IpNet, ValueError> {
    let bare = text.replace(['[', ']'], "");
    let (ip, prefix) = bare.split_once('/').map_or((&*bare, None), |(ip, prefix)| (ip, Some(prefix)));
    let Ok(ip) = ip.parse::<IpAddr>() else {
        return wrong(
            format!("`{text}` is not an address"),
            "write an address or network, such as 10.0.0.0/8, [2001:db8::]/32 or 10.0.0.1:443; names are not looked up",
        );
    };
    networks::with_prefix(ip, prefix).map(|network| network.trunc())
}

/// The bits of the states that a name stands for: one state, by its own name or the one of `ss`, or a set of `ss`.
fn named_states(name: &str) -> Result<u32, ValueError> {
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
                let known: Vec<&str> = STATES.into_iter().chain(sets).collect();
                return wrong(format!("there is no state `{name}`"), suggest(name, &known));
            }
        },
    })
}

/// The error for a word where a condition must begin, with a hint for what the user probably meant.
fn unexpected<T>(word: &str) -> Result<T, ValueError> {
    let what = format!("`{word}` is not part of a filter");
    if let Some((_, hint)) = UNSUPPORTED.iter().find(|(name, _)| *name == word) {
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
    wrong(what, suggest(word, &KEYWORDS))
}

#[cfg(test)]
mod tests;
