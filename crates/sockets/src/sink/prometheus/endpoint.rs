//! The collector's HTTP endpoint: `/metrics`, `/healthz` and `/debug/pprof/profile`, in a thread of its own. A profile costs CPU
//! time and shows names of functions, so it is served only to clients on this host, or with the token.
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Request, StatusCode};
use tokio::sync::oneshot;

use super as prometheus;
use super::profile::{self, Refused};
use super::self_metrics::Status;
use parshall_host::http::{Answer, Peer, TEXT, answer};
use parshall_host::open_metrics::CONTENT_TYPE;

/// The maximum duration of a profile.
const PROFILE_SECONDS_MAX: u64 = 120;
/// The default duration, which `go tool pprof` expects.
const PROFILE_SECONDS: u64 = 30;
/// The timeout of a response: a profile, and the lookup of its names.
const TIME_MAX: Duration = Duration::from_secs(PROFILE_SECONDS_MAX + 30);

/// The type of a channel that is only closed.
#[derive(Debug)]
enum Never {}

/// The endpoint. Dropping it ends it.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    stop: Option<oneshot::Sender<Never>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Endpoint {
    /// Listens and serves. Profiles are served to clients on this host, and to others only with `token`.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn start(at: SocketAddr, status: Arc<Status>, token: Option<Token>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(at).with_context(|| format!("cannot serve metrics on {at}"))?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (stop, stopped) = oneshot::channel::<Never>();
        let serve = async move {
            let token = token.map(Arc::new);
            let respond = move |request: Request<Incoming>| {
                let (status, token) = (status.clone(), token.clone());
                async move { respond(&request, &status, token.as_deref()).await }
            };
            let server = tokio::spawn(parshall_host::http::serve(listener, TIME_MAX, respond));
            // Ends when the sender is dropped.
            stopped.await.ok();
            server.abort();
        };
        let thread = std::thread::Builder::new().name("sockets-http".into()).spawn(move || runtime.block_on(serve))?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// The token that clients of other hosts must present for a profile.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The trimmed text as a token; `None` if it is empty.
    pub fn new(text: &str) -> Option<Self> {
        Some(text.trim()).filter(|text| !text.is_empty()).map(|text| Self(text.to_owned()))
    }

    /// Compares in constant time for tokens of the same length.
    fn is(&self, other: &[u8]) -> bool {
        let own = self.0.as_bytes();
        own.len() == other.len() && own.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The response to a client that may not have a profile; `None` if it may.
fn refusal<B>(request: &Request<B>, token: Option<&Token>) -> Option<Answer> {
    let peer = request.extensions().get::<Peer>();
    let is_here = peer.is_some_and(|Peer(at)| at.ip().to_canonical().is_loopback());
    // A proxy on this host forwards requests of other hosts.
    let is_forwarded = ["forwarded", "x-forwarded-for", "via"].iter().any(|name| request.headers().contains_key(*name));
    if is_here && !is_forwarded {
        return None;
    }
    let Some(token) = token else {
        let text =
            "profiles are for clients on this host; for others set profile-token-file in the table [prometheus]\n";
        return Some(answer(StatusCode::FORBIDDEN, TEXT, text));
    };
    let shown = request.headers().get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    if shown.is_some_and(|shown| token.is(shown)) {
        return None;
    }
    let mut refused =
        answer(StatusCode::UNAUTHORIZED, TEXT, "a profile needs the token: `Authorization: Bearer TOKEN`\n");
    refused.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    Some(refused)
}

async fn respond(request: &Request<Incoming>, status: &Status, token: Option<&Token>) -> Answer {
    let query = request.uri().query().unwrap_or_default();
    match request.uri().path() {
        "/metrics" => match prometheus::text(status) {
            Ok(text) => answer(StatusCode::OK, CONTENT_TYPE, text),
            Err(_) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "the metrics could not be written\n"),
        },
        "/healthz" => match status.late() {
            None => answer(StatusCode::OK, TEXT, "ok\n"),
            Some(since) => {
                let text = format!("no dump for {} s\n", since.as_secs());
                answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, text)
            }
        },
        "/debug/pprof/profile" => match (refusal(request, token), seconds(query)) {
            (Some(refusal), _) => refusal,
            (None, Some(seconds)) => profiled(Duration::from_secs(seconds)).await,
            (None, None) => {
                let text = format!("seconds must be a number from 1 to {PROFILE_SECONDS_MAX}\n");
                answer(StatusCode::BAD_REQUEST, TEXT, text)
            }
        },
        _ => answer(StatusCode::NOT_FOUND, TEXT, "there are /metrics, /healthz and /debug/pprof/profile?seconds=N\n"),
    }
}

fn seconds(query: &str) -> Option<u64> {
    let given = query.split('&').find_map(|part| part.strip_prefix("seconds="));
    let seconds = given.map_or(Some(PROFILE_SECONDS), |text| text.parse().ok())?;
    (1..=PROFILE_SECONDS_MAX).contains(&seconds).then_some(seconds)
}

/// Takes a profile in a thread of its own, so that metrics are served meanwhile.
async fn profiled(duration: Duration) -> Answer {
    let (send, taken) = oneshot::channel();
    let work = move || send.send(profile::take(duration)).map_or((), drop);
    if let Err(e) = std::thread::Builder::new().name("sockets-profile".into()).spawn(work) {
        return answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("no thread for a profile: {e}\n"));
    }
    match taken.await {
        Ok(Ok(profile)) => answer(StatusCode::OK, "application/octet-stream", profile),
        Ok(Err(Refused::Busy)) => {
            answer(StatusCode::TOO_MANY_REQUESTS, TEXT, "another profile is being taken: one at a time\n")
        }
        Ok(Err(Refused::Host(e))) => {
            let text = format!("this host does not allow perf_event_open(2): {e}\n");
            answer(StatusCode::FORBIDDEN, TEXT, text)
        }
        Err(_) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "the profile failed\n"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    fn ask(at: SocketAddr, head: &str) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "{head} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
        let status = String::from_utf8_lossy(&bytes[9..12]).parse().unwrap();
        (status, bytes.split_off(end))
    }

    #[test]
    fn answers_and_refusals() {
        let status = Status::new(Some(Duration::from_secs(5)));
        let endpoint = Endpoint::start("127.0.0.1:0".parse().unwrap(), status, None).unwrap();
        let at = endpoint.address();
        assert_eq!(ask(at, "GET /healthz"), (200, b"ok\n".to_vec()));
        let (status, metrics) = ask(at, "GET /metrics");
        let metrics = String::from_utf8(metrics).unwrap();
        assert!(status == 200 && metrics.contains("parshall_sockets_collector_resident_bytes"), "{metrics}");
        assert_eq!(ask(at, "GET /").0, 404);
        assert_eq!(ask(at, "POST /metrics").0, 405);
        for wrong in ["0", "9999", "x", "-1"] {
            assert_eq!(ask(at, &format!("GET /debug/pprof/profile?seconds={wrong}")).0, 400, "{wrong}");
        }
        drop(endpoint);
        assert!(TcpStream::connect(at).is_err(), "it ends with its owner");
    }

    #[test]
    fn one_profile_at_a_time_and_everything_else_meanwhile() {
        let _alone = profile::tests::alone();
        if let Err(Refused::Host(why)) = profile::take(Duration::from_millis(1)) {
            return parshall_testkit::skip("a profile of the collector over HTTP", &why.to_string());
        }
        let status = Status::new(Some(Duration::from_secs(5)));
        let endpoint = Endpoint::start("127.0.0.1:0".parse().unwrap(), status, None).unwrap();
        let at = endpoint.address();
        let busy = profile::tests::busy();
        assert_eq!(ask(at, "GET /debug/pprof/profile?seconds=1").0, 429);
        drop(busy);
        let first = std::thread::spawn(move || ask(at, "GET /debug/pprof/profile?seconds=1"));
        assert_eq!(ask(at, "GET /healthz").0, 200);
        let (status, profile) = first.join().unwrap();
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&profile));
        assert!(profile.starts_with(&[0x1f, 0x8b]));
    }

    #[test]
    fn profiles_are_for_this_host_or_for_the_token() {
        let token = Token::new(" secret\n");
        let asked = |from: &str, header: Option<(&'static str, &'static str)>, token: Option<&Token>| {
            let mut request = Request::new(());
            request.extensions_mut().insert(Peer(from.parse().unwrap()));
            if let Some((name, value)) = header {
                request.headers_mut().insert(name, HeaderValue::from_static(value));
            }
            refusal(&request, token).map_or(200, |answer| answer.status().as_u16())
        };
        for here in ["127.0.0.1:9", "[::1]:9", "[::ffff:127.0.0.5]:9"] {
            assert_eq!((asked(here, None, None), asked(here, None, token.as_ref())), (200, 200), "{here}");
            assert_eq!(asked(here, Some(("x-forwarded-for", "192.0.2.1")), None), 403, "by a proxy");
        }
        let shown = |value| Some(("authorization", value));
        for far in ["192.0.2.1:9", "[2001:db8::1]:9", "[::ffff:192.0.2.1]:9"] {
            assert_eq!(asked(far, None, None), 403);
            assert_eq!(asked(far, shown("Bearer "), None), 403, "without a token there is none to show");
            for wrong in ["Bearer secre", "Bearer secret1", "Bearer Secret", "Basic secret", "secret"] {
                assert_eq!(asked(far, shown(wrong), token.as_ref()), 401, "{wrong}");
            }
            assert_eq!(asked(far, None, token.as_ref()), 401);
            assert_eq!(asked(far, shown("Bearer secret"), token.as_ref()), 200);
        }
        assert_eq!(Token::new(" \n"), None);
        assert!(!format!("{token:?}").contains("secret"));
    }
}
