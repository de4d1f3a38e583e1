//! `run`, `attach` and `show`: collect a capture, have it judged, print the report.
pub mod observe;
pub mod procfs;
pub mod subject;
