//! The local socket: JSON lines. `{"ask":"snapshot"}` is answered with a [`Snapshot`] in one line.
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use super::board::Board;
use super::bounded;
use super::snapshot::Snapshot;

/// A tool that neither asks nor reads for so long is left.
const QUIET_MAX: Duration = Duration::from_secs(60);
/// Bytes of a question.
const LINE_MAX: u64 = 4096;

/// A question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Ask {
    /// Everything that is counted.
    Snapshot,
}

#[derive(Debug, Serialize)]
struct Refusal {
    error: &'static str,
}

/// Answers until the task is dropped.
pub async fn serve(listener: std::os::unix::net::UnixListener, board: Arc<Board>) {
    let prepared = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
    let listener = match prepared {
        Ok(listener) => listener,
        Err(e) => return tracing::warn!("the control socket cannot be served: {e}"),
    };
    let answer = |stream, board: Arc<Board>| async move {
        // A tool that leaves is nothing to tell.
        converse(stream, &board).await.ok();
    };
    bounded::serve(listener, |stream| answer(stream, board.clone())).await;
}

async fn converse(stream: UnixStream, board: &Board) -> std::io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = String::new();
        let mut limited = (&mut reader).take(LINE_MAX);
        let asked = tokio::time::timeout(QUIET_MAX, limited.read_line(&mut line)).await??;
        if asked == 0 {
            return Ok(());
        }
        let mut text = match serde_json::from_str::<Ask>(&line) {
            Ok(Ask::Snapshot) => serde_json::to_string(&Snapshot::take(board))?,
            Err(_) => serde_json::to_string(&Refusal { error: "not understood: ask {\"ask\":\"snapshot\"}" })?,
        };
        text.push('\n');
        tokio::time::timeout(QUIET_MAX, writer.write_all(text.as_bytes())).await??;
        if !line.ends_with('\n') {
            // Too long, or the last one.
            return Ok(());
        }
    }
}
