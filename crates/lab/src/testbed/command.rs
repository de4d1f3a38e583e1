//! `lab testbed`: makes the testbed of a file without processes, or prints it as a shell script.
use std::path::Path;
use std::time::Duration;

use parshall_core::testbed::{Counts, Testbed, TestbedError, shell};
use parshall_host::error::UserError;

use super::Network;
use crate::interrupt::Interrupt;
use crate::request::TestbedRequest;
use crate::terminal;

/// Reads the file; prints the script, or makes the testbed and removes it when the time is over or the user interrupts.
pub fn run(request: &TestbedRequest, interrupt: &Interrupt) -> anyhow::Result<()> {
    let testbed = read(&request.file)?;
    if request.show_as_shell {
        return terminal::text(&shell(&testbed));
    }
    if request.check {
        let (namespaces, links) = (testbed.namespaces.len(), testbed.links.len());
        return terminal::line(&format!("{}: {namespaces} namespaces, {links} links", request.file.display()));
    }
    hold(&testbed, request.time, interrupt)
}

/// Makes the testbed, checks it, prints how to use it, and removes it when the time is over or the user interrupts.
pub fn hold(testbed: &Testbed, time: Duration, interrupt: &Interrupt) -> anyhow::Result<()> {
    let inside = super::enter_user_namespace()?;
    super::sweep();
    let network = Network::make(testbed)?;
    for line in super::check(&network, interrupt)? {
        tracing::info!("checked {line}");
    }
    for (index, (namespace, made)) in testbed.namespaces.iter().zip(network.namespaces()).enumerate() {
        let addresses = testbed.ends_in(index).flat_map(|end| &end.addresses);
        let addresses: String = addresses.map(|address| format!(" {}", address.addr())).collect();
        terminal::line(&format!("{} {}{addresses}", namespace.name, made.name()))?;
    }
    let enter =
        if inside { format!("nsenter -t {} -U -m --preserve-credentials ", std::process::id()) } else { String::new() };
    tracing::info!("enter one with: {enter}ip netns exec NAME sh; removed after {} s or at Ctrl-C", time.as_secs());
    let ended = interrupt.sleep(time);
    report(testbed, &network)?;
    ended
}

/// Logs what happened to the packets of each impaired direction.
fn report(testbed: &Testbed, network: &Network) -> anyhow::Result<()> {
    for (index, link) in testbed.links.iter().enumerate() {
        for from in 0..2 {
            let Some(counts) = network.counts(index, from)? else { continue };
            let [sender, receiver] = [from, 1 - from].map(|end| &testbed.namespaces[link.ends[end].namespace].name);
            let Counts { packets, lost, queue_full, duplicated, reordered } = counts;
            tracing::info!(
                "{sender} → {receiver}: {packets} packets, {lost} lost, {queue_full} dropped by a full queue, \
                 {duplicated} duplicated, {reordered} reordered"
            );
        }
    }
    if network.overrun() > 0 {
        tracing::warn!("{} packets were lost because the delay line could not hold them", network.overrun());
    }
    Ok(())
}

/// Reads and checks a file. Errors have its name and the line.
fn read(path: &Path) -> Result<Testbed, UserError> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        UserError::new(format!("{name} cannot be read: {error}"), "give the path of the testbed's file")
    })?;
    text.parse()
        .map_err(|error: TestbedError| UserError::new(format!("{name}:{}: {}", error.line, error.what), error.hint))
}
