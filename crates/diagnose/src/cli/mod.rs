//! The command lines of `parshall attach`, `run`, `show`, `try` and `doctor`: `args.rs` declares the flags, `validate.rs` makes
//! requests of them.
mod args;
mod validate;
mod value;

pub use args::{AttachArgs, BesideArgs, DoctorArgs, RunArgs, ShowArgs, TryArgs};
pub use validate::different_files;
pub use value::window;
