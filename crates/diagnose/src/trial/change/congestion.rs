//! TCP_CONGESTION: the congestion control of connections that are open.
use parshall_host::bounded_file;
use parshall_host::error::UserError;

use super::definition::{Change, Kind, On};
use crate::trial::place::SocketSetting;

/// TCP_CA_NAME_MAX (net/tcp.h), with the zero at its end.
const NAME_MAX: usize = 16;
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

pub const KIND: Kind = Kind {
    name: "congestion",
    value: "NAME",
    help: "congestion control (TCP_CONGESTION), such as cubic or bbr",
    make: |value| {
        let valid = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if value.len() >= NAME_MAX || !value.chars().all(valid) {
            let what = format!("`{value}` is not the name of a congestion control");
            return Err(UserError::new(what, "`sysctl net.ipv4.tcp_available_congestion_control` lists them"));
        }
        let mut change = Change::new(
            format!("congestion={value}"),
            format!("TCP_CONGESTION={value}"),
            On::Connections(SocketSetting::Congestion),
            value,
            format!(
                "Set TCP_CONGESTION in the application, or net.ipv4.tcp_congestion_control={value} for new connections."
            ),
        );
        change.not_undone = vec![
            "what the congestion control has learned of the path is lost with each switch".to_owned(),
            "a connection that bbr has paced goes on being paced by the kernel".to_owned(),
        ];
        change.check = check;
        Ok(change)
    },
};

fn check(change: &Change) -> Result<Vec<String>, UserError> {
    let available = bounded_file::text(AVAILABLE).unwrap_or_default();
    let names: Vec<&str> = available.split_whitespace().collect();
    if names.is_empty() || names.contains(&change.value.as_str()) {
        return Ok(Vec::new());
    }
    Err(UserError::new(
        format!("the kernel has no congestion control `{}` loaded", change.value),
        format!("there are: {}; `modprobe tcp_{}` may load it", names.join(", "), change.value),
    ))
}
