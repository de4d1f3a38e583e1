//! The flags that choose the loop of a tunnel and tune it.
use clap::{Args, ValueEnum, value_parser};
use parshall_host::error::UserError;

use crate::engine::{Engine, EngineRequest};
use crate::uring::Tunables;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum EngineName {
    /// syscall, which was measured to be faster
    #[default]
    Auto,
    /// read, writev, recvmmsg and sendmmsg
    Syscall,
    /// io_uring, from Linux 6.1 on
    Uring,
}

/// How packets are moved.
#[derive(Debug, Clone, Args)]
pub struct EngineArgs {
    /// The loop that moves packets
    #[arg(long, value_enum, default_value_t, value_name = "LOOP")]
    engine: EngineName,
    /// Threads of the system call loop that seal, and as many that open; with 1, one thread does both
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Lower the MSS of TCP connections to what the path to the peer takes, for hosts that block ICMP
    #[arg(long)]
    clamp_mss: bool,
    /// Entries of the ring; it has at least one for each slot
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = value_parser!(u32).range(1..=4096))]
    uring_entries: u32,
    /// Reads of the TUN device in flight
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=256))]
    uring_tun_slots: u32,
    /// GSO batches in flight
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = value_parser!(u32).range(1..=256))]
    uring_send_slots: u32,
    /// Have a kernel thread submit, which takes a core under load
    #[arg(long)]
    uring_sqpoll: bool,
    /// Send without copying into the kernel
    #[arg(long)]
    uring_zero_copy: bool,
    /// Have the TUN device in blocking mode; from Linux 6.4 on
    #[arg(long)]
    uring_blocking_tun: bool,
}

impl EngineArgs {
    pub(super) fn validate(&self) -> Result<EngineRequest, UserError> {
        let tunables = Tunables {
            entries: self.uring_entries,
            tun_slots: self.uring_tun_slots as usize,
            send_slots: self.uring_send_slots as usize,
            sqpoll: self.uring_sqpoll,
            zero_copy: self.uring_zero_copy,
            blocking_tun: self.uring_blocking_tun,
        };
        let engine = match self.engine {
            EngineName::Uring if self.threads > 1 => {
                return Err(UserError::new(
                    "--threads is for the system call loop",
                    "leave out --engine uring, or --threads",
                ));
            }
            EngineName::Uring => Engine::Uring(tunables),
            EngineName::Auto | EngineName::Syscall if tunables != Tunables::default() => {
                return Err(UserError::new("the flags --uring-... are for --engine uring", "add --engine uring"));
            }
            EngineName::Auto | EngineName::Syscall => Engine::Syscall(self.threads as usize),
        };
        Ok(EngineRequest { engine, clamp_mss: self.clamp_mss })
    }
}

#[cfg(test)]
impl EngineArgs {
    /// Those of a command line.
    pub(super) fn of(flags: &str) -> Result<Self, clap::Error> {
        use clap::FromArgMatches;
        let command = Self::augment_args(clap::Command::new("tunnel").no_binary_name(true));
        Self::from_arg_matches(&command.try_get_matches_from(flags.split_whitespace())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(flags: &str) -> Result<EngineRequest, String> {
        let args = EngineArgs::of(flags).map_err(|error| error.to_string())?;
        args.validate().map_err(|error| error.what)
    }

    #[test]
    fn tunables_are_the_rings() {
        let one = EngineRequest { engine: Engine::Syscall(1), clamp_mss: false };
        assert_eq!(engine(""), Ok(one));
        assert_eq!(engine("--engine syscall --clamp-mss"), Ok(EngineRequest { clamp_mss: true, ..one }));
        let tunables = Tunables { zero_copy: true, tun_slots: 1, ..Tunables::default() };
        let uring = EngineRequest { engine: Engine::Uring(tunables), ..one };
        assert_eq!(engine("--engine uring --uring-zero-copy --uring-tun-slots 1"), Ok(uring));
        let all =
            Tunables { sqpoll: true, zero_copy: true, blocking_tun: true, entries: 1, tun_slots: 2, send_slots: 3 };
        let threads = EngineRequest { engine: Engine::Syscall(4), ..one };
        assert_eq!(engine("--threads 4"), Ok(threads));
        assert_eq!(engine("--engine uring --threads 2"), Err("--threads is for the system call loop".to_owned()));
        for request in [one, threads, uring, EngineRequest { engine: Engine::Uring(all), clamp_mss: true }] {
            assert_eq!(engine(&request.flags().join(" ")), Ok(request), "the flags for another process");
        }
        assert_eq!(engine("--uring-sqpoll"), Err("the flags --uring-... are for --engine uring".to_owned()));
        assert!(engine("--engine uring --uring-tun-slots 0").is_err());
    }
}
