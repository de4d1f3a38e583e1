//! TUN devices (`linux/if_tun.h`): a network interface whose other side is a file.
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use crate::call::check;

/// The header before each packet when `vnet_hdr` is on: `struct virtio_net_hdr`.
pub const VNET_HDR_LEN: usize = 10;

const TUN_F_CSUM: libc::c_ulong = 0x01;
const TUN_F_TSO4: libc::c_ulong = 0x02;
const TUN_F_TSO6: libc::c_ulong = 0x04;

const TUN_F_USO4: libc::c_ulong = 0x20;
const TUN_F_USO6: libc::c_ulong = 0x40;

/// Offloads: superframes that the device may hand over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frames {
    /// Packets up to the MTU, checksums left to the reader.
    Packets,
    /// Also unsegmented TCP up to 64 KiB.
    SuperFrames,
}

/// Makes a non-blocking TUN device with virtio headers in the namespace of the calling thread. It ends with the file.
pub fn create(name: &str, frames: Frames) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: an all-zero ifreq is valid: integers, byte arrays and a null pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("interface name {name} is too long")));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    let header_len = VNET_HDR_LEN as libc::c_int;
    let offloads = match frames {
        Frames::Packets => TUN_F_CSUM,
        Frames::SuperFrames => TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6,
    };
    // SAFETY: TUNSETIFF reads and writes an ifreq that lives across the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
    // SAFETY: TUNSETVNETHDRSZ reads an int that lives across the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const header_len) })?;
    set_offloads(&file, offloads)?;
    Ok(file)
}

/// Has a device of [`Frames::SuperFrames`] also pass unsegmented UDP (TUN_F_USO4, TUN_F_USO6), and take it from its file.
/// EINVAL before kernel 6.2, and then nothing is changed.
pub fn offload_udp(file: &File) -> io::Result<()> {
    set_offloads(file, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_USO4 | TUN_F_USO6)
}

/// Whether the interface is up: then its file is writable (`tun_sock_writeable` in drivers/net/tun.c), in whatever namespace it is.
pub fn is_up(file: &File) -> bool {
    let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: poll() reads and writes one pollfd, which lives across the call.
    let found = unsafe { libc::poll(&raw mut poll, 1, 0) };
    found == 1 && poll.revents & libc::POLLOUT != 0
}

fn set_offloads(file: &File, offloads: libc::c_ulong) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD as _, offloads) })
}
