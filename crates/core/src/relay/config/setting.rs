//! A setting as the user wrote it, and the listeners that it does not fit.
//!
//! Defaults and a listener's own settings are lists of these. A default that does not fit a listener is left out there (such
//! as TCP timeouts in a UDP listener); a listener's own setting that does not fit is an error.
use std::fmt;
use std::sync::Arc;

use super::model::{Endpoint, Protocol};
use super::row::{Row, Set};
use super::rules;
use super::table::Listener;
use crate::values::ValueError;

/// A row with the value that it was given.
#[derive(Clone)]
pub struct Setting {
    /// The row of the setting.
    pub row: &'static Row<Listener>,
    /// Sets the value.
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

    /// Sets its value in a listener.
    pub fn apply(&self, listener: &mut Listener) {
        (self.set)(listener);
    }

    /// The error if its value in a listener does not fit that listener.
    pub fn misfit(&self, listener: &Listener) -> Option<ValueError> {
        let more = &self.row.more;
        if (more.is_off)(listener) {
            return None;
        }
        if let Some(hint) = more.tcp_only.filter(|_| listener.protocol == Protocol::Udp) {
            return Some(ValueError::new(format!("`{}` cannot be used with UDP", self.key()), hint));
        }
        if let Some(hint) = more.udp_only.filter(|_| listener.protocol == Protocol::Tcp) {
            return Some(ValueError::new(format!("`{}` cannot be used with TCP", self.key()), hint));
        }
        // With PROXY headers clients of a Unix socket have addresses.
        let nameless = matches!(listener.listen, Endpoint::Unix(_)) && !listener.proxy_in;
        rules::misfit(self.key(), listener).or_else(|| {
            (nameless && (more.by_client)(listener)).then(|| {
                let what = format!("`{}` cannot be used with a Unix listener: its clients have no address", self.key());
                ValueError::new(what, "leave it out, or set proxy-in if the clients send PROXY headers")
            })
        })
    }
}
