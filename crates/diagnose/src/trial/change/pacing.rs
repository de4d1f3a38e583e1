//! SO_MAX_PACING_RATE: connections send no faster than this.
use parshall_core::units::bit_rate;
use parshall_core::values::bandwidth;

use super::definition::{Change, Kind, On};
use crate::trial::place::SocketSetting;

pub const KIND: Kind = Kind {
    name: "pacing",
    value: "RATE",
    help: "pace each connection at up to this rate (SO_MAX_PACING_RATE): 10MB/s, 80Mbit/s",
    make: |value| {
        let bytes_per_s = bandwidth(value)?;
        let mut change = Change::new(
            format!("pacing={value}"),
            format!("SO_MAX_PACING_RATE={}", bit_rate(bytes_per_s as f64)),
            On::Connections(SocketSetting::Pacing),
            bytes_per_s.to_string(),
            "Set SO_MAX_PACING_RATE in the application.",
        );
        change.not_undone.push("the connections go on being paced by the kernel, without this limit".to_owned());
        Ok(change)
    },
};
