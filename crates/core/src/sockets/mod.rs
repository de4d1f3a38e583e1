//! What `parshall sockets` decides without asking the host: which sockets are wanted, which of two records are the same
//! socket, what changed since the last dump.
pub mod aggregate;
pub mod container;
pub mod cost;
pub mod filter;
pub mod keep;
pub mod key;
pub mod retry;
pub mod row;
pub mod schema;
pub mod sort;
pub mod spool;
pub mod stamp;
pub mod track;
pub mod words;

pub use key::key;
pub use row::{Dump, Owner, Rates, Row, Seen};
pub use track::{Met, Tracker};
