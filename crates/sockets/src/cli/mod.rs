//! The command line of `parshall sockets`: `args.rs` declares the flags, `validate.rs` makes a request of them.
mod args;
mod file;
mod host_names;
mod services;
mod ss_flags;
mod validate;

pub use args::SocketsArgs;
pub use ss_flags::hint;
