//! The command line of `parshall lab`: `args.rs` declares the flags, `validate.rs` makes requests of them.
mod args;
mod validate;

pub use args::LabArgs;
