//! Reads the keys that a listener and `[defaults]` share: the protocol, the access lists and the rows of [`Listener`].
use super::super::at::{At, Places};
use super::super::model::Protocol;
use super::super::read::{Entry, Reader};
use super::super::row::pick;
use super::super::setting::Setting;
use super::super::table::Listener;
use super::access::{self, AccessKeys};

/// The keys that only a listener has.
pub const OWN: [&str; 4] = ["name", "listen", "target", "targets"];
/// The keys beside the rows that `[defaults]` may have too.
const SHARED: [&str; 3] = ["protocol", "allow", "deny"];
/// The names of the protocols.
const PROTOCOLS: [(&str, Protocol); 2] = [("tcp", Protocol::Tcp), ("udp", Protocol::Udp)];

/// The settings of a table.
#[derive(Debug, Default)]
pub struct Settings {
    /// The protocol, if it was given.
    pub protocol: Option<Protocol>,
    /// The other settings.
    pub settings: Places<Setting>,
}

/// The keys of `[defaults]`; the names of the tables are among them.
pub fn keys() -> Vec<&'static str> {
    let mut keys = SHARED.to_vec();
    for row in Listener::rows() {
        let key = if row.table().is_empty() { row.key } else { row.table() };
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// The keys of a table below a listener; empty if there is no such table.
pub fn keys_of(table: &str) -> Vec<&'static str> {
    Listener::rows().filter(|row| !table.is_empty() && row.table() == table).map(|row| row.name()).collect()
}

/// Reads the entries of a listener or of `[defaults]`. `other` reads those that are no settings, and returns false for unknown
/// ones.
pub fn read(
    reader: &mut Reader<'_, '_>,
    entries: &[Entry<'_, '_>],
    known: &[&str],
    mut other: impl FnMut(&mut Reader<'_, '_>, &Entry<'_, '_>) -> bool,
) -> Settings {
    let mut settings = Settings::default();
    let mut access = AccessKeys::default();
    for entry in entries {
        match entry.key {
            "protocol" => {
                let protocol = reader.parsed(entry, "protocol = \"udp\"", |text| pick(&PROTOCOLS, text));
                settings.protocol = protocol.or(settings.protocol);
            }
            "allow" | "deny" | "access" => access::read(reader, entry, &mut access),
            _ if setting(reader, entry, "", &mut settings) || other(reader, entry) => {}
            key => match Listener::rows().map(|row| row.table()).find(|table| *table == key) {
                Some(name) if !name.is_empty() => table(reader, entry, name, &mut settings),
                _ => reader.unknown(entry, known),
            },
        }
    }
    settings.settings.extend(access::finish(reader, access));
    settings
}

fn table(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>, name: &'static str, into: &mut Settings) {
    let first = Listener::rows().find(|row| row.table() == name).map(|row| row.line()).unwrap_or_default();
    let example = format!("{name} = {{ {first} }}");
    for entry in &reader.table(entry, name, &example) {
        if !setting(reader, entry, name, into) {
            reader.unknown(entry, &keys_of(name));
        }
    }
}

/// Reads an entry if it is a row of this table; otherwise returns false.
fn setting(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>, table: &str, into: &mut Settings) -> bool {
    let Some(row) = Listener::rows().find(|row| row.table() == table && row.name() == entry.key) else { return false };
    let set = row.field.read(reader, entry, &row.line());
    into.settings.extend(set.map(|set| At::new(Setting { row, set }, entry.at)));
    true
}
