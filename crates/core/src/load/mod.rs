//! Decisions of a load generator (`parshall lab load`): when requests are due, which connection sends the next one, what counts as
//! measured, and whether the generator itself was the limit. Nothing here reads a clock or a socket: times are nanoseconds since
//! the load began.
//!
//! In an open loop requests are due on a schedule that does not slow down with the server ([`Arrivals`]), and a latency counts from
//! the time at which the request was due, also if no connection was free by then. Otherwise a server that stalls would delay the
//! very requests that should have measured the stall (coordinated omission).
mod arrivals;
mod dispatch;
mod hello;
mod latency;
mod limit;
pub mod tool;

pub use arrivals::{Arrivals, Pattern};
pub use dispatch::{Dispatch, Due};
pub use hello::{Hello, Mode};
pub use latency::{Latencies, Latency};
pub use limit::{Limit, Seen, limits};
