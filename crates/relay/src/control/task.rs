//! Tasks of the control thread that end with their owner.

/// A task that is aborted when this is dropped.
#[derive(Debug)]
pub struct Task(pub tokio::task::JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
