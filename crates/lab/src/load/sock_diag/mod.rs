//! Reads all TCP sockets of its network namespace again and again by SOCK_DIAG, as collectors do. Replies are cut apart and counted, and
//! not decoded.
mod ring;

use anyhow::{Context, bail};
use parshall_core::sock_diag::{Message, Messages, push_dump, tables};
use parshall_evidence::socket::Selection;
use parshall_sys::sock_diag::{DiagSocket, Plain, Reader};

use self::ring::Ringed;

use super::common::{Clock, Common, print_ready};
use super::outcome::Outcome;

const KIND: &str = "sock-diag";

/// `parshall lab load sock-diag`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// How replies are read: a system call for each, or io_uring with several receives in flight
    #[arg(long, value_enum, default_value_t = With::Recv)]
    with: With,
    /// End after this many dumps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    dumps: Option<u64>,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum With {
    Recv,
    IoUring,
}

/// Counts of messages and their bytes.
#[derive(Debug, Default)]
struct Stats {
    messages: u64,
    bytes: u64,
}

/// Reads until the time is over, or all dumps are made.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let clock = Clock::start(&args.common)?;
    let mut reader: Box<dyn Reader> = match args.with {
        With::Recv => Box::new(Plain::default()),
        With::IoUring => Box::new(Ringed::open().context("this host has no io_uring that can be used")?),
    };
    reader.attach(DiagSocket::open()?);
    print_ready(KIND, "connect", None);
    let mut stats = Stats::default();
    for sequence in 1.. {
        dump(&mut *reader, sequence, &mut |part| {
            stats.messages += 1;
            stats.bytes += part.len() as u64;
        })?;
        if clock.over() || args.dumps.is_some_and(|dumps| u64::from(sequence) >= dumps) {
            break;
        }
    }
    Ok(Outcome::new(KIND, "connect", None, &clock, stats.messages, stats.bytes))
}

/// Reads one dump, and passes its messages to `take`.
fn dump(reader: &mut dyn Reader, sequence: u32, take: &mut dyn FnMut(&[u8])) -> anyhow::Result<()> {
    let selection = Selection::default();
    let mut request = Vec::new();
    let tcp = *tables(&selection).first().expect("TCP sockets are part of the default");
    push_dump(&mut request, sequence, tcp, &selection, false);
    reader.ask(&request)?;
    let mut end = None;
    while end.is_none() {
        reader.receive(&mut |part| {
            take(part);
            for message in Messages::new(part, sequence) {
                if let Message::Done(errno) | Message::Refused(errno) = message {
                    end = Some(errno);
                }
            }
        })?;
    }
    match end {
        Some(0) | None => Ok(()),
        Some(errno) => bail!("the kernel ended the dump: {}", std::io::Error::from_raw_os_error(errno)),
    }
}
