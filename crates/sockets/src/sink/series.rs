//! Which series the sinks that aggregate keep: the `series` of their tables.
use parshall_core::sockets::aggregate::{Label, Labels, Settings};
use parshall_host::error::UserError;
use serde::{Deserialize, Deserializer};

/// By which labels sockets are aggregated, and how many series there may be.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SeriesTable {
    #[serde(default, deserialize_with = "labels")]
    by: Option<Vec<Label>>,
    max: Option<u16>,
    v4_bits: Option<u8>,
    v6_bits: Option<u8>,
}

impl SeriesTable {
    /// The settings, with the port range from which this host assigns local ports.
    pub fn validate(self) -> Result<Settings, UserError> {
        let bits = |name: &str, bits: Option<u8>, usual: u8, most: u8| match bits {
            Some(bits) if bits > most => {
                Err(UserError::new(format!("`{name}` is {bits}"), format!("choose from 0 to {most}")))
            }
            bits => Ok(bits.unwrap_or(usual)),
        };
        let usual = Settings::default();
        let labels = Labels {
            v4_bits: bits("v4-bits", self.v4_bits, usual.labels.v4_bits, 32)?,
            v6_bits: bits("v6-bits", self.v6_bits, usual.labels.v6_bits, 128)?,
            chosen: self.by.unwrap_or_else(|| usual.labels.chosen.clone()),
            ..usual.labels
        };
        let settings = Settings { labels, series_max: self.max.map_or(usual.series_max, usize::from), ..usual };
        Ok(of_this_host(settings))
    }
}

/// Labels distinguish ports of services from those that this host assigns (net.ipv4.ip_local_port_range).
fn of_this_host(mut settings: Settings) -> Settings {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ports = range.split_whitespace().map(str::parse::<u16>);
    if let (Some(Ok(first)), Some(Ok(last))) = (ports.next(), ports.next()) {
        settings.labels.ephemeral = first..=last;
    }
    settings
}

fn labels<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<Label>>, D::Error> {
    let mut labels = Vec::new();
    for name in Vec::<String>::deserialize(from)? {
        labels.push(Label::named(&name).ok_or_else(|| {
            let all: Vec<&str> = Label::ALL.iter().map(|label| label.name()).collect();
            serde::de::Error::custom(format!("there is no label `{name}`\nchoose from {}", all.join(", ")))
        })?);
    }
    labels.sort_unstable();
    labels.dedup();
    Ok(Some(labels))
}
