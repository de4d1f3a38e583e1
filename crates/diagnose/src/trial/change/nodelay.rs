//! TCP_NODELAY: no small write waits for an ACK (Nagle's algorithm, RFC 896).
use super::definition::{Change, Kind, On};
use crate::trial::place::SocketSetting;

pub const KIND: Kind = Kind {
    name: "nodelay",
    value: "",
    help: "send small writes at once (TCP_NODELAY)",
    make: |_| {
        Ok(Change::new(
            "nodelay".to_owned(),
            "TCP_NODELAY=1",
            On::Connections(SocketSetting::NoDelay),
            "1",
            "Set TCP_NODELAY on the application's sockets, or write each message at once (writev or a buffer).",
        ))
    },
};
