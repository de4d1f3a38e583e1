//! The command line of `parshall tunnel`: `args.rs` declares the flags, `validate.rs` makes a request from them.
mod args;
mod engine;
mod validate;

pub use args::TunnelArgs;
