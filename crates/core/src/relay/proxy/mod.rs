//! The PROXY protocol, both versions, with which a proxy passes the client's address on.
//!
//! [`parse`] gets all bytes that have arrived so far, from the first one on, and returns whether the header is complete. It
//! keeps no state, so a header may arrive in any pieces. [`encode_v1`] and [`encode_v2`] write one. The caller decides what a
//! header means for a connection (which proxies to trust, which address to log).
//!
//! Source: "The PROXY protocol, Versions 1 & 2", proxy-protocol.txt of haproxy; sections are cited beside the code.
mod header;
mod tlv;
mod v1;
mod v2;

#[cfg(test)]
mod tests;

pub use header::{Addresses, Command, Header, Malformed, Progress, Transport, UnixPaths};
pub use tlv::{Kind, Tlv, TlvRefused, Tlvs};
pub use v1::{MAX_BYTES as V1_MAX_BYTES, encode as encode_v1};
pub use v2::{HeaderTooLong, MAX_BYTES as V2_MAX_BYTES, encode as encode_v2};

/// Parses all bytes that have arrived since the connection began.
pub fn parse(bytes: &[u8]) -> Progress {
    let result = match bytes.first() {
        None => Ok(None),
        Some(b'P') => v1::parse(bytes),
        Some(_) => v2::parse(bytes),
    };
    match result {
        Ok(None) => Progress::NeedMore,
        Ok(Some((header, consumed))) => Progress::Done { header, consumed },
        Err(why) => Progress::Malformed { why },
    }
}
