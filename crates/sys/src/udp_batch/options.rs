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

/// UDP_GRO (Linux 5.0): datagrams of one size from one sender may arrive as one super-datagram.
pub fn gather_on_receive(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, &1_i32)
}

/// IP_PKTINFO, IPV6_RECVPKTINFO: each datagram comes with the local address that it was sent to.
pub fn report_local_address(socket: BorrowedFd<'_>, ipv6: bool) -> io::Result<()> {
    if ipv6 {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &1_i32)
    } else {
        set(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, &1_i32)
    }
}

/// IPV6_TRANSPARENT or IP_TRANSPARENT: bind to an address that is not this host's. Needs CAP_NET_ADMIN.
pub fn any_source(socket: BorrowedFd<'_>, ipv6: bool) -> io::Result<()> {
    if ipv6 {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, &1_i32)
    } else {
        set(socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT, &1_i32)
    }
}

/// SO_ATTACH_REUSEPORT_CBPF: of `sockets` sockets on one address, all datagrams of a source go to the same one, whatever
/// its ports. A source is an IPv4 address, or the first 64 bits of an IPv6 address, as where limits of a source are counted. Without it the kernel chooses by address and port. One socket of the group sets it for all.
pub fn steer_by_source(socket: BorrowedFd<'_>, sockets: u32) -> io::Result<()> {
    /// Loads at negative offsets from here on count from the network header (linux/filter.h).
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
        // IPv4: the source stands at 12.
        load(12),
        op(libc::BPF_JMP | libc::BPF_JA, 0, 0, 4),
        // IPv6: the first two words of the source from 8 on, folded.
        load(8),
        to_x,
        load(12),
        xor_x,
        // Neighbouring addresses differ in the low bits only: multiply, and take the middle ones.
        op(libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K, 0, 0, 0x9e37_79b1),
        op(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, 0, 16),
        op(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, 0, 0, sockets.max(1)),
        op(libc::BPF_RET | libc::BPF_A, 0, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &filter)
}
