//! `lab wire`: only the two namespaces and what is between them, for trying things by hand.
use std::time::Duration;

use super::recipe::{Topology, TopologyKind};
use super::testbed::{self, Wire};
use super::{Interrupt, terminal, units};
use parshall_host::error::UserError;

/// `parshall lab wire`
#[derive(Debug, Clone, clap::Args)]
pub struct WireArgs {
    /// What is between the namespaces
    #[arg(value_enum, default_value_t = TopologyKind::Veth)]
    kind: TopologyKind,
    /// Packets lost on their way to the server (`delay`: both ways), in per cent
    #[arg(long, default_value_t = 0.0)]
    loss_percent: f64,
    /// Delay each way, with `delay`
    #[arg(long, default_value_t = 0.0)]
    delay_ms: f64,
    /// Remove it after this time
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    time: Duration,
}

/// Makes the wire, prints how to use it, and removes it when the time is over or the user interrupts.
pub fn run(args: &WireArgs, interrupt: &Interrupt) -> anyhow::Result<()> {
    let in_range = (0.0..=100.0).contains(&args.loss_percent) && (0.0..=10_000.0).contains(&args.delay_ms);
    if !in_range || args.kind == TopologyKind::Loopback {
        let hint = "use veth or delay, --loss-percent 0 to 100, --delay-ms 0 to 10000";
        return Err(UserError::new("no wire can be made like that", hint).into());
    }
    if args.delay_ms > 0.0 && args.kind != TopologyKind::Delay {
        return Err(UserError::new("a veth pair has no delay", "use: parshall lab wire delay --delay-ms ...").into());
    }
    testbed::sweep();
    let topology =
        Topology { kind: args.kind, loss_percent: args.loss_percent, delay_ms: args.delay_ms, single_segments: false };
    let wire = Wire::make(&topology, args.time + Duration::from_secs(5), interrupt)?;
    if let Some(namespaces) = wire.namespaces() {
        terminal::line(&format!("server {} {}", namespaces.server.name(), wire.server_address()))?;
        terminal::line(&format!("client {} {}", namespaces.client.name(), wire.client_address()))?;
    }
    tracing::info!("enter one with: ip netns exec NAME sh; removed after {} s or at Ctrl-C", args.time.as_secs());
    interrupt.sleep(args.time)
}
