//! The command line of `parshall sockets`: `args.rs` declares the flags, `config.rs` lowers them into a request.
mod args;
mod config;
mod file;
mod habits;
mod services;

pub use args::SocketsArgs;
pub use habits::hint;

#[cfg(test)]
mod tests;
