//! The command line of `parshall relay`: `args.rs` declares the flags, `validate.rs` makes a request of them.
mod args;
mod setting_flags;
mod validate;

pub use args::RelayArgs;
