//! `run`, `attach` and `show`: collect a capture, have it judged, print the report.
pub mod cgroup;
pub mod observe;
pub mod procfs;
pub mod subject;
pub mod syscall_name;
#[cfg(test)]
mod test_child;
