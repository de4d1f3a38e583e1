//! Test support: a child process to observe, and sample reports.
pub mod child;
pub mod reports;
