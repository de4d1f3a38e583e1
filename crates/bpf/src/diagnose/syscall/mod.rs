//! Decodes the counts of system calls, and tells the programs which calls take descriptors, receive, send and accept.
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// `struct sys_key`.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct SysKey {
    pub tid: u32,
    pub nr: i32,
    pub fd: u32,
}

/// `struct sys_value`.
#[derive(Debug, Clone, Copy, Default, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
#[allow(missing_docs)]
pub struct SysValue {
    pub count: u64,
    pub errors: u64,
    pub eagain: u64,
    pub bytes: u64,
    pub on_ns: u64,
    pub off_ns: u64,
}

/// Calls whose first argument is a descriptor and whose positive result is a number of bytes.
const MOVES_BYTES: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_copy_file_range,
];

/// Calls whose first argument is a descriptor.
const TAKES_FD: &[libc::c_long] = &[
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_close,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_io_uring_enter,
    libc::SYS_ioctl,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_lseek,
];

/// Calls that receive from the descriptor in their first argument.
const RECEIVES: &[libc::c_long] = &[libc::SYS_read, libc::SYS_readv, libc::SYS_recvfrom, libc::SYS_recvmsg];

/// Calls that receive into or send from the buffer in their second argument.
const BUFFERS: &[libc::c_long] = &[libc::SYS_read, libc::SYS_recvfrom, libc::SYS_write, libc::SYS_sendto];

/// The same with a list of buffers.
const VECTORS: &[libc::c_long] = &[libc::SYS_readv, libc::SYS_writev];

/// The same with a message that has such a list.
const MESSAGES: &[libc::c_long] = &[libc::SYS_recvmsg, libc::SYS_sendmsg];

/// Calls that return the descriptor of an accepted connection.
const ACCEPTS: &[libc::c_long] = &[libc::SYS_accept, libc::SYS_accept4];

/// Calls that send to the descriptor in their first argument.
const SENDS: &[libc::c_long] = &[libc::SYS_write, libc::SYS_writev, libc::SYS_sendto, libc::SYS_sendmsg];

/// The table `call_flags` of `shared.bpf.h`, with the bits of `enum call_flag`.
pub fn call_flags() -> [u8; 512] {
    let mut flags = [0; 512];
    let mut mark = |calls: &[libc::c_long], bits: u8| {
        for &nr in calls {
            if let Some(slot) = usize::try_from(nr).ok().and_then(|nr| flags.get_mut(nr)) {
                *slot |= bits;
            }
        }
    };
    mark(MOVES_BYTES, 3);
    mark(TAKES_FD, 1);
    mark(RECEIVES, 4);
    mark(SENDS, 8);
    mark(ACCEPTS, 16);
    mark(&[libc::SYS_splice], 32);
    mark(BUFFERS, 64);
    mark(VECTORS, 128);
    mark(MESSAGES, 64 | 128);
    #[cfg(target_arch = "x86_64")]
    mark(&[libc::SYS_epoll_wait], 1);
    flags
}
