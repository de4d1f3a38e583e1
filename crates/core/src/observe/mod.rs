//! Decisions during an observation: when per-event probes are attached, whether loading them may stay in the background, which
//! processes are followed, what is the subject's, which stacks are named, and which signals are passed on to an observed command. The I/O is in the crate `parshall-diagnose`.
pub mod background;
pub mod clients;
pub mod follow;
pub mod naming;
pub mod owned;
pub mod signals;
pub mod slice;
pub mod under_way;
