//! The command line of `parshall sockets`: `args.rs` declares the flags, `config.rs` lowers them into a request.
mod args;
mod config;
mod file;

pub use args::SocketsArgs;

#[cfg(test)]
mod tests;
