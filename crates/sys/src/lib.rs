//! System calls for parshall: the home of `unsafe`. Each module wraps one thing the kernel offers; none of them knows
//! what parshall uses it for, and nothing here decides.

pub mod child;
pub mod clock;
pub mod counters;
pub mod enter_netns;
pub mod epoll;
pub mod gate;
pub mod inet_diag;
pub mod link;
pub mod netlink;
pub mod netns;
pub mod nice;
pub mod owner;
pub mod perf_probe;
pub mod pidfd;
pub mod sock_view;
pub mod tcx_loss;
pub mod tun;
