//! Stores an incomplete record at the end of one `read` of an iterator until the next `read` completes it.

#[derive(Debug, Default)]
pub(super) struct Rest(Vec<u8>);

impl Rest {
    /// Passes the stored bytes and `bytes` to `decode`, which returns how many of them it used. The others are stored.
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

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_of_any_size_give_the_same_records() {
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
