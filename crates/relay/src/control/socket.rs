//! The control socket: JSON lines. The reply to `{"ask":"snapshot"}` is a [`Snapshot`] in one line.
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use super::bounded;
use super::snapshot::Snapshot;
use super::status::Status;

/// A connection that sends no request, or reads no reply, for this time is closed.
const IO_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest request, in bytes.
const LINE_MAX: u64 = 4096;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Ask {
    Snapshot,
}

#[derive(Debug, Serialize)]
struct Refusal {
    error: &'static str,
}

/// Serves until the task is dropped.
pub async fn serve(listener: std::os::unix::net::UnixListener, status: Arc<Status>) {
    let prepared = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
    let listener = match prepared {
        Ok(listener) => listener,
        Err(e) => return tracing::warn!("the control socket cannot be served: {e}"),
    };
    let answer = |stream, status: Arc<Status>| async move {
        // A client that closes early is no error of the relay.
        converse(stream, &status).await.ok();
    };
    bounded::serve(listener, |stream| answer(stream, status.clone())).await;
}

async fn converse(stream: UnixStream, status: &Status) -> std::io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = String::new();
        let mut limited = (&mut reader).take(LINE_MAX);
        let asked = tokio::time::timeout(IO_TIMEOUT, limited.read_line(&mut line)).await??;
        if asked == 0 {
            return Ok(());
        }
        let mut text = match serde_json::from_str::<Ask>(&line) {
            Ok(Ask::Snapshot) => serde_json::to_string(&Snapshot::take(status))?,
            Err(_) => serde_json::to_string(&Refusal { error: "not understood: ask {\"ask\":\"snapshot\"}" })?,
        };
        text.push('\n');
        tokio::time::timeout(IO_TIMEOUT, writer.write_all(text.as_bytes())).await??;
        if !line.ends_with('\n') {
            // The request was too long, or the client has ended its half of the connection.
            return Ok(());
        }
    }
}
