//! Threads that are busy with TLS handshakes: a cause of its own, and a look-alike of other computing.
use crate::judge::denial::{Denial, amount, count, share};
use crate::judge::facts::Facts;
use crate::judge::facts::requests::crypto::{CRYPTO_SHARE, Crypto};

/// The figure that a share of cryptography is of.
pub const SAMPLES: &str = "of a thread's samples in a cryptographic library";

/// A handshake is an exchange of its own before the request's (RFC 8446, section 2), so fewer a connection are no handshakes.
const MIN_EXCHANGES: f64 = 1.5;

/// The thread that computes handshakes of connections for few exchanges each, and the share of its samples in cryptography; what
/// speaks against it where there is none, or nothing where no thread was seen.
pub fn busy_with(facts: &Facts<'_>) -> Result<(u32, f64), Option<Box<Denial>>> {
    let setup = &facts.network.setup;
    let (tid, crypto) = at_crypto(facts).ok_or(None)?;
    if setup.connections == 0 || crypto < CRYPTO_SHARE {
        let opened = count(setup.connections as u64, "connections", "opened for a few exchanges");
        return Err(Some(Box::new(Denial::of(opened).and(share(crypto, SAMPLES)))));
    }
    if setup.exchanges < MIN_EXCHANGES {
        let exchanges = amount(setup.exchanges.max(1.0), "exchanges", "per connection");
        return Err(Some(Box::new(Denial::of(exchanges).because("and a handshake and a request are two"))));
    }
    Ok((tid, crypto))
}

/// The thread with the largest share of its samples in a cryptographic library, and that share.
pub fn at_crypto(facts: &Facts<'_>) -> Option<(u32, f64)> {
    let crypto = Crypto::new(facts.capture);
    let threads = facts.threads.iter().map(|thread| thread.rec.tid);
    threads.map(|tid| (tid, crypto.share(tid))).max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))
}
