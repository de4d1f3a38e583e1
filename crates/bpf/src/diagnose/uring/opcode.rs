//! Names of io_uring's opcodes: their numbers are an ABI (`enum io_uring_op` of uapi/linux/io_uring.h), to which releases only add.

const NAMES: [&str; 65] = [
    "nop",
    "readv",
    "writev",
    "fsync",
    "read_fixed",
    "write_fixed",
    "poll_add",
    "poll_remove",
    "sync_file_range",
    "sendmsg",
    "recvmsg",
    "timeout",
    "timeout_remove",
    "accept",
    "async_cancel",
    "link_timeout",
    "connect",
    "fallocate",
    "openat",
    "close",
    "files_update",
    "statx",
    "read",
    "write",
    "fadvise",
    "madvise",
    "send",
    "recv",
    "openat2",
    "epoll_ctl",
    "splice",
    "provide_buffers",
    "remove_buffers",
    "tee",
    "shutdown",
    "renameat",
    "unlinkat",
    "mkdirat",
    "symlinkat",
    "linkat",
    "msg_ring",
    "fsetxattr",
    "setxattr",
    "fgetxattr",
    "getxattr",
    "socket",
    "uring_cmd",
    "send_zc",
    "sendmsg_zc",
    "read_multishot",
    "waitid",
    "futex_wait",
    "futex_wake",
    "futex_waitv",
    "fixed_fd_install",
    "ftruncate",
    "bind",
    "listen",
    "recv_zc",
    "epoll_wait",
    "readv_fixed",
    "writev_fixed",
    "pipe",
    "nop128",
    "uring_cmd128",
];

/// The name of an opcode; its number where it is a newer one; empty where the opcode is not known.
pub fn name(opcode: u8) -> String {
    match NAMES.get(usize::from(opcode)) {
        Some(name) => (*name).to_owned(),
        None if opcode == super::OPCODE_UNKNOWN => String::new(),
        None => format!("opcode {opcode}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_names_of_the_kernels_header() {
        // uapi/linux/io_uring.h of Linux 6.18.
        for (number, is) in [(0, "nop"), (6, "poll_add"), (13, "accept"), (22, "read"), (26, "send"), (27, "recv")] {
            assert_eq!(name(number), is);
        }
        for (number, is) in [(40, "msg_ring"), (47, "send_zc"), (49, "read_multishot"), (58, "recv_zc"), (62, "pipe")] {
            assert_eq!(name(number), is);
        }
        assert_eq!((name(79).as_str(), name(255).as_str()), ("opcode 79", ""));
    }
}
