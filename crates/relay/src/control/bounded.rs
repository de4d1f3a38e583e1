//! Accepts connections of a Unix socket, at most [`AT_ONCE`] at a time; further ones are closed.
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

const AT_ONCE: usize = 16;
/// The pause after an accept that failed: descriptors may have run out.
const PAUSE: Duration = Duration::from_millis(200);

/// Serves each connection in a task of its own, until the future is dropped.
pub async fn serve<F>(listener: UnixListener, answer: impl Fn(UnixStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let Ok(permit) = permits.clone().try_acquire_owned() else { continue };
        let answered = answer(stream);
        tokio::spawn(async move {
            let _permit = permit;
            answered.await;
        });
    }
}
