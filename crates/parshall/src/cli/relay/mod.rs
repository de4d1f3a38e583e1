//! The command line of `parshall relay`: `args.rs` declares the flags, `config.rs` lowers them into a request.
mod args;
mod config;

pub use args::RelayArgs;
pub(super) use args::read;

#[cfg(test)]
mod tests;
