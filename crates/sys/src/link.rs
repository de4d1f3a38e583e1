//! Network interfaces in the namespace of the calling thread: creates veth pairs, sets addresses, link state and offloads.
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::netlink::{Message, Route};

// linux/if_link.h and linux/veth.h.
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;

/// An offload that ethtool can turn on and off. The values are the `ETHTOOL_S...` commands of `linux/ethtool.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Offload {
    /// TCP segmentation offload: segmentation by the device.
    Tso = 0x1f,
    /// Generic segmentation offload.
    Gso = 0x24,
    /// Generic receive offload: merging of received segments.
    Gro = 0x2c,
}

fn named(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// `struct ifinfomsg` with this index and these flags.
fn ifinfomsg(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes[12..16].copy_from_slice(&change.to_ne_bytes());
    bytes
}

/// The index of an interface.
pub fn index(name: &str) -> io::Result<u32> {
    let found = rustix::net::netdevice::name_to_index(control_socket()?, name);
    found.map_err(|error| named(&format!("interface {name}"), error.into()))
}

/// The name of the interface with this index.
pub fn name(index: u32) -> io::Result<String> {
    let found = rustix::net::netdevice::index_to_name(control_socket()?, index);
    found.map_err(|error| named(&format!("interface {index}"), error.into()))
}

/// Creates a veth pair: `name` in the current namespace, `peer` in the namespace `peer_ns`.
pub fn create_veth(name: &str, peer: &str, peer_ns: BorrowedFd<'_>) -> io::Result<()> {
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let ns_fd = (peer_ns.as_raw_fd() as u32).to_ne_bytes();
    let message = Message::new(libc::RTM_NEWLINK, flags, &ifinfomsg(0, 0, 0)).attr_name(libc::IFLA_IFNAME, name).nest(
        libc::IFLA_LINKINFO,
        |info| {
            info.attr_name(IFLA_INFO_KIND, "veth").nest(IFLA_INFO_DATA, |data| {
                data.nest(VETH_INFO_PEER, |veth| {
                    veth.raw(&ifinfomsg(0, 0, 0)).attr_name(libc::IFLA_IFNAME, peer).attr(libc::IFLA_NET_NS_FD, &ns_fd)
                })
            })
        },
    );
    Route::open()?.request(message).map_err(|error| named("making a veth pair", error))
}

/// Brings an interface up.
pub fn set_up(name: &str) -> io::Result<()> {
    let up = libc::IFF_UP as u32;
    let message = Message::new(libc::RTM_NEWLINK, 0, &ifinfomsg(index(name)?, up, up));
    Route::open()?.request(message).map_err(|error| named(&format!("bringing {name} up"), error))
}

/// Adds an IPv4 address to an interface. The kernel adds the route to its network.
pub fn add_address(name: &str, address: Ipv4Addr, prefix_len: u8) -> io::Result<()> {
    // struct ifaddrmsg: family, prefix length, flags, scope, index.
    let mut header = [libc::AF_INET as u8, prefix_len, 0, 0, 0, 0, 0, 0];
    header[4..8].copy_from_slice(&index(name)?.to_ne_bytes());
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let message = Message::new(libc::RTM_NEWADDR, flags, &header)
        .attr(libc::IFA_LOCAL, &address.octets())
        .attr(libc::IFA_ADDRESS, &address.octets());
    Route::open()?.request(message).map_err(|error| named(&format!("giving {name} the address {address}"), error))
}

/// Turns an offload of an interface on or off (SIOCETHTOOL).
pub fn set_offload(name: &str, offload: Offload, on: bool) -> io::Result<()> {
    let found = ethtool_value(name, offload as u32, u32::from(on));
    found.map(|_| ()).map_err(|error| named(&format!("switching {offload:?} of {name}"), error))
}

/// Whether an offload of an interface is on.
pub fn offload(name: &str, offload: Offload) -> io::Result<bool> {
    // ETHTOOL_GTSO and the others come right before the command that sets the value.
    let found = ethtool_value(name, offload as u32 - 1, 0);
    found.map(|value| value != 0).map_err(|error| named(&format!("reading {offload:?} of {name}"), error))
}

/// Carries out an ethtool command that takes or returns one number.
fn ethtool_value(name: &str, cmd: u32, data: u32) -> io::Result<u32> {
    // struct ethtool_value of linux/ethtool.h.
    #[repr(C)]
    struct EthtoolValue {
        cmd: u32,
        data: u32,
    }
    let mut value = EthtoolValue { cmd, data };
    // SAFETY: an all-zero ifreq is valid: integers, byte arrays and a null pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("interface name {name} is too long")));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    let socket = control_socket()?;
    // SAFETY: SIOCETHTOOL reads an ifreq whose ifru_data points to a command; both live across the call, and these
    // commands read and write no more than the eight bytes of an ethtool_value.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value.data)
}

/// Opens a socket in the calling thread's namespace, for ioctls on its interfaces.
fn control_socket() -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    Ok(socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}
