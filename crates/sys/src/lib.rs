//! System calls for parshall: the home of `unsafe`.
//!
//! What belongs here: thin, safe wrappers of kernel interfaces. Nothing here decides what to measure or what it means.
pub mod clock;
pub mod enter_netns;
pub mod inet_diag;
pub mod pidfd;
pub mod sock_view;
