//! CPU time in cryptographic libraries, as far as samples tell.
use std::collections::BTreeMap;

use parshall_evidence::{Capture, Stack};

use crate::stats::ratio;

/// From this share of a thread's samples in user mode on, cryptography is what it does.
pub const CRYPTO_SHARE: f64 = 0.3;
/// Shared libraries, and prefixes of functions of runtimes that bring their own.
const LIBRARIES: [&str; 7] =
    ["libcrypto", "libssl", "libgnutls", "libhogweed", "libmbedcrypto", "libnss3", "libfreebl"];
const FUNCTIONS: [&str; 6] = ["crypto/", "math/big.", "SSL_", "ssl3_", "RSA_", "rustls::"];

/// Samples of threads in user mode: those in cryptographic libraries, and all.
#[derive(Debug, Default)]
pub struct Crypto {
    by_tid: BTreeMap<u32, (u64, u64)>,
}

impl Crypto {
    /// Of a capture.
    pub fn new(capture: &Capture) -> Crypto {
        let is_crypto: Vec<bool> = capture.stacks.iter().map(is_crypto).collect();
        let mut crypto = Crypto::default();
        for sample in capture.samples.iter().filter(|sample| sample.user) {
            let (inside, all) = crypto.by_tid.entry(sample.tid).or_default();
            *all = all.saturating_add(sample.count);
            if sample.stack.and_then(|i| is_crypto.get(i as usize)) == Some(&true) {
                *inside = inside.saturating_add(sample.count);
            }
        }
        crypto
    }

    /// The share of a thread's samples in user mode that lie in a cryptographic library.
    pub fn share(&self, tid: u32) -> f64 {
        self.by_tid.get(&tid).map_or(0.0, |(inside, all)| ratio(*inside as f64, *all as f64))
    }
}

fn is_crypto(stack: &Stack) -> bool {
    stack.frames.iter().filter(|f| !f.kernel).any(|frame| {
        let module = frame.module.rsplit('/').next().unwrap_or_default();
        LIBRARIES.iter().any(|name| module.starts_with(name))
            || FUNCTIONS.iter().any(|name| frame.name.starts_with(name))
    })
}
