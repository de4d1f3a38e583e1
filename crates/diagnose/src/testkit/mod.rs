//! Test support: a child process to observe, sessions, golden files, and sample captures and reports.
pub mod captures;
pub mod child;
mod further;
pub mod golden;
pub mod reports;
pub mod session;
