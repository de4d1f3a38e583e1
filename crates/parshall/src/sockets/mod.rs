//! `parshall sockets`: the state of every socket of every network namespace.
//!
//! A [`backend`] gives records in batches that are read in place; names, owners and rates are joined to them as rows;
//! a [`format`] turns rows into bytes; a [`sink`] takes rows and answers for what became of them.
pub mod backend;
#[cfg(test)]
mod contrib;
pub mod endpoint;
pub mod format;
pub mod profile;
pub mod self_metrics;
pub mod sink;
#[cfg(test)]
mod testing;
pub mod wire;
