//! A setting as it was written, and where it cannot work.
//!
//! Defaults and a listener's own settings are lists of these. A default that cannot work with a listener is left out
//! there (TCP timeouts do not trouble a UDP listener); a listener's own setting that cannot work is an error.
use std::fmt;
use std::sync::Arc;

use super::model::{Endpoint, Protocol};
use super::row::{Row, Set};
use super::rules::{CLASHES, Clash};
use super::table::Listener;
use crate::values::ValueError;

/// A row with the value that it was given.
#[derive(Clone)]
pub struct Setting {
    /// Which setting.
    pub row: &'static Row<Listener>,
    /// Sets it.
    pub set: Set<Listener>,
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row.key)
    }
}

impl Setting {
    /// A value for the setting with this key, which must exist.
    pub fn new(key: &str, set: impl Fn(&mut Listener) + Send + Sync + 'static) -> Self {
        let row = Listener::rows().find(|row| row.key == key).expect("a key of the table");
        Self { row, set: Arc::new(set) }
    }

    /// Its key in a file.
    pub fn key(&self) -> &'static str {
        self.row.key
    }

    /// Sets it.
    pub fn apply(&self, listener: &mut Listener) {
        (self.set)(listener);
    }

    /// Why its value in a listener cannot work with what the listener forwards.
    pub fn misfit(&self, listener: &Listener) -> Option<ValueError> {
        let more = &self.row.more;
        if (more.is_off)(listener) {
            return None;
        }
        if let Some(hint) = more.tcp_only.filter(|_| listener.protocol == Protocol::Udp) {
            return Some(ValueError::new(format!("`{}` cannot be used with UDP", self.key()), hint));
        }
        // Behind a PROXY header there is an address again.
        let nameless = matches!(listener.listen, Endpoint::Unix(_)) && !listener.proxy_in;
        (more.refuse)(listener).or_else(|| {
            (nameless && (more.by_client)(listener)).then(|| {
                let what = format!("`{}` cannot be used with a Unix listener: its clients have no address", self.key());
                ValueError::new(what, "leave it out, or set proxy-in if the clients send PROXY headers")
            })
        })
    }

    /// Other settings with which its value in a listener cannot work.
    pub fn clashes(&self, listener: &Listener) -> impl Iterator<Item = &'static Clash> {
        CLASHES.iter().filter(move |clash| clash.keys.contains(&self.key()) && (clash.holds)(listener))
    }
}
