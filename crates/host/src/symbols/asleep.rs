//! Where a thread sleeps, read from /proc: registers and the top of the stack of a thread that is in a system call.
//!
//! The probes take the user stack of a thread when it begins to sleep. Of one that sleeps since before the window they have none. Nobody is
//! stopped for this: the thread may wake up meanwhile, so its place is read again behind its stack and has to be the same.
use parshall_sys::robust_list;

use super::python::memory::{Memory, ProcessMemory};
use super::python::{self, RawFrame, outside};
use super::unwind::UserStack;
use crate::bounded_file;

/// Bytes of a stack that are read: those that the probes copy are no more.
const STACK_MAX: usize = 16 << 10;
/// Less than a page at a time, so that a stack that is shorter is read up to its last page.
const PIECE: u64 = 4096;

/// The place of a sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    syscall: i32,
    sp: u64,
    ip: u64,
}

/// The registers and the stack of a thread that sleeps in this system call, and what it runs in the interpreter, innermost first. None where
/// it does something else, or may not be read. The frame pointer register is not known.
pub fn read(
    tgid: u32,
    tid: u32,
    syscall: i32,
    interpreter: Option<&python::Place>,
) -> Option<(UserStack, Vec<RawFrame>)> {
    let place = place(tgid, tid).filter(|place| place.syscall == syscall)?;
    let mut process = ProcessMemory::open(tgid)?;
    let memory = top_of_stack(&mut process, place.sp);
    // The interpreter keeps the address of libc's structure with each thread's state. glibc has this list within that structure, so that
    // its address tells which state is this thread's.
    let asked = interpreter.and_then(|interpreter| Some((interpreter, robust_list::head(tid)?)));
    let interpreted = asked.map_or_else(Vec::new, |(at, inside)| outside::frames(&mut process, at, inside));
    let still_there = self::place(tgid, tid) == Some(place);
    still_there.then_some((UserStack { tgid, ip: place.ip, sp: place.sp, fp: 0, lr: 0, memory }, interpreted))
}

fn place(tgid: u32, tid: u32) -> Option<Place> {
    parse(&bounded_file::text(format!("/proc/{tgid}/task/{tid}/syscall")).ok()?)
}

/// `230 0x0 0x0 0x7ffd… 0x0 0x0 0x0 0x7ffd… 0x7f1a…`: the call, its arguments, the stack pointer and the instruction pointer (man 5 proc).
fn parse(text: &str) -> Option<Place> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [syscall, .., sp, ip] = fields[..] else { return None };
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let place = Place { syscall: syscall.parse().ok()?, sp: hex(sp)?, ip: hex(ip)? };
    (place.ip != 0).then_some(place)
}

/// What the stack holds from `sp` on, up to the end of its mapping.
fn top_of_stack(memory: &mut impl Memory, sp: u64) -> Vec<u8> {
    let mut top = Vec::with_capacity(STACK_MAX);
    while top.len() < STACK_MAX {
        let Some(at) = sp.checked_add(top.len() as u64) else { break };
        let mut piece = [0; PIECE as usize];
        let piece = &mut piece[..(PIECE - at % PIECE) as usize];
        if memory.read(at, piece).is_none() {
            break;
        }
        top.extend_from_slice(piece);
    }
    top.truncate(STACK_MAX);
    top
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_has_a_place() {
        let text = "230 0x0 0x0 0x7ffd10 0x0 0x0 0x0 0x7ffd00 0x7f1a55\n";
        assert_eq!(parse(text), Some(Place { syscall: 230, sp: 0x7ffd00, ip: 0x7f1a55 }));
        assert_eq!(parse("-1 0x7ffd00 0x7f1a55\n"), Some(Place { syscall: -1, sp: 0x7ffd00, ip: 0x7f1a55 }));
        for text in ["running\n", "", "-1 0x0 0x0\n", "230 0x1\n", "230 x y\n", "x 0x1 0x2\n"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    /// Memory that ends at an address.
    struct Until(u64);

    impl Memory for Until {
        fn read(&mut self, address: u64, into: &mut [u8]) -> Option<()> {
            address.checked_add(into.len() as u64).filter(|end| *end <= self.0).map(|_| into.fill(7))
        }
    }

    #[test]
    fn a_short_stack_is_read_to_its_end_and_a_long_one_in_part() {
        assert_eq!(top_of_stack(&mut Until(0x9000), 0x7ff0).len(), 0x1010);
        assert_eq!(top_of_stack(&mut Until(0x9000), 0x9000).len(), 0);
        assert_eq!(top_of_stack(&mut Until(u64::MAX), 0x7ff8).len(), STACK_MAX);
        assert!(top_of_stack(&mut Until(0), u64::MAX - 8).is_empty());
    }

    #[test]
    fn a_thread_in_another_call_or_of_nobody_is_not_read() {
        let own = std::process::id();
        assert_eq!(read(own, own, i32::MAX, None), None);
        assert_eq!(read(u32::MAX, u32::MAX, 0, None), None);
    }
}
