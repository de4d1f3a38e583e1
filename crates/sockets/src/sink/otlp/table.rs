//! The table `[[otlp]]`.
use std::collections::BTreeMap;
use std::time::Duration;

use parshall_core::sockets::aggregate::Settings;
use parshall_host::error::UserError;
use serde::Deserialize;

use super::{OtlpConfig, OtlpSink};
use crate::sink::account::Sink;
use crate::sink::delivery_queue::{QueueConfig, SpoolTable, queue_bytes};
use crate::sink::request::{Shared, SinkRequest, SinkTable};
use crate::sink::series::SeriesTable;
use crate::sink::table::{duration, size, timeout};
use crate::sink::tls::TlsTable;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Table {
    url: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    tls: Option<TlsTable>,
    #[serde(default = "timeout", deserialize_with = "duration")]
    timeout: Duration,
    #[serde(default)]
    series: SeriesTable,
    #[serde(default = "queue_bytes", deserialize_with = "size")]
    queue: u64,
    spool: Option<SpoolTable>,
}

#[derive(Debug)]
struct OtlpRequest(OtlpConfig, Settings, QueueConfig);

impl SinkTable for Table {
    fn validate(self) -> Result<Box<dyn SinkRequest>, UserError> {
        let config = OtlpConfig {
            url: self.url,
            headers: self.headers.into_iter().collect(),
            tls: self.tls.map(TlsTable::validate).transpose()?,
            timeout: self.timeout,
        };
        let settings = self.series.validate()?;
        Ok(Box::new(OtlpRequest(config, settings, QueueConfig::of_table(self.queue, self.spool))))
    }
}

impl SinkRequest for OtlpRequest {
    fn kind(&self) -> &'static str {
        "otlp"
    }

    fn aggregates(&self) -> bool {
        true
    }

    fn open(self: Box<Self>, _: &mut Shared) -> anyhow::Result<Box<dyn Sink>> {
        Ok(Box::new(OtlpSink::start(self.0, self.1, self.2)?))
    }
}
