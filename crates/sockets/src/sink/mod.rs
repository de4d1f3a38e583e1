//! The sinks: a file or folder each, with the table that configures it, and a line in the list of [`sinks!`].
pub mod account;
pub mod delivery;
pub mod delivery_queue;
pub mod disk;
pub mod files;
pub mod kafka;
pub mod otlp;
pub mod prometheus;
pub mod request;
mod series;
pub mod spool;
pub mod stdout;
mod table;
pub mod tls;

use parshall_host::error::UserError;
use serde::Deserialize;

use self::request::{SinkRequest, SinkTable};

/// Declares the tables of the configuration file: `Option` for one that may occur once, `Vec` for one that may be repeated.
macro_rules! sinks {
    ($($name:ident: $count:ident<$table:ty>,)+) => {
        /// The configuration file of `parshall sockets stream -c`.
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        pub struct SinkTables {
            $(#[serde(default)] $name: $count<$table>,)+
        }

        impl SinkTables {
            /// The requested sinks, in the order of this list.
            ///
            /// # Errors
            /// The first configuration error, or a file without a sink.
            pub fn validate(self) -> Result<Vec<Box<dyn SinkRequest>>, UserError> {
                let mut requests = Vec::new();
                $(for request in self.$name.into_iter().map(SinkTable::validate) {
                    requests.push(request?);
                })+
                if requests.is_empty() {
                    let tables = [$(if stringify!($count) == "Vec" {
                        concat!("[[", stringify!($name), "]]")
                    } else {
                        concat!("[", stringify!($name), "]")
                    }),+];
                    return Err(UserError::new("it names no sink", format!("write a table such as {}", tables.join(", "))));
                }
                Ok(requests)
            }
        }
    };
}

sinks! {
    stdout: Option<stdout::Table>,
    files: Vec<files::table::Table>,
    kafka: Vec<kafka::table::Table>,
    otlp: Vec<otlp::table::Table>,
    prometheus: Option<prometheus::table::Table>,
}
