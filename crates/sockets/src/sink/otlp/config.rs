//! The receiver of an OTLP sink, and the requests to it.
use std::time::Duration;

use parshall_host::error::UserError;

use crate::sink::tls::TlsConfig;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpConfig {
    /// `http://HOST:PORT[/PATH]` or `https://...`; the default path is `/v1/metrics`.
    pub url: String,
    /// Headers of every request, such as tokens.
    pub headers: Vec<(String, String)>,
    /// For https.
    pub tls: Option<TlsConfig>,
    /// The timeout of one request, including the connection.
    pub timeout: Duration,
}

/// The parts of a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Receiver {
    pub(super) tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// Host and port as in the URL.
    pub(super) authority: String,
    pub(super) path: String,
}

impl Receiver {
    pub(super) fn parse(url: &str) -> Result<Self, UserError> {
        let wrong = || {
            let hint = "give http://HOST:PORT or https://HOST:PORT, such as http://localhost:4318";
            UserError::new(format!("`{url}` is not the address of an OTLP receiver"), hint)
        };
        let uri: hyper::Uri = url.parse().map_err(|_| wrong())?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().filter(|a| !a.as_str().contains('@')).ok_or_else(wrong)?;
        // An invalid port would be treated as a missing one.
        if authority.port_u16().is_none() && authority.as_str() != authority.host() {
            return Err(wrong());
        }
        let path = match uri.path() {
            "" | "/" => "/v1/metrics",
            path => path,
        };
        Ok(Self {
            tls,
            host: authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: authority.port_u16().unwrap_or(if tls { 443 } else { 4318 }),
            authority: authority.as_str().to_owned(),
            path: path.to_owned(),
        })
    }
}
