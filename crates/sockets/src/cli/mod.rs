//! The command line of `parshall sockets`: `args.rs` declares the flags, `validate.rs` makes a request of them.
mod args;
mod file;
mod habits;
mod host_names;
mod services;
mod validate;

pub use args::SocketsArgs;
pub use habits::hint;
