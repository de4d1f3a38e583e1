//! The list of robust mutexes that a thread has told the kernel of.
use std::ptr;

/// The address of the head of this thread's list, in its process. None where it has told of none, is gone, or may not be read (as with
/// /proc/PID/mem). glibc tells of one for each thread, inside of the structure that pthread_self() is the address of; musl only for threads
/// that have held such a mutex.
pub fn head(tid: u32) -> Option<u64> {
    let (mut head, mut length) = (ptr::null_mut::<libc::c_void>(), 0usize);
    // SAFETY: the kernel writes a pointer and a length to these two variables, which outlive the call. The pointer is one of another
    // process and never followed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_robust_list,
            libc::c_long::from(tid),
            ptr::from_mut(&mut head),
            ptr::from_mut(&mut length),
        )
    };
    (result == 0 && !head.is_null()).then_some(head.addr() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread_id;

    #[test]
    fn each_thread_has_its_own_and_nobody_has_none() {
        let own = || head(thread_id());
        let other = std::thread::spawn(own).join().expect("it ends");
        assert_ne!(own(), None);
        assert_ne!(own(), other);
        assert_eq!(head(u32::MAX >> 1), None);
    }
}
