//! Socket options for datagrams that neither the standard library nor socket2 offers.
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::call::check;

fn set<T>(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: `value` is valid for reads of its size; the kernel copies it.
    check(unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (value as *const T).cast(), size_of::<T>() as libc::socklen_t)
    })
}

/// UDP_GRO (Linux 5.0): successive datagrams of one size from one sender may arrive as one super-datagram.
pub fn gather_on_receive(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, &1_i32)
}

/// IP_PKTINFO, IPV6_RECVPKTINFO: each datagram arrives with the local address that it was sent to.
pub fn report_local_address(socket: BorrowedFd<'_>, ipv6: bool) -> io::Result<()> {
    if ipv6 {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &1_i32)
    } else {
        set(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, &1_i32)
    }
}

/// IP_RECVTOS, IPV6_RECVTCLASS: each datagram arrives with its bits of ECN.
pub fn report_ecn(socket: BorrowedFd<'_>, ipv6: bool) -> io::Result<()> {
    if ipv6 {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, &1_i32)
    } else {
        set(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, &1_i32)
    }
}

/// SO_TIMESTAMPNS: each datagram arrives with the time at which the kernel received it.
pub fn report_arrival(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1_i32)
}

/// IPV6_TRANSPARENT or IP_TRANSPARENT: allows to bind to addresses that are not this host's. Needs CAP_NET_ADMIN.
pub fn any_source(socket: BorrowedFd<'_>, ipv6: bool) -> io::Result<()> {
    if ipv6 {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, &1_i32)
    } else {
        set(socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT, &1_i32)
    }
}

/// SO_ATTACH_REUSEPORT_CBPF: of `sockets` sockets on one address, all datagrams of a source arrive at the same socket, from
/// any port. A source is an IPv4 address or the first 64 bits of an IPv6 address, as in the limits per source. Without it the
/// kernel chooses by address and port. Setting it on one socket of the group is enough.
pub fn steer_by_source(socket: BorrowedFd<'_>, sockets: u32) -> io::Result<()> {
    /// SKF_NET_OFF: loads at this offset count from the network header (linux/filter.h).
    const NETWORK: u32 = -0x10_0000_i32 as u32;
    let op = |code: u32, jump_true: u8, jump_false: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: jump_true,
        jf: jump_false,
        k,
    };
    let load = |offset: u32| op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NETWORK.wrapping_add(offset));
    let to_x = op(libc::BPF_MISC | libc::BPF_TAX, 0, 0, 0);
    let xor_x = op(libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X, 0, 0, 0);
    let program = [
        op(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, NETWORK),
        op(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, 0, 4),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 2, 4),
        // IPv4: the source address is at offset 12.
        load(12),
        op(libc::BPF_JMP | libc::BPF_JA, 0, 0, 4),
        // IPv6: the first 64 bits of the source address, at offset 8, folded by XOR.
        load(8),
        to_x,
        load(12),
        xor_x,
        // Neighbouring addresses differ only in the low bits, so the word is multiplied and its upper half is used.
        op(libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K, 0, 0, 0x9e37_79b1),
        op(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, 0, 16),
        op(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, 0, 0, sockets.max(1)),
        op(libc::BPF_RET | libc::BPF_A, 0, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &filter)
}
