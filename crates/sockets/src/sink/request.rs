//! A sink before it is open: its table in the configuration file, which becomes a request when its values are checked.
use std::sync::Arc;

use parshall_host::error::UserError;

use super::account::Sink;
use super::prometheus::endpoint::Endpoint;
use super::prometheus::self_metrics::Status;
use crate::format::text::TableStyle;

/// A table of the configuration file, as it was parsed.
pub trait SinkTable {
    /// Checks the values, beyond their types.
    fn validate(self) -> Result<Box<dyn SinkRequest>, UserError>;
}

/// A requested sink: its configuration is checked, and it is not open yet.
pub trait SinkRequest: std::fmt::Debug + Send {
    /// The name of its table in the configuration file.
    fn kind(&self) -> &'static str;

    /// Whether it aggregates rows, and therefore needs complete dumps.
    fn aggregates(&self) -> bool {
        false
    }

    /// # Errors
    /// Something that it needs cannot be used.
    fn open(self: Box<Self>, shared: &mut Shared) -> anyhow::Result<Box<dyn Sink>>;
}

/// State that the stream and its sinks share.
#[derive(Debug)]
pub struct Shared {
    /// The style of the text format.
    pub style: TableStyle,
    /// The state of the collector that its metrics show.
    pub status: Arc<Status>,
    /// The HTTP endpoint, once a sink has started it. Dropping it ends it.
    pub endpoint: Option<Endpoint>,
}
