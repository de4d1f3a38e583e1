//! Removes duplicates. The kernel may send a socket twice: when a dump is repeated, and when a hash chain changes while the
//! dump pauses in it, because the kernel resumes a chain by the number of sockets that it has dumped.

/// The maximum distance of duplicates within one attempt: the dump pauses within a chain, and a chain is short.
const NEAR: usize = 64;

/// Cookies of the sockets of one dump.
#[derive(Debug, Default)]
pub(super) struct Once {
    cookies: Vec<u64>,
    /// The number of cookies of earlier attempts, which are sorted.
    earlier: usize,
}

impl Once {
    /// Begins a dump. The memory is reused.
    pub(super) fn clear(&mut self) {
        self.cookies.clear();
        self.earlier = 0;
    }

    /// Begins another attempt at the same dump.
    pub(super) fn restart(&mut self) {
        self.cookies.sort_unstable();
        self.earlier = self.cookies.len();
    }

    /// Whether this socket is not a duplicate. One without a cookie never is.
    pub(super) fn is_new(&mut self, cookie: u64) -> bool {
        if cookie == 0 {
            return true;
        }
        let (earlier, now) = self.cookies.split_at(self.earlier);
        let near = &now[now.len().saturating_sub(NEAR)..];
        if near.contains(&cookie) || earlier.binary_search(&cookie).is_ok() {
            return false;
        }
        self.cookies.push(cookie);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_found_within_and_between_attempts() {
        let mut once = Once::default();
        let read = |once: &mut Once, cookies: &[u64]| cookies.iter().filter(|c| once.is_new(**c)).count();
        assert_eq!(read(&mut once, &[7, 3, 9, 3, 0, 0]), 5);
        once.restart();
        assert_eq!(read(&mut once, &[9, 4, 7, 4, 3]), 1);
        once.restart();
        assert_eq!(read(&mut once, &[4, 9, 5]), 1);
        once.clear();
        assert_eq!(read(&mut once, &[4, 9, 5]), 3);
    }
}
