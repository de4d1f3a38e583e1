//! Observing the subject of a recipe in its testbed.
use std::time::Duration;

use anyhow::Context;
use parshall_diagnose::background::Background;
use parshall_diagnose::observe::observe;
use parshall_diagnose::request::{Naming, ObserveOptions};
use parshall_diagnose::subject::{Select, Within};
use parshall_evidence::Capture;
use parshall_host::netns::Netns;

use crate::recipe::SubjectSpec;
use crate::request::RunRequest;
use crate::testbed::Testbed;

/// Time between start and observation, so that handshakes and slow start are over.
pub const WARM_UP: Duration = Duration::from_millis(500);
/// Processes end by themselves this long after the observation should have, if nothing ends them. Where the host is slow, as an emulated
/// one is, their start and the attachment of the probes take half a minute.
pub const MARGIN: Duration = Duration::from_secs(120);

/// Observes the subject in the running testbed.
pub fn observe_subject(subject: &SubjectSpec, testbed: &Testbed, request: &RunRequest) -> anyhow::Result<Capture> {
    let select = match &subject.process {
        Some(name) => {
            let pid = testbed.pid(name).with_context(|| format!("the process {name} is not running"))?;
            Select::Pids(vec![pid])
        }
        None => Select::Ports(vec![testbed.port()], Within::Named(Netns::All)),
    };
    let (capture, _) = observe(
        &select,
        &ObserveOptions {
            window: request.window,
            rung: request.rung,
            peek: true,
            interpreters: false,
            progress: false,
            naming: if request.save.is_some() { Naming::All } else { Naming::Shown },
            events: Vec::new(),
            log: None,
            from_its_start: false,
            // No fault starts a relay of parshall.
            read_relay: |_| None,
        },
        Background::enter(),
    )?;
    Ok(capture)
}
