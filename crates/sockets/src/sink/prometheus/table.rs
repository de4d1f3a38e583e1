//! The table `[prometheus]`, and the flag `--listen`.
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parshall_core::sockets::aggregate::Settings;
use parshall_host::error::UserError;
use serde::Deserialize;

use super::PrometheusSink;
use super::endpoint::{Endpoint, Token};
use crate::sink::account::Sink;
use crate::sink::request::{Shared, SinkRequest, SinkTable};
use crate::sink::series::SeriesTable;
use crate::sink::table::secret;

/// The default address of the collector's endpoint.
pub const LISTEN: &str = "127.0.0.1:9474";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Table {
    #[serde(default = "listen")]
    listen: SocketAddr,
    profile_token_file: Option<PathBuf>,
    #[serde(default)]
    series: SeriesTable,
}

#[derive(Debug)]
pub struct PrometheusRequest {
    listen: SocketAddr,
    settings: Settings,
    /// The token that clients of other hosts must present for a profile. Without one they get none.
    profile_token: Option<Token>,
}

impl PrometheusRequest {
    /// The endpoint at this address, with the defaults of the table.
    pub fn at(listen: SocketAddr) -> Result<Self, UserError> {
        Ok(Self { listen, settings: SeriesTable::default().validate()?, profile_token: None })
    }
}

impl SinkTable for Table {
    fn validate(self) -> Result<Box<dyn SinkRequest>, UserError> {
        let profile_token = self.profile_token_file.map(|path| token(&path)).transpose()?;
        Ok(Box::new(PrometheusRequest { listen: self.listen, settings: self.series.validate()?, profile_token }))
    }
}

impl SinkRequest for PrometheusRequest {
    fn kind(&self) -> &'static str {
        "prometheus"
    }

    fn aggregates(&self) -> bool {
        true
    }

    fn open(self: Box<Self>, shared: &mut Shared) -> anyhow::Result<Box<dyn Sink>> {
        let endpoint = Endpoint::start(self.listen, Arc::clone(&shared.status), self.profile_token)?;
        tracing::info!("metrics on http://{}/metrics", endpoint.address());
        shared.endpoint = Some(endpoint);
        Ok(Box::new(PrometheusSink::new(self.settings, Arc::clone(&shared.status))))
    }
}

fn token(path: &Path) -> Result<Token, UserError> {
    Token::new(&secret("token", path)?).ok_or_else(|| {
        let hint = "write a token into it: `openssl rand -hex 16` makes one";
        UserError::new(format!("there is no token in {}", path.display()), hint)
    })
}

fn listen() -> SocketAddr {
    LISTEN.parse().expect("an address")
}
