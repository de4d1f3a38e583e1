//! What a portion of an iterator's output leaves over: the begin of a record whose end comes with the next portion.

/// Bytes that wait for those that follow them.
#[derive(Debug, Default)]
pub(super) struct Rest(Vec<u8>);

impl Rest {
    /// Gives `decode` what waits together with `bytes`; it tells how many it has used, and the others wait.
    pub(super) fn with(&mut self, bytes: &[u8], decode: impl FnOnce(&[u8]) -> usize) {
        if self.0.is_empty() {
            let used = decode(bytes);
            self.0.extend_from_slice(&bytes[used..]);
        } else {
            self.0.extend_from_slice(bytes);
            let used = decode(&self.0);
            self.0.drain(..used);
        }
    }

    /// Forgets what waits.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_gives_the_same() {
        let bytes: Vec<u8> = (0..20).collect();
        // Records of three bytes.
        let whole = |seen: &mut Vec<u8>, b: &[u8]| {
            let used = b.len() / 3 * 3;
            seen.extend_from_slice(&b[..used]);
            used
        };
        for portion in 1..=bytes.len() {
            let (mut rest, mut seen) = (Rest::default(), Vec::new());
            bytes.chunks(portion).for_each(|b| rest.with(b, |b| whole(&mut seen, b)));
            assert_eq!(seen, bytes[..18], "portions of {portion}");
        }
    }
}
