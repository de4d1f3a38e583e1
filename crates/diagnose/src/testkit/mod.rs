//! Test support: a child process to observe, sessions, and sample reports.
pub mod child;
pub mod reports;
pub mod session;
