//! Conversations in the configuration protocol (<https://www.wireguard.com/xplatform/>). Each client is bounded in bytes and in
//! time, and their number is bounded: further ones wait in the accept queue.
use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use parshall_core::tunnel::{REQUEST_LEN_MAX, Request, RequestError, answer, parse_request, request_len, write_state};
use parshall_sys::link;
use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::owner::{DeviceOwner, errno};
use super::report::{REPORT_KEY, Reporter};

/// Clients that are served at once.
pub const CLIENTS_MAX: usize = 8;
/// A client that has not sent a whole request, or has not read the answer, after this time is closed.
pub(super) const TIME_MAX: Duration = Duration::from_secs(10);
/// The pause after an accept that failed: descriptors may have run out.
const PAUSE: Duration = Duration::from_millis(200);
/// The capacity for a request at first. A longer one is copied to twice the capacity, and what it leaves is erased.
const CAPACITY: usize = 4096;

/// Serves until the future is dropped.
pub(super) async fn serve(listener: StdListener, owner: DeviceOwner, reporter: Reporter) {
    let prepared = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
    let listener = match prepared {
        Ok(listener) => listener,
        Err(error) => return tracing::warn!(%error, "the socket for `wg` cannot be served"),
    };
    let permits = Arc::new(Semaphore::new(CLIENTS_MAX));
    while let Ok(permit) = permits.clone().acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let (owner, reporter) = (owner.clone(), reporter.clone());
        tokio::spawn(async move {
            if let Err(error) = converse(stream, &owner, &reporter).await {
                tracing::debug!(%error, "a client of the configuration protocol was closed");
            }
            drop(permit);
        });
    }
}

/// Answers requests until the client closes, or one cannot be answered.
async fn converse(mut stream: UnixStream, owner: &DeviceOwner, reporter: &Reporter) -> io::Result<()> {
    let mut received = Received::default();
    while let Some(request) = timeout(TIME_MAX, received.request(&mut stream)).await?? {
        let (text, last) = match carry_out(&request, owner, reporter).await {
            Ok(text) => (text, false),
            Err(errno) => (Zeroizing::new(answer(errno)), true),
        };
        timeout(TIME_MAX, stream.write_all(text.as_bytes())).await??;
        if last {
            break;
        }
    }
    Ok(())
}

/// Returns the answer, or the negative errno of a request that cannot be read.
async fn carry_out(request: &[u8], owner: &DeviceOwner, reporter: &Reporter) -> Result<Zeroizing<String>, i32> {
    let parsed = std::str::from_utf8(request)
        .map_err(|_| RequestError::UnknownRequest)
        .and_then(|text| parse_request(text, &|name: &str| link::index(name).ok()));
    let ended = -Errno::IO.raw_os_error();
    match parsed {
        Ok(Request::Get) => Ok(write_state(&owner.state().await.ok_or(ended)?.device)),
        Ok(Request::Report) => {
            let report = serde_json::to_string(&reporter.report().await.ok_or(ended)?).map_err(|_| ended)?;
            Ok(Zeroizing::new(format!("{REPORT_KEY}={report}\n{}", answer(0))))
        }
        Ok(Request::Set(change)) => {
            let errno = owner.change(Box::new(change)).await.ok_or(ended)?;
            Ok(Zeroizing::new(answer(errno)))
        }
        Err(error) => {
            tracing::warn!(%error, "a request of the configuration protocol was refused");
            Err(error.errno())
        }
    }
}

/// Bytes of a client that were not answered yet. They have keys and are erased.
#[derive(Default)]
struct Received {
    bytes: Zeroizing<Vec<u8>>,
}

impl Received {
    /// Returns the next request, or None when the client has closed.
    async fn request(&mut self, stream: &mut UnixStream) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
        let mut searched = 0;
        loop {
            if let Some(len) = request_len(&self.bytes, searched) {
                let request = Zeroizing::new(self.bytes[..len].to_vec());
                self.bytes = Zeroizing::new(self.bytes[len..].to_vec());
                return Ok(Some(request));
            }
            searched = self.bytes.len();
            if searched >= REQUEST_LEN_MAX {
                let refused = answer(-errno(&Errno::TOOBIG.into()));
                stream.write_all(refused.as_bytes()).await?;
                return Err(Errno::TOOBIG.into());
            }
            self.reserve();
            let space = (self.bytes.capacity() - searched).min(REQUEST_LEN_MAX - searched) as u64;
            if stream.take(space).read_buf(&mut *self.bytes).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Makes space for more. A vector that grows by itself would leave keys behind.
    fn reserve(&mut self) {
        if self.bytes.len() == self.bytes.capacity() {
            let mut larger = Zeroizing::new(Vec::with_capacity((2 * self.bytes.len()).max(CAPACITY)));
            larger.extend_from_slice(&self.bytes);
            self.bytes = larger;
        }
    }
}
