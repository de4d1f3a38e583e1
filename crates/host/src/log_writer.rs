//! Writes the log to stderr without waiting for ever. A reader that does not read (a log shipper that was stopped, a full pipe) would
//! otherwise hold up every thread that has something to report, and with them the traffic and the end of a service.
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// PIPE_BUF (pipe(7)): a pipe that poll(2) finds writable takes this much without waiting.
const PIECE: usize = 4096;
/// How long a message waits for a reader. Once one has waited in vain, the next ones are lost at once until the reader reads.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Messages that were lost since the last one that was written.
#[derive(Debug, Default)]
struct Losses {
    stuck: AtomicBool,
    lost: AtomicU64,
}

static LOSSES: Losses = Losses { stuck: AtomicBool::new(false), lost: AtomicU64::new(0) };

/// Stderr. A message is one call of `write`.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        // The lock keeps the pieces of messages of several threads apart; its holder does not wait for ever either.
        write_message(&LOSSES, &io::stderr().lock(), message);
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a message, or counts it as lost.
fn write_message(losses: &Losses, to: &impl AsFd, message: &[u8]) {
    let wait = if losses.stuck.load(Ordering::Relaxed) { Duration::ZERO } else { WAIT_MAX };
    let whole = match losses.lost.load(Ordering::Relaxed) {
        0 => message.to_vec(),
        lost => [format!("warning: {lost} messages were lost: stderr was not read\n").as_bytes(), message].concat(),
    };
    let lost = write_whole(to, &whole, wait).is_err();
    losses.stuck.store(lost, Ordering::Relaxed);
    if lost {
        losses.lost.fetch_add(1, Ordering::Relaxed);
    } else {
        losses.lost.store(0, Ordering::Relaxed);
    }
}

fn write_whole(to: &impl AsFd, mut bytes: &[u8], wait: Duration) -> io::Result<()> {
    while !bytes.is_empty() {
        if !is_writable(to, wait)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match rustix::io::write(to, &bytes[..bytes.len().min(PIECE)]) {
            Ok(written) => bytes = &bytes[written..],
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether a descriptor takes bytes, or fails, within this time. A regular file always does.
fn is_writable(to: &impl AsFd, wait: Duration) -> io::Result<bool> {
    let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    loop {
        match poll(&mut [PollFd::new(to, PollFlags::OUT)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, pipe};

    use super::*;

    #[test]
    fn messages_that_nobody_reads_are_lost_and_counted() {
        let (mut reader, writer) = pipe().expect("a pipe");
        let losses = Losses::default();
        let message = [&[b'x'; 4095][..], b"\n"].concat();
        // A pipe takes 16 of them; it does not wait for a reader with each of the others.
        for _ in 0..1000 {
            write_message(&losses, &writer, &message);
        }
        assert_eq!(losses.lost.load(Ordering::Relaxed), 984);
        let mut read = vec![0; 16 * 4096];
        reader.read_exact(&mut read).expect("what was written");
        write_message(&losses, &writer, b"again\n");
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).expect("text");
        assert_eq!(rest, "warning: 984 messages were lost: stderr was not read\nagain\n");
        assert_eq!(losses.lost.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_reader_that_is_gone_is_no_failure() {
        let (reader, writer) = pipe().expect("a pipe");
        drop(reader);
        let losses = Losses::default();
        write_message(&losses, &writer, b"to nobody\n");
        assert_eq!(losses.lost.load(Ordering::Relaxed), 1);
    }
}
