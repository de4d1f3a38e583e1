//! The kinds of generated load and their flags, lowered to a [`Load`].
use std::time::Duration;

use parshall_core::load::{Hello, Mode, Pattern};
use parshall_host::error::UserError;

use super::super::common::Common;
use super::super::socket::{BufferArgs, Ends, SocketArgs};
use super::bulk::BulkCalls;
use super::load::{Bulk, Load};
use super::packets::Packets;
use super::requests::Requests;
use crate::units;

/// The kind with a connection for each request.
const CONNECT_EACH: &str = "connect-request-response";

/// The kinds, subcommands of `parshall lab load`.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Kind {
    /// Bulk transfer from the client to the server
    #[command(after_help = "Examples:
  parshall lab load upload
  parshall lab load upload --connections 4 --discard
  parshall lab load upload --serve 127.0.0.1:7000 --for 1m
  parshall lab load upload --connect 127.0.0.1:7000")]
    Upload(BulkArgs),
    /// Bulk transfer from the server to the client
    #[command(after_help = "Examples:
  parshall lab load download --connect 127.0.0.1:7000 --connections 2")]
    Download(BulkArgs),
    /// Bulk transfer in both directions of each connection at once
    #[command(after_help = "Examples:
  parshall lab load bidirectional --for 5s --format json")]
    Bidirectional(BulkArgs),
    /// Requests and replies on open connections
    #[command(after_help = "Examples:
  parshall lab load request-response
  parshall lab load request-response --rate 20000 --arrivals poisson
  parshall lab load request-response --serve 127.0.0.1:7000 --for 1m
  parshall lab load request-response --connect 127.0.0.1:7000 --reply-bytes 4096")]
    RequestResponse(RequestArgs),
    /// A connection for each request
    #[command(after_help = "Examples:
  parshall lab load connect-request-response --threads 2
  parshall lab load connect-request-response --rate 500")]
    ConnectRequestResponse(ConnectArgs),
    /// Bursts of requests at regular intervals
    #[command(after_help = "Examples:
  parshall lab load burst --burst 200 --every 50ms")]
    Burst(BurstArgs),
    /// Requests that do not wait for earlier replies
    #[command(after_help = "Examples:
  parshall lab load rpc --depth 64
  parshall lab load rpc --connections 4 --depth 8 --rate 100000")]
    Rpc(RpcArgs),
    /// Requests that visit many connections in turn
    #[command(after_help = "Examples:
  parshall lab load many-connections --connections 5000 --active 32")]
    ManyConnections(ManyArgs),
    /// Requests beside bulk transfers: latency under load
    #[command(after_help = "Examples:
  parshall lab load mixed --bulk-connections 4 --rate 1000")]
    Mixed(MixedArgs),
    /// UDP packets in one direction
    #[command(after_help = "Examples:
  parshall lab load udp-packets --packet-bytes 64 --single
  parshall lab load udp-packets --rate 100000")]
    UdpPackets(PacketsArgs),
}

/// The flags of all generators.
#[derive(Debug, Clone, clap::Args)]
pub struct GeneratorArgs {
    #[command(flatten)]
    ends: Ends,
    #[command(flatten)]
    pub common: Common,
    /// Load the path for this time before what --for measures
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = units::duration, conflicts_with = "serve")]
    warm_up: Duration,
}

/// The flags of generators of requests.
#[derive(Debug, Clone, clap::Args)]
pub struct RequestEndArgs {
    #[command(flatten)]
    generator: GeneratorArgs,
    #[command(flatten)]
    buffers: BufferArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

#[derive(Debug, Clone, clap::Args)]
pub struct ThreadArgs {
    /// Threads of this end
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
}

/// Sizes of requests.
#[derive(Debug, Clone, clap::Args)]
pub struct SizeArgs {
    /// Bytes of a request
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size(), conflicts_with = "serve")]
    request_bytes: u32,
    /// Bytes of a reply
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size(), conflicts_with = "serve")]
    reply_bytes: u32,
}

/// Sizes and times of requests.
#[derive(Debug, Clone, clap::Args)]
pub struct ShapeArgs {
    #[command(flatten)]
    sizes: SizeArgs,
    #[command(flatten)]
    schedule: ScheduleArgs,
}

/// An open loop.
#[derive(Debug, Clone, clap::Args)]
pub struct ScheduleArgs {
    /// So many per second on a schedule of their own; latencies count from when each was due (default: as fast as replies come)
    #[arg(long, value_name = "PER_SECOND", value_parser = units::rate, conflicts_with = "serve")]
    rate: Option<f64>,
    /// How that schedule spreads them
    #[arg(long, value_enum, default_value_t = ArrivalsArg::Constant, requires = "rate")]
    arrivals: ArrivalsArg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ArrivalsArg {
    /// At equal distances
    Constant,
    /// At random, as from many independent users
    Poisson,
}

#[derive(Debug, Clone, clap::Args)]
pub struct RequestArgs {
    #[command(flatten)]
    end: RequestEndArgs,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Connections, each with one request at a time
    #[arg(long, default_value_t = 1, value_parser = connections(), conflicts_with = "serve")]
    connections: u32,
}

#[derive(Debug, Clone, clap::Args)]
pub struct ConnectArgs {
    #[command(flatten)]
    end: RequestEndArgs,
    #[command(flatten)]
    shape: ShapeArgs,
}

#[derive(Debug, Clone, clap::Args)]
pub struct BurstArgs {
    #[command(flatten)]
    end: RequestEndArgs,
    #[command(flatten)]
    sizes: SizeArgs,
    /// Requests of a burst
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000), conflicts_with = "serve")]
    burst: u32,
    /// Time between bursts
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = interval, conflicts_with = "serve")]
    every: Duration,
    /// Connections, over which a burst is spread
    #[arg(long, default_value_t = 10, value_parser = connections(), conflicts_with = "serve")]
    connections: u32,
}

#[derive(Debug, Clone, clap::Args)]
pub struct RpcArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// Requests outstanding on each connection
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000), conflicts_with = "serve")]
    depth: u32,
}

#[derive(Debug, Clone, clap::Args)]
pub struct ManyArgs {
    #[command(flatten)]
    end: RequestEndArgs,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Connections
    #[arg(long, default_value_t = 1000, value_parser = connections(), conflicts_with = "serve")]
    connections: u32,
    /// Connections with a request outstanding at once; the least recently used one is next
    #[arg(long, default_value_t = 16, value_parser = connections(), conflicts_with = "serve")]
    active: u32,
}

#[derive(Debug, Clone, clap::Args)]
pub struct BulkArgs {
    #[command(flatten)]
    generator: GeneratorArgs,
    #[command(flatten)]
    buffers: BufferArgs,
    #[command(flatten)]
    calls: CallArgs,
    /// Connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "serve")]
    connections: u32,
}

/// The calls of bulk transfers, at this end.
#[derive(Debug, Clone, clap::Args)]
pub struct CallArgs {
    /// Bytes per write
    #[arg(long, value_name = "BYTES", default_value_t = 131_072, value_parser = size())]
    write_bytes: u32,
    /// Bytes per read
    #[arg(long, value_name = "BYTES", default_value_t = 131_072, value_parser = size())]
    read_bytes: u32,
    /// Throw received data away in the kernel (MSG_TRUNC)
    #[arg(long)]
    discard: bool,
}

#[derive(Debug, Clone, clap::Args)]
pub struct MixedArgs {
    #[command(flatten)]
    request: RequestArgs,
    #[command(flatten)]
    calls: CallArgs,
    /// Connections with bulk transfers
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "serve")]
    bulk_connections: u32,
    /// Direction of the bulk transfers
    #[arg(long, value_enum, default_value_t = Direction::Upload, conflicts_with = "serve")]
    bulk: Direction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Direction {
    Upload,
    Download,
    Bidirectional,
}

#[derive(Debug, Clone, clap::Args)]
pub struct PacketsArgs {
    #[command(flatten)]
    generator: GeneratorArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Bytes of a packet's payload
    #[arg(long, value_name = "BYTES", default_value_t = 1400, value_parser = clap::value_parser!(u32).range(1..=65_507), conflicts_with = "serve")]
    packet_bytes: u32,
    #[command(flatten)]
    schedule: ScheduleArgs,
    /// Send each packet through the stack by itself, without UDP_SEGMENT; so it is always with --rate
    #[arg(long, conflicts_with = "serve")]
    single: bool,
}

fn size() -> impl clap::builder::TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(1..=i64::from(Hello::SIZE_MAX))
}

fn connections() -> impl clap::builder::TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(1..=100_000)
}

fn interval(text: &str) -> Result<Duration, UserError> {
    let every = units::duration(text)?;
    if every.is_zero() {
        return Err(UserError::new("bursts without time between them", "choose a time above 0, such as 100ms"));
    }
    Ok(every)
}

impl ScheduleArgs {
    fn schedule(&self) -> Option<(Pattern, f64)> {
        let pattern = match self.arrivals {
            ArrivalsArg::Constant => Pattern::Constant,
            ArrivalsArg::Poisson => Pattern::Poisson,
        };
        self.rate.map(|per_s| (pattern, per_s))
    }
}

impl SizeArgs {
    fn requests(&self, connections: u32) -> Requests {
        Requests::new(connections, self.request_bytes, self.reply_bytes)
    }
}

impl ShapeArgs {
    /// One request at a time on each connection.
    fn requests(&self, connections: u32) -> Requests {
        Requests { schedule: self.schedule.schedule(), ..self.sizes.requests(connections) }
    }
}

impl CallArgs {
    fn calls(&self) -> BulkCalls {
        BulkCalls {
            write_bytes: self.write_bytes as usize,
            read_bytes: self.read_bytes as usize,
            discard: self.discard,
        }
    }
}

impl GeneratorArgs {
    fn load(&self, kind: &'static str, buffers: BufferArgs, threads: u16) -> Load {
        const CALLS: BulkCalls = BulkCalls { write_bytes: 131_072, read_bytes: 131_072, discard: false };
        Load {
            kind,
            ends: self.ends.clone(),
            // Requests must not wait for the acknowledgement of earlier ones; a connection for one request has none.
            socket: SocketArgs { nodelay: kind != CONNECT_EACH, buffers },
            threads,
            warm_up: self.warm_up,
            time: self.common.time,
            requests: None,
            bulk: None,
            calls: CALLS,
            packets: None,
        }
    }
}

impl BurstArgs {
    fn requests(&self) -> Requests {
        let per_s = f64::from(self.burst) / self.every.as_secs_f64();
        let (depth, schedule) = (self.burst.div_ceil(self.connections), Some((Pattern::Burst(self.burst), per_s)));
        Requests { depth, most: u32::MAX, schedule, ..self.sizes.requests(self.connections) }
    }
}

impl Kind {
    /// The flags that all share.
    pub fn common(&self) -> &Common {
        &self.end().0.common
    }

    /// The flags that all share, and of this end the buffers of TCP and the number of threads. Bulk transfers have a
    /// thread for each direction of a connection.
    fn end(&self) -> (&GeneratorArgs, BufferArgs, u16) {
        match self {
            Self::Upload(args) | Self::Download(args) | Self::Bidirectional(args) => {
                (&args.generator, args.buffers.clone(), 1)
            }
            Self::UdpPackets(args) => (&args.generator, BufferArgs::default(), args.threads.threads),
            Self::RequestResponse(RequestArgs { end, .. })
            | Self::ConnectRequestResponse(ConnectArgs { end, .. })
            | Self::Burst(BurstArgs { end, .. })
            | Self::Rpc(RpcArgs { request: RequestArgs { end, .. }, .. })
            | Self::ManyConnections(ManyArgs { end, .. })
            | Self::Mixed(MixedArgs { request: RequestArgs { end, .. }, .. }) => {
                (&end.generator, end.buffers.clone(), end.threads.threads)
            }
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Upload(_) => "upload",
            Self::Download(_) => "download",
            Self::Bidirectional(_) => "bidirectional",
            Self::RequestResponse(_) => "request-response",
            Self::ConnectRequestResponse(_) => CONNECT_EACH,
            Self::Burst(_) => "burst",
            Self::Rpc(_) => "rpc",
            Self::ManyConnections(_) => "many-connections",
            Self::Mixed(_) => "mixed",
            Self::UdpPackets(_) => "udp-packets",
        }
    }

    /// The load that these flags ask for.
    pub fn load(&self) -> Load {
        let (generator, buffers, threads) = self.end();
        let load = generator.load(self.name(), buffers, threads);
        let bulk = |args: &BulkArgs, mode| Load {
            bulk: Some(Bulk { connections: args.connections, mode }),
            calls: args.calls.calls(),
            ..load.clone()
        };
        let asking = |requests| Load { requests: Some(requests), ..load.clone() };
        match self {
            Self::Upload(args) => bulk(args, Mode::Upload),
            Self::Download(args) => bulk(args, Mode::Download),
            Self::Bidirectional(args) => bulk(args, Mode::Both),
            Self::RequestResponse(args) => asking(args.shape.requests(args.connections)),
            Self::ConnectRequestResponse(args) => {
                asking(Requests { connect_each: true, ..args.shape.requests(threads.into()) })
            }
            Self::Burst(args) => asking(args.requests()),
            Self::Rpc(args) => {
                let requests = args.request.shape.requests(args.request.connections);
                asking(Requests { depth: args.depth, most: u32::MAX, ..requests })
            }
            Self::ManyConnections(args) => {
                asking(Requests { most: args.active, ..args.shape.requests(args.connections) })
            }
            Self::Mixed(args) => {
                let mode = match args.bulk {
                    Direction::Upload => Mode::Upload,
                    Direction::Download => Mode::Download,
                    Direction::Bidirectional => Mode::Both,
                };
                let bulk = Some(Bulk { connections: args.bulk_connections, mode });
                let requests = Some(args.request.shape.requests(args.request.connections));
                Load { requests, bulk, calls: args.calls.calls(), ..load.clone() }
            }
            Self::UdpPackets(args) => {
                let schedule = args.schedule.schedule();
                let packets = Packets { bytes: args.packet_bytes as usize, schedule, single: args.single };
                Load { packets: Some(packets), ..load.clone() }
            }
        }
    }
}
