//! Dumps all TCP sockets of its network namespace again and again and says what that cost: the workload of
//! `bench/sockets/uring`. `sock_diag_read plain|uring`; each line of standard input is a number of dumps, and each is
//! answered with one line of JSON. Messages are cut apart and counted, and not decoded: that would cost both the same.
#![allow(unsafe_code)]
use std::io::{self, BufRead, Write};

use parshall_sys::clock::process_cpu_ns;
use parshall_sys::sock_diag::{DiagSocket, MESSAGE_BYTES, Plain, Reader, Ringed};

const NLMSG_ERROR: u32 = 2;
const NLMSG_DONE: u32 = 3;

#[derive(Default)]
struct Seen {
    messages: u64,
    full: u64,
    bytes: u64,
    sockets: u64,
}

fn main() -> io::Result<()> {
    let mut reader: Box<dyn Reader> = match std::env::args().nth(1).as_deref() {
        Some("plain") => Box::new(Plain::default()),
        Some("uring") => Box::new(Ringed::open()?),
        _ => return Err(io::Error::other("sock_diag_read plain|uring")),
    };
    reader.attach(DiagSocket::open()?);
    let mut sequence = 0;
    for line in io::stdin().lock().lines() {
        let dumps: u32 = line?.trim().parse().map_err(io::Error::other)?;
        let mut seen = Seen::default();
        let (cpu, switches) = (process_cpu_ns(), switches());
        for _ in 0..dumps {
            sequence += 1;
            dump(&mut *reader, sequence, &mut seen)?;
        }
        let (cpu, after) = (process_cpu_ns() - cpu, self::switches());
        let Seen { messages, full, bytes, sockets } = seen;
        let (voluntary, involuntary) = (after.0 - switches.0, after.1 - switches.1);
        let system_us = after.2 - switches.2;
        println!(
            "{{\"messages\":{messages},\"full\":{full},\"bytes\":{bytes},\"sockets\":{sockets},\"cpu_ns\":{cpu},\
             \"system_us\":{system_us},\"voluntary\":{voluntary},\"involuntary\":{involuntary},\"rss_kib\":{}}}",
            rss_kib()
        );
        io::stdout().flush()?;
    }
    Ok(())
}

/// All states but BOUND_INACTIVE, all extensions that the collector asks for, both families (struct inet_diag_req).
fn request(sequence: u32) -> Vec<u8> {
    let mut request = [76u32, 18 | 0x301 << 16, sequence, 0].map(u32::to_ne_bytes).concat();
    request.extend_from_slice(&[0, 0, 0, 0b0111_1110]);
    request.extend_from_slice(&[0; 48]);
    request.extend_from_slice(&(!(1u32 << 13)).to_ne_bytes());
    request.extend_from_slice(&[0; 4]);
    request
}

fn dump(reader: &mut dyn Reader, sequence: u32, seen: &mut Seen) -> io::Result<()> {
    reader.ask(&request(sequence))?;
    let mut end = None;
    while end.is_none() {
        reader.receive(&mut |part| {
            seen.messages += 1;
            seen.full += u64::from(part.len() > MESSAGE_BYTES / 2);
            seen.bytes += part.len() as u64;
            let mut at = 0;
            while let Some(head) = part.get(at..at + 8) {
                let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
                match word(4) & 0xffff {
                    kind @ (NLMSG_DONE | NLMSG_ERROR) => end = Some(kind),
                    _ => seen.sockets += 1,
                }
                at += (word(0) as usize).next_multiple_of(4).max(16);
            }
        })?;
    }
    if end == Some(NLMSG_ERROR) { Err(io::Error::other("the kernel refused the dump")) } else { Ok(()) }
}

/// Voluntary and involuntary context switches of this process, and its time in the kernel in microseconds.
fn switches() -> (i64, i64, i64) {
    // SAFETY: all-zero bytes are a valid rusage: integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one rusage.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    (usage.ru_nvcsw, usage.ru_nivcsw, usage.ru_stime.tv_sec * 1_000_000 + usage.ru_stime.tv_usec)
}

fn rss_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
