//! Accepting from strangers: so many at once and no more.
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Connections served at once; further ones are closed.
const AT_ONCE: usize = 16;
/// Accepting again after an error: descriptors may have run out.
const PAUSE: Duration = Duration::from_millis(200);

/// What accepts connections.
pub trait Accept {
    /// A connection.
    type Stream: Send + 'static;
    /// The next one.
    async fn next(&self) -> io::Result<Self::Stream>;
}

impl Accept for TcpListener {
    type Stream = TcpStream;
    async fn next(&self) -> io::Result<TcpStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;
    async fn next(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

/// Has each connection served by a task of its own, until this one is dropped.
pub async fn serve<L: Accept, F>(listener: L, answer: impl Fn(L::Stream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let Ok(stream) = listener.next().await else {
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
