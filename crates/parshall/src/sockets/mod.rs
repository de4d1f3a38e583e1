//! `parshall sockets`: the state of every socket of every network namespace.
//!
//! A [`backend`] gives records in batches that are read in place; names, owners and rates are joined to them as rows;
//! a [`format`] turns rows into bytes; a [`sink`] takes rows and answers for what became of them.
pub mod backend;
pub mod format;
pub mod names;
pub mod namespaces;
pub mod owners;
pub mod sink;
