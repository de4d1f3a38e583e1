//! TCP_NOTSENT_LOWAT: a socket is writable only while less than this is unsent.
use parshall_core::values::{bytes_text, size_within};

use super::definition::{Change, Kind, On};
use crate::trial::place::SocketSetting;

pub const KIND: Kind = Kind {
    name: "notsent-lowat",
    value: "SIZE",
    help: "unsent data up to which a socket is writable (TCP_NOTSENT_LOWAT)",
    make: |value| {
        let bytes = size_within(value, 1, i32::MAX as u64)?;
        let typed = bytes_text(bytes);
        Ok(Change::new(
            format!("notsent-lowat={typed}"),
            format!("TCP_NOTSENT_LOWAT={typed}"),
            On::Connections(SocketSetting::NotSentLowat),
            bytes.to_string(),
            format!("Set TCP_NOTSENT_LOWAT in the application, or net.ipv4.tcp_notsent_lowat={bytes} for all."),
        ))
    },
};
