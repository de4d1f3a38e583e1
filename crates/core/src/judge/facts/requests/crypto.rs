//! CPU time in cryptographic libraries, as far as samples tell.
use parshall_evidence::Capture;

use crate::stats::ratio;

/// From this share of a thread's samples in user mode on, cryptography is what it does.
pub const CRYPTO_SHARE: f64 = 0.3;
/// Shared libraries, and prefixes of functions of runtimes that bring their own.
const LIBRARIES: [&str; 7] =
    ["libcrypto", "libssl", "libgnutls", "libhogweed", "libmbedcrypto", "libnss3", "libfreebl"];
const FUNCTIONS: [&str; 6] = ["crypto/", "math/big.", "SSL_", "ssl3_", "RSA_", "rustls::"];

/// The share of a thread's samples in user mode that lie in a cryptographic library.
pub fn crypto_share(capture: &Capture, tid: u32) -> f64 {
    let (mut crypto, mut all) = (0u64, 0u64);
    for sample in capture.samples.iter().filter(|s| s.tid == tid && s.user) {
        all = all.saturating_add(sample.count);
        let stack = sample.stack.and_then(|i| capture.stacks.get(i as usize));
        let is_crypto = stack.is_some_and(|stack| {
            stack.frames.iter().filter(|f| !f.kernel).any(|frame| {
                let module = frame.module.rsplit('/').next().unwrap_or_default();
                LIBRARIES.iter().any(|name| module.starts_with(name))
                    || FUNCTIONS.iter().any(|name| frame.name.starts_with(name))
            })
        });
        crypto = crypto.saturating_add(if is_crypto { sample.count } else { 0 });
    }
    ratio(crypto as f64, all as f64)
}
