//! The command line of `parshall sockets`: `args.rs` declares the flags, `validate.rs` turns them into a request.
mod args;
mod file;
mod host_names;
mod services;
mod ss_flags;
mod validate;

pub use args::SocketsArgs;
pub use ss_flags::hint;
