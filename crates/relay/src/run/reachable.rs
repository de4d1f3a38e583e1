//! Whether the targets of listeners have addresses once their names were looked up.
use std::sync::Arc;

use parshall_core::relay::config::Endpoint;
use parshall_host::error::UserError;

use crate::control::resolve::Resolved;
use crate::service::Service;

/// Whether a target has an address.
pub(super) fn is_reachable(service: &Service) -> bool {
    service.targets.iter().any(|target| !target.addresses().is_empty())
}

/// Fails if no listener has a target with an address. Where some have, the others do not stop them: their names are looked up
/// again.
pub(super) fn any_reachable(services: &[Arc<Service>], found: &Resolved) -> anyhow::Result<()> {
    match services.first() {
        Some(first) if !services.iter().any(|service| is_reachable(service)) => Err(unresolved(first, found).into()),
        _ => Ok(()),
    }
}

/// The error for a listener none of whose targets has an address.
pub(super) fn unresolved(service: &Service, found: &Resolved) -> UserError {
    let names = service.config.targets.iter().filter_map(|target| match &target.endpoint {
        Endpoint::Name(name, _) => Some(name),
        _ => None,
    });
    let name = names.clone().find(|name| found.why(name).is_some()).or_else(|| names.clone().next());
    let name = name.map_or("of its target", String::as_str);
    let why = found.why(name).unwrap_or("it has no other address than that of the listener itself");
    let what = format!("{}: the name {name} cannot be resolved: {why}", service.config.name);
    UserError::new(what, "check the spelling; `getent hosts NAME` looks it up as the relay does")
}

pub(super) fn warn_unresolved(services: &[Arc<Service>], found: &Resolved) {
    for (name, why) in found.unresolved() {
        tracing::warn!("the name {name} cannot be resolved: {why}; it is looked up again");
    }
    for service in services.iter().filter(|service| !is_reachable(service)) {
        let name = &service.config.name;
        tracing::warn!("{name}: none of its targets has an address yet; its clients are refused until one has");
    }
}
