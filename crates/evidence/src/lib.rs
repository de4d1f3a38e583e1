//! The vocabulary that all parts of parshall share.
//!
//! Here belongs plain data that passes between modules, or that is written to disk. A probe fills a
//! [`Capture`]; `parshall-core` makes a [`Report`] of a capture; the report formats print the report. Nothing here
//! decides, reads a clock or does I/O.
//!
//! Units are in the names (`_ns`, `_us`, `_ms`, `_bytes`); times inside a capture are nanoseconds since its window began.
#![forbid(unsafe_code)]

pub mod capture;
pub mod compat;
pub mod counters;
pub mod event;
pub mod flow;
pub mod followed;
mod listed;
pub mod log;
pub mod origin;
pub mod sample;
pub mod service;
pub mod socket;
pub mod stopper;
pub mod subject;
pub mod thread;
pub mod timeline;
pub mod trial;
pub mod uring;
pub mod usage;
pub mod verdict;
pub mod waiting;
mod zero;

pub use capture::*;
pub use counters::*;
pub use event::*;
pub use flow::*;
pub use followed::*;
pub use log::*;
pub use origin::*;
pub use sample::*;
pub use service::*;
pub use stopper::*;
pub use subject::*;
pub use thread::*;
pub use timeline::Timeline;
pub use trial::*;
pub use uring::*;
pub use usage::*;
pub use verdict::*;
pub use waiting::*;
