//! The decisions of `parshall sockets` that need no host: filters, keys of sockets, changes since the last dump, aggregates,
//! and the formats of the spool and the schema.
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
pub use track::{Change, Tracker};
