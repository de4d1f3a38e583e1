//! Testbeds of the lab (`parshall lab testbed`): network namespaces and the links between them, read from TOML and checked as a
//! whole, so that what is checked can be made and carries packets. Making it is the crate `parshall-lab`'s; [`shell`] prints it as
//! commands of `ip` and `tc`.
mod check;
mod impairment;
mod model;
mod problem;
mod read;
mod shell;

pub use ipnet::IpNet;

pub use impairment::{Counts, Direction, Fate, Impairment, MILLION, Means, direction_seed, is_lost, threshold};
pub use model::{End, Link, Namespace, Offloads, Route, Shaper, Testbed};
pub use problem::Problem;
pub use read::{RawTestbed, TestbedError};
pub use shell::shell;

#[cfg(test)]
mod tests;
