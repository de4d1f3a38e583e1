//! The flags of `rpc-echo`, and the sizes of its messages.
use std::time::Duration;

use parshall_core::load::Pattern;

use super::super::super::common::Common;
use super::super::super::generator::requests::Requests;
use super::super::super::socket::{Ends, SocketArgs};
use crate::units;

/// Bytes of the first message of a request, which has no answer.
pub const FINISH: usize = 40;
/// Bytes of the second message, which has one.
pub const PING: usize = 136;
/// Bytes of a request.
pub const REQUEST: usize = FINISH + PING;
/// Bytes of a reply.
pub const REPLY: usize = 96;
/// Bytes of the first write of a reply in two parts.
pub const REPLY_HEAD: usize = 16;

/// `parshall lab load rpc-echo`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub ends: Ends,
    #[command(flatten)]
    pub socket: SocketArgs,
    #[command(flatten)]
    pub common: Common,
    /// Connections, each with one request at a time
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=5000))]
    pub clients: u16,
    /// Write both messages of a request with one call
    #[arg(long)]
    pub together: bool,
    /// Requests per second over all connections (default: as fast as replies come)
    #[arg(long, value_name = "PER_SECOND", value_parser = units::rate)]
    pub rate: Option<f64>,
    /// The server sleeps this long before each reply, in a thread per connection
    #[arg(long, value_name = "MS", default_value = "0", value_parser = units::milliseconds)]
    pub think_ms: Duration,
    /// The server computes this long before each reply
    #[arg(long, value_name = "MS", default_value = "0", value_parser = units::milliseconds)]
    pub burn_ms: Duration,
    /// The server writes head and body of a reply apart
    #[arg(long)]
    pub reply_in_two: bool,
}

impl Args {
    /// One request at a time on each connection.
    pub fn requests(&self) -> Requests {
        Requests {
            apart: (!self.together).then_some(FINISH as u32),
            schedule: self.rate.map(|per_s| (Pattern::Constant, per_s)),
            ..Requests::new(self.clients.into(), REQUEST as u32, REPLY as u32)
        }
    }
}
