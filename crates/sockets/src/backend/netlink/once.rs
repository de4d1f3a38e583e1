//! Each socket once, although the kernel may show it twice: when a dump is read again, and when a chain changes while the
//! kernel pauses in it, because it finds its place again by counting.

/// How far apart the same socket may stand within one reading: the kernel pauses within a chain, and a chain is short.
const NEAR: usize = 64;

/// Cookies of the sockets of one dump.
#[derive(Debug, Default)]
pub(super) struct Once {
    cookies: Vec<u64>,
    /// So many of them, sorted, are of earlier readings.
    earlier: usize,
}

impl Once {
    /// Begins a dump. The memory stays.
    pub(super) fn clear(&mut self) {
        self.cookies.clear();
        self.earlier = 0;
    }

    /// The dump is read again from its beginning.
    pub(super) fn again(&mut self) {
        self.cookies.sort_unstable();
        self.earlier = self.cookies.len();
    }

    /// Whether this socket is new. One without a cookie always is.
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
    fn nothing_twice_in_a_row_nor_when_read_again() {
        let mut once = Once::default();
        let read = |once: &mut Once, cookies: &[u64]| cookies.iter().filter(|c| once.is_new(**c)).count();
        assert_eq!(read(&mut once, &[7, 3, 9, 3, 0, 0]), 5);
        once.again();
        assert_eq!(read(&mut once, &[9, 4, 7, 4, 3]), 1);
        once.again();
        assert_eq!(read(&mut once, &[4, 9, 5]), 1);
        once.clear();
        assert_eq!(read(&mut once, &[4, 9, 5]), 3);
    }
}
