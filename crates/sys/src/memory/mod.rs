//! How bytes are copied and compared in a program that is linked with musl, on x86-64.
//!
//! musl copies with `rep movsq` and the rest byte by byte, and compares byte by byte. That takes 14 ns more than glibc for a name of
//! some bytes, of which a row of `sockets` has dozens. On arm64 musl's code is that of Arm's own library.

#[cfg(target_env = "musl")]
core::arch::global_asm!(include_str!("x86_64.s"), include_str!("musl.s"));
#[cfg(all(test, not(target_env = "musl")))]
core::arch::global_asm!(include_str!("x86_64.s"));

#[cfg(test)]
mod tests {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        fn parshall_memmove(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void;
        fn parshall_memcmp(one: *const c_void, other: *const c_void, bytes: usize) -> c_int;
    }

    /// Lengths around each of which the code takes another path, and some between.
    fn lengths() -> impl Iterator<Item = usize> {
        (0..=300).chain([511, 512, 513, 1500, 4090]).chain(4095..=4105).chain([9000, 65_537])
    }

    fn numbered(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at % 251) as u8).collect()
    }

    fn moved(buffer: &mut [u8], to: usize, from: usize, bytes: usize) {
        assert!(to + bytes <= buffer.len() && from + bytes <= buffer.len());
        let base = buffer.as_mut_ptr();
        // SAFETY: both ranges are within `buffer`, as asserted; they may overlap.
        let returned = unsafe { parshall_memmove(base.add(to).cast(), base.add(from).cast(), bytes) };
        assert_eq!(returned, base.wrapping_add(to).cast(), "the target is returned");
    }

    #[test]
    fn bytes_are_copied_wherever_they_overlap() {
        for bytes in lengths() {
            for apart in [0, 1, 7, 8, 15, 16, 31, 33, 63, 64, 65, 100, 128, bytes / 2, bytes, bytes + 3] {
                for (to, from) in [(5 + apart, 5), (5, 5 + apart)] {
                    let mut own = numbered(5 + apart + bytes + 9);
                    let mut standard = own.clone();
                    moved(&mut own, to, from, bytes);
                    standard.copy_within(from..from + bytes, to);
                    assert!(own == standard, "{bytes} bytes from {from} to {to}");
                }
            }
        }
    }

    fn compared(one: &[u8], other: &[u8]) -> c_int {
        assert_eq!(one.len(), other.len());
        // SAFETY: both have as many bytes.
        unsafe { parshall_memcmp(one.as_ptr().cast(), other.as_ptr().cast(), one.len()) }.signum()
    }

    #[test]
    fn the_first_byte_that_differs_decides() {
        for bytes in lengths() {
            let one = numbered(bytes);
            assert_eq!(compared(&one, &one.clone()), 0, "{bytes} bytes");
            for at in (0..bytes).filter(|at| *at < 300 || at + 20 > bytes) {
                let mut other = one.clone();
                other[at] = 255;
                // What comes behind says the opposite.
                other[at + 1..].fill(0);
                assert_eq!((compared(&one, &other), compared(&other, &one)), (-1, 1), "{bytes} bytes, from {at} on");
            }
        }
    }

    #[test]
    fn bytes_outside_are_not_compared() {
        let [mut one, mut other] = [numbered(400), numbered(400)];
        for bytes in 0..300 {
            (one[9], one[10 + bytes]) = (1, 2);
            (other[9], other[10 + bytes]) = (3, 4);
            assert_eq!(compared(&one[10..10 + bytes], &other[10..10 + bytes]), 0, "{bytes} bytes");
            (one[10 + bytes], other[10 + bytes]) = (7, 7);
        }
    }
}
