//! SO_RCVBUF: the receive buffer, and with it the largest window; or back to the kernel's tuning.
use std::net::UdpSocket;
use std::os::fd::AsFd;

use parshall_core::values::{bytes_text, size_within};
use parshall_host::error::UserError;
use parshall_sys::socket_option::can_unlock_buffers;

use super::definition::{Change, Kind, On, own_sysctl};
use crate::trial::place::{SocketSetting, UNLOCKED, locked_buffer};

/// Half of the largest int, because the kernel doubles the value.
pub const BYTES_MAX: u64 = (i32::MAX / 2) as u64;

pub const KIND: Kind = Kind {
    name: "rcvbuf",
    value: "SIZE|auto",
    help: "receive buffer (SO_RCVBUF), or the kernel's own tuning of it",
    make: |value| {
        let mut change = buffer("rcvbuf", "SO_RCVBUF", SocketSetting::ReceiveBuffer, value)?;
        change.not_undone.push("a window that was offered meanwhile is not taken back".to_owned());
        change.check = |change| check(change, "net.core.rmem_max");
        Ok(change)
    },
};

/// The change of either buffer.
pub fn buffer(name: &str, option: &str, setting: SocketSetting, value: &str) -> Result<Change, UserError> {
    let on = On::Connections(setting);
    if value == UNLOCKED {
        let keep = format!("Remove the application's setsockopt({option}): the kernel then tunes the buffer.");
        return Ok(Change::new(format!("{name}={UNLOCKED}"), format!("{option}=auto"), on, value, keep));
    }
    let bytes = size_within(value, 1, BYTES_MAX).map_err(|error| UserError::new(error.what, error.hint))?;
    let keep = format!("Set {option} in the application; the kernel then no longer tunes the buffer.");
    let typed = bytes_text(bytes);
    Ok(Change::new(format!("{name}={typed}"), format!("{option}={typed}"), on, locked_buffer(bytes as u32), keep))
}

/// Whether this host supports the change, and the warnings about it; for either buffer.
pub fn check(change: &Change, limit: &str) -> Result<Vec<String>, UserError> {
    let mut known = Vec::new();
    let can_unlock = UdpSocket::bind("127.0.0.1:0").is_ok_and(|socket| can_unlock_buffers(socket.as_fd()));
    if !can_unlock && change.value == UNLOCKED {
        let hint = "a buffer that was set once stays so: restart the service without it to compare";
        return Err(UserError::new("this kernel cannot unlock a buffer (Linux 5.14 can)", hint));
    }
    if !can_unlock {
        known.push(
            "this kernel cannot unlock a buffer (Linux 5.14 can): its own tuning stays off on these connections until they are \
             closed"
                .to_owned(),
        );
    }
    let asked = change.value.split(' ').next().and_then(|bytes| bytes.parse::<u64>().ok()).map(|bytes| bytes / 2);
    if let (Some(asked), Some(max)) = (asked, own_sysctl(limit))
        && asked > max
    {
        known.push(format!("an application cannot set more than {limit}, which is {}", bytes_text(max)));
    }
    Ok(known)
}
