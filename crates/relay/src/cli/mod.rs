//! The command line of `parshall relay`: `args.rs` declares the flags, and `validate.rs` makes a request from them.
mod args;
mod setting_flags;
mod validate;

pub use args::RelayArgs;
