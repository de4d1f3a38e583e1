//! TCP_QUICKACK: received data is acknowledged at once.
use std::time::Duration;

use super::definition::{Change, Kind, On};
use crate::trial::place::SocketSetting;

/// The kernel leaves the mode when the application answers. A delayed ACK is due after 40 ms (TCP_DELACK_MIN).
const REPEAT: Duration = Duration::from_millis(5);

pub const KIND: Kind = Kind {
    name: "quickack",
    value: "",
    help: "acknowledge received data at once (TCP_QUICKACK)",
    make: |_| {
        let mut change = Change::new(
            "quickack".to_owned(),
            "TCP_QUICKACK=1",
            On::Connections(SocketSetting::QuickAck),
            "1",
            "Set TCP_QUICKACK after each receive, or for a destination: `ip route change ... quickack 1`.",
        );
        change.repeat = Some(REPEAT);
        change.not_undone.push(
            "the kernel leaves quickack mode whenever the application answers, so it is set anew every 5 ms: set after each \
             receive it may do more than the trial shows"
                .to_owned(),
        );
        Ok(change)
    },
};
