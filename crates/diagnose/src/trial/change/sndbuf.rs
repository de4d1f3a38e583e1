//! SO_SNDBUF: the send buffer, or back to the kernel's tuning.
use super::definition::Kind;
use super::rcvbuf;
use crate::trial::place::SocketSetting;

pub const KIND: Kind = Kind {
    name: "sndbuf",
    value: "SIZE|auto",
    help: "send buffer (SO_SNDBUF), or the kernel's own tuning of it",
    make: |value| {
        let mut change = rcvbuf::buffer("sndbuf", "SO_SNDBUF", SocketSetting::SendBuffer, value)?;
        change.check = |change| rcvbuf::check(change, "net.core.wmem_max");
        Ok(change)
    },
};
