//! Accepting from strangers: so many at once and no more.
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Connections served at once; further ones are closed.
const AT_ONCE: usize = 16;
/// Accepting again after an error: descriptors may have run out.
const PAUSE: Duration = Duration::from_millis(200);

/// Has each connection served by a task of its own, until this one is dropped.
pub async fn serve<F>(listener: UnixListener, answer: impl Fn(UnixStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let Ok(permit) = room.clone().try_acquire_owned() else { continue };
        let answered = answer(stream);
        tokio::spawn(async move {
            let _permit = permit;
            answered.await;
        });
    }
}
