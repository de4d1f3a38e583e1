//! `lab wire`: two connected network namespaces without processes, for experiments by hand.
use std::time::Duration;

use super::interrupt::Interrupt;
use super::request::WireRequest;
use super::terminal;
use super::testbed::{self, Wire};

/// Makes the wire, prints how to use it, and removes it when the time is over or the user interrupts.
pub fn run(request: &WireRequest, interrupt: &Interrupt) -> anyhow::Result<()> {
    let time = request.time;
    testbed::sweep();
    let wire = Wire::make(&request.topology, time + Duration::from_secs(5), interrupt)?;
    if let Some(namespaces) = wire.namespaces() {
        terminal::line(&format!("server {} {}", namespaces.server.name(), wire.server_address()))?;
        terminal::line(&format!("client {} {}", namespaces.client.name(), wire.client_address()))?;
    }
    tracing::info!("enter one with: ip netns exec NAME sh; removed after {} s or at Ctrl-C", time.as_secs());
    interrupt.sleep(time)
}
