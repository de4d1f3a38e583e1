//! System calls for parshall: the home of `unsafe`. Each module wraps one thing the kernel offers; none of them knows
//! what parshall uses it for.

pub mod child;
pub mod epoll;
pub mod link;
pub mod netlink;
pub mod netns;
pub mod owner;
pub mod tcx_loss;
pub mod tun;
