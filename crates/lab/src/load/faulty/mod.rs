//! Applications that behave badly on purpose, for faults with a known cause, and their twins that behave well.
//!
//! They speak protocols of their own and make exactly the system calls that their flags say, which generators of load avoid: writes
//! apart, pauses, corks, a thread that computes for all connections.
mod burn;
mod relay_copy;
mod row_lock;
mod rpc_echo;
mod stream;

use super::common::Common;
use super::outcome::Outcome;

/// The kinds, subcommands of `parshall lab load`.
#[derive(Debug, clap::Subcommand)]
pub enum Kind {
    /// RPC echo: a 40-byte `finish` and a 136-byte `ping` per request, a 96-byte reply
    #[command(after_help = "Examples:
  parshall lab load rpc-echo
  parshall lab load rpc-echo --nodelay --clients 4 --for 30s
  parshall lab load rpc-echo --serve 127.0.0.1:7000 --for 1m
  parshall lab load rpc-echo --connect 127.0.0.1:7000")]
    RpcEcho(rpc_echo::Args),
    /// Bulk transfer, or request and reply, over TCP
    #[command(after_help = "Examples:
  parshall lab load stream
  parshall lab load stream --read-pause-ms 20 --for 30s
  parshall lab load stream --request-reply --write-bytes 100")]
    Stream(stream::Args),
    /// A naive TCP forwarder with a small copy buffer
    #[command(after_help = "Examples:
  parshall lab load relay-copy --listen 127.0.0.1:9000 --target 127.0.0.1:9001
  parshall lab load relay-copy --target 127.0.0.1:9001 --buffer 65536")]
    RelayCopy(relay_copy::Args),
    /// A database whose row is locked, an application server that updates it, and clients
    #[command(after_help = "Examples:
  parshall lab load row-lock --serve 127.0.0.1:5432
  parshall lab load row-lock --serve 127.0.0.1:8000 --ask 127.0.0.1:5432
  parshall lab load row-lock --connect 127.0.0.1:5432 --hold-ms 200
  parshall lab load row-lock --connect 127.0.0.1:8000 --clients 4")]
    RowLock(row_lock::Args),
}

impl Kind {
    /// The options that all share.
    pub fn common(&self) -> &Common {
        match self {
            Self::RpcEcho(args) => &args.common,
            Self::Stream(args) => &args.common,
            Self::RelayCopy(args) => &args.common,
            Self::RowLock(args) => &args.common,
        }
    }

    /// Runs it until its time is over or a signal ends it.
    pub fn run(&self) -> anyhow::Result<Outcome> {
        match self {
            Self::RpcEcho(args) => rpc_echo::run(args),
            Self::Stream(args) => stream::run(args),
            Self::RelayCopy(args) => relay_copy::run(args),
            Self::RowLock(args) => row_lock::run(args),
        }
    }
}
