//! Network interfaces in the namespace of the calling thread: creates veth pairs, sets addresses, routes, link state, MTU, offloads
//! and a shaper.
use std::io;
use std::net::IpAddr;
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
    /// TCP segmentation offload: segmentation by the device. The command leaves `tx-tcp-accecn-segmentation` as it is, which a kernel
    /// uses only beside the other features of TSO; `ethtool -k` prints the group as on as long as it is.
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

/// Sets the MTU of an interface, in bytes.
pub fn set_mtu(name: &str, mtu: u32) -> io::Result<()> {
    let message =
        Message::new(libc::RTM_NEWLINK, 0, &ifinfomsg(index(name)?, 0, 0)).attr(libc::IFLA_MTU, &mtu.to_ne_bytes());
    Route::open()?.request(message).map_err(|error| named(&format!("setting the MTU of {name} to {mtu}"), error))
}

/// Sets how many packets may wait in an interface's own queue (`txqueuelen`).
pub fn set_transmit_queue(name: &str, packets: u32) -> io::Result<()> {
    let message = Message::new(libc::RTM_NEWLINK, 0, &ifinfomsg(index(name)?, 0, 0))
        .attr(libc::IFLA_TXQLEN, &packets.to_ne_bytes());
    Route::open()?.request(message).map_err(|error| named(&format!("setting the queue of {name}"), error))
}

/// The address family and the bytes of an address.
fn family_and_bytes(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(v4) => (libc::AF_INET as u8, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6 as u8, v6.octets().to_vec()),
    }
}

/// Adds an address to an interface. The kernel adds the route to its network. One of IPv6 can be used at once: nobody is asked
/// whether he has it (duplicate address detection).
pub fn add_address(name: &str, address: impl Into<IpAddr>, prefix_len: u8) -> io::Result<()> {
    let address = address.into();
    let (family, bytes) = family_and_bytes(address);
    let flags = if address.is_ipv6() { libc::IFA_F_NODAD as u8 } else { 0 };
    // struct ifaddrmsg: family, prefix length, flags, scope, index.
    let mut header = [family, prefix_len, flags, 0, 0, 0, 0, 0];
    header[4..8].copy_from_slice(&index(name)?.to_ne_bytes());
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let message =
        Message::new(libc::RTM_NEWADDR, flags, &header).attr(libc::IFA_LOCAL, &bytes).attr(libc::IFA_ADDRESS, &bytes);
    Route::open()?.request(message).map_err(|error| named(&format!("giving {name} the address {address}"), error))
}

/// Adds a route to a network through a gateway, which must be on the network of an interface that is up.
pub fn add_route(to: IpAddr, prefix_len: u8, via: IpAddr) -> io::Result<()> {
    let ((family, destination), (_, gateway)) = (family_and_bytes(to), family_and_bytes(via));
    // struct rtmsg: family, destination and source prefix lengths, TOS, table, protocol, scope, type, flags.
    let kinds = [libc::RT_TABLE_MAIN, libc::RTPROT_BOOT, libc::RT_SCOPE_UNIVERSE, libc::RTN_UNICAST];
    let header = [family, prefix_len, 0, 0, kinds[0], kinds[1], kinds[2], kinds[3], 0, 0, 0, 0];
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let message = Message::new(libc::RTM_NEWROUTE, flags, &header)
        .attr(libc::RTA_DST, &destination)
        .attr(libc::RTA_GATEWAY, &gateway);
    let what = format!("adding the route to {to}/{prefix_len} via {via}");
    Route::open()?.request(message).map_err(|error| named(&what, error))
}

/// A token bucket filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    /// Bytes per second.
    pub rate: u64,
    /// Bytes that may leave at once.
    pub burst: u32,
    /// Bytes that may wait.
    pub limit: u32,
}

/// Makes a token bucket filter (`tbf`) the root qdisc of an interface. ENOENT where the kernel has no sch_tbf.
pub fn set_token_bucket(name: &str, bucket: TokenBucket) -> io::Result<()> {
    // linux/pkt_sched.h.
    const TCA_TBF_PARMS: u16 = 1;
    const TCA_TBF_RATE64: u16 = 4;
    const TCA_TBF_BURST: u16 = 6;
    const LINKLAYER_ETHERNET: u8 = 1;
    const TC_H_ROOT: u32 = u32::MAX;
    // struct tcmsg: family, index, handle, parent, info.
    let mut header = [0; 20];
    header[4..8].copy_from_slice(&index(name)?.to_ne_bytes());
    header[12..16].copy_from_slice(&TC_H_ROOT.to_ne_bytes());
    // struct tc_tbf_qopt: two struct tc_ratespec (the rate, and a peak rate that is not used), limit, buffer, mtu. With a burst in
    // bytes the kernel computes `buffer` itself, and with a link layer it needs no table of rates.
    let mut parameters = [0; 36];
    parameters[1] = LINKLAYER_ETHERNET;
    let rate = u32::try_from(bucket.rate).unwrap_or(u32::MAX);
    parameters[8..12].copy_from_slice(&rate.to_ne_bytes());
    parameters[24..28].copy_from_slice(&bucket.limit.to_ne_bytes());
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
    let message = Message::new(libc::RTM_NEWQDISC, flags, &header).attr_name(libc::TCA_KIND, "tbf").nest(
        libc::TCA_OPTIONS,
        |options| {
            let options = options.attr(TCA_TBF_PARMS, &parameters).attr(TCA_TBF_BURST, &bucket.burst.to_ne_bytes());
            if rate == u32::MAX { options.attr(TCA_TBF_RATE64, &bucket.rate.to_ne_bytes()) } else { options }
        },
    );
    Route::open()?.request(message).map_err(|error| named(&format!("giving {name} a token bucket filter"), error))
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
