//! Threads that are busy with TLS handshakes: a cause of its own, and a look-alike of other computing.
use crate::judge::denial::{Denial, amount, count, share};
use crate::judge::facts::Facts;
use crate::judge::facts::requests::crypto::{CRYPTO_SHARE, Crypto};

/// The figure that a share of cryptography is of.
pub const SAMPLES: &str = "of a thread's samples in a cryptographic library";

/// A handshake is an exchange of its own before the request's (RFC 8446, section 2), so fewer a connection are no handshakes.
const MIN_EXCHANGES: f64 = 1.5;

/// The thread that computes handshakes of connections for few exchanges each, and the share of its samples in cryptography; what
/// speaks against it where there is none, or nothing where no thread was seen. `named` is the thread that is said to compute: of several
/// workers, another one may have more samples there by chance.
pub fn busy_with(facts: &Facts<'_>, named: Option<u32>) -> Result<(u32, f64), Option<Box<Denial>>> {
    let setup = &facts.network.setup;
    let crypto = Crypto::new(facts.capture);
    let (tid, share_of) = match named {
        Some(tid) => (tid, crypto.share(tid)),
        None => most(facts, &crypto).ok_or(None)?,
    };
    if setup.connections == 0 || share_of < CRYPTO_SHARE {
        let opened = count(setup.connections as u64, "connections", "opened for a few exchanges");
        // Another thread may be at cryptography.
        let denial = Denial::of(opened).and(share(most(facts, &crypto).map_or(share_of, |(_, most)| most), SAMPLES));
        return Err(Some(Box::new(denial)));
    }
    if setup.exchanges < MIN_EXCHANGES {
        let exchanges = amount(setup.exchanges.max(1.0), "exchanges", "per connection");
        return Err(Some(Box::new(Denial::of(exchanges).because("and a handshake and a request are two"))));
    }
    Ok((tid, share_of))
}

/// The largest share of a thread's samples in a cryptographic library.
pub fn most_crypto(facts: &Facts<'_>) -> f64 {
    most(facts, &Crypto::new(facts.capture)).map_or(0.0, |(_, share)| share)
}

/// CPU time of all threads in cryptographic libraries, in nanoseconds, as far as samples tell.
pub fn crypto_ns(facts: &Facts<'_>) -> f64 {
    let crypto = Crypto::new(facts.capture);
    facts.threads.iter().map(|thread| thread.ledger.on_cpu() * crypto.share(thread.rec.tid)).sum()
}

fn most(facts: &Facts<'_>, crypto: &Crypto) -> Option<(u32, f64)> {
    let threads = facts.threads.iter().map(|thread| thread.rec.tid);
    threads.map(|tid| (tid, crypto.share(tid))).max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))
}
