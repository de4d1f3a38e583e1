//! What `parshall sockets` decides without asking the host: which sockets are wanted, which of two records are the same
//! socket, what changed since the last dump.
pub mod aggregate;
pub mod container;
pub mod cost;
pub mod filter;
pub mod key;
pub mod retry;
pub mod row;
pub mod row_buffer;
pub mod schema;
pub mod sort;
pub mod spool;
pub mod track;
pub mod value_names;
pub mod varint;

pub use key::key;
pub use row::{Dump, Owner, Rates, Row, Seen};
pub use track::{Met, Tracker};
