//! `lab wire`: two connected network namespaces without processes, for experiments by hand.
use anyhow::Context;

use super::interrupt::Interrupt;
use super::request::WireRequest;
use super::testbed;

/// Makes the wire, prints how to use it, and removes it when the time is over or the user interrupts.
pub fn run(request: &WireRequest, interrupt: &Interrupt) -> anyhow::Result<()> {
    let wire = request.wire.testbed().context("the loopback interface needs no wire")?;
    testbed::hold(&wire, request.time, interrupt)
}
