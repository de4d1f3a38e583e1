//! System calls for parshall: the home of `unsafe`. Each module wraps one thing the kernel offers; none of them knows
//! what parshall uses it for, and nothing here decides.
#![allow(unsafe_code)]

pub mod background;
pub mod batch;
pub mod cached_stat;
mod call;
pub mod child;
pub mod clock;
pub mod counters;
pub mod epoll;
pub mod eventfd;
pub mod file_handle;
pub mod file_lock;
pub mod gate;
pub mod group_signals;
pub mod handover;
pub mod limits;
pub mod link;
pub mod measured_child;
#[cfg(target_arch = "x86_64")]
mod memory;
pub mod memory_file;
pub mod netlink;
pub mod netns;
pub mod nice;
pub mod nsfs;
pub mod owner;
mod perf_event;
pub mod perf_probe;
pub mod perf_sampler;
pub mod pidfd;
pub mod privileges;
pub mod robust_list;
pub mod routes;
mod scheduling;
pub mod sock_diag;
pub mod sock_view;
pub mod socket_netns;
pub mod socket_option;
pub mod stream_io;
pub mod stream_socket;
pub mod tcp_info;
pub mod terminal;
pub mod thread_setting;
pub mod tun;
pub mod udp_batch;
pub mod uring;
pub mod user_namespace;

/// The kernel's id of the calling thread.
pub(crate) fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_pid() as u32
}
