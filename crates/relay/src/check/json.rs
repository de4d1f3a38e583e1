//! The answer of `relay check` as one document, `parshall.relay-check/1`.
use std::path::Path;
use std::time::Duration;

use parshall_core::relay::config::value::{BALANCES, ENGINES, PROXY_VERSIONS, name_of};
use parshall_core::relay::config::{Config, Language, Listener, LogTo, Mistake, Protocol, Target};
use serde_json::{Value, json};

use crate::load::Loaded;

const SCHEMA: &str = "parshall.relay-check/1";

/// The document, with a line break at its end.
pub fn json(path: &Path, loaded: &Loaded) -> anyhow::Result<String> {
    let mut document = json!({
        "schema": SCHEMA,
        "file": path.display().to_string(),
        "language": match loaded.language { Language::Toml => "toml", Language::Rinetd => "rinetd" },
        "ok": loaded.config.is_ok(),
        "mistakes": match &loaded.config {
            Ok(_) => Vec::new(),
            Err(mistakes) => mistakes.iter().map(mistake).collect(),
        },
    });
    if let Ok(config) = &loaded.config {
        document["global"] = global(config);
        document["listeners"] = config.listeners.iter().map(listener).collect();
    }
    let mut text = serde_json::to_string_pretty(&document)?;
    text.push('\n');
    Ok(text)
}

fn mistake(mistake: &Mistake) -> Value {
    json!({"line": mistake.line, "column": mistake.column, "what": mistake.what, "hint": mistake.hint})
}

fn global(config: &Config) -> Value {
    let global = &config.global;
    json!({
        "threads": global.threads,
        "max_connections": global.max_connections,
        "metrics": global.metrics.map(|a| a.to_string()),
        "control": global.control,
        "log": match &global.log {
            LogTo::Nowhere => None,
            LogTo::Stdout => Some("stdout"),
            LogTo::File(path) => Some(path.as_str()),
        },
        "user": global.user,
        "drain_s": seconds(global.drain),
    })
}

fn listener(l: &Listener) -> Value {
    let time = |t: Option<Duration>| t.map(seconds);
    json!({
        "name": l.name,
        "protocol": if l.protocol == Protocol::Udp { "udp" } else { "tcp" },
        "listen": l.listen.to_string(),
        "targets": l.targets.iter().map(target).collect::<Vec<_>>(),
        "balance": name_of(&BALANCES, &l.balance),
        "engine": name_of(&ENGINES, &l.engine),
        "buffer_bytes": l.buffer,
        "access": l.access.iter().map(|rule| {
            json!({"allow": rule.allow, "network": rule.network.to_string()})
        }).collect::<Vec<_>>(),
        "limits": {
            "connections": l.limits.connections,
            "per_source": l.limits.per_source,
            "rate_per_s": l.limits.rate,
            "bandwidth_bytes_per_s": l.limits.bandwidth,
        },
        "timeouts": {
            "connect_s": seconds(l.timeouts.connect),
            "idle_s": time(Some(l.timeouts.idle).filter(|t| !t.is_zero())),
            "linger_s": seconds(l.timeouts.linger),
            "header_s": seconds(l.timeouts.header),
        },
        "sockets": {
            "nodelay": l.sockets.nodelay,
            "receive_buffer_bytes": l.sockets.receive_buffer,
            "send_buffer_bytes": l.sockets.send_buffer,
            "keepalive_s": time(l.sockets.keepalive),
            "user_timeout_s": time(l.sockets.user_timeout),
            "mptcp": l.sockets.mptcp,
            "fast_open": l.sockets.fast_open,
            "backlog": l.sockets.backlog,
        },
        "proxy_in": l.proxy_in,
        "proxy_from": l.proxy_from.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "proxy_out": l.proxy_out.map(|v| name_of(&PROXY_VERSIONS, &Some(v))),
        "transparent": l.transparent,
        "source": l.source.map(|a| a.to_string()),
        "health": {
            "fails": l.health.fails,
            "pause_s": seconds(l.health.pause),
            "check": l.health.check.map(|c| json!({
                "interval_s": seconds(c.interval),
                "timeout_s": seconds(c.timeout),
                "rise": c.rise,
                "fall": c.fall,
            })),
        },
    })
}

fn target(target: &Target) -> Value {
    json!({"address": target.endpoint.to_string(), "weight": target.weight})
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
