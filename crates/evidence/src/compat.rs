//! Cases of earlier versions. Each format has its step here that makes it the next one; nothing else knows that there were others.
//!
//! | format | differs from the next one |
//! |---|---|
//! | `parshall.capture/1` | has no timeline, but the services that were found in it, whose hops have their target in words only |
use crate::capture::{CAPTURE_SCHEMA, Capture};
use crate::service::{Hop, HopKind, Object, Runner};
use crate::stopper::Stopper;

/// The format that kept services.
const WITH_SERVICES: &str = "parshall.capture/1";

/// Whether a case of this format can be read.
pub fn is_known(schema: &str) -> bool {
    matches!(schema, WITH_SERVICES | CAPTURE_SCHEMA)
}

/// Makes what was read of a case of a known format a capture of today's.
pub fn migrate(mut capture: Capture) -> Capture {
    match capture.schema.as_str() {
        // The services were saved in place of the timeline: there is nothing to find.
        WITH_SERVICES => {
            capture.timeline = None;
            let parts = capture.services.iter_mut().flat_map(|service| &mut service.path);
            for hop in parts.flat_map(|part| &mut part.hops).filter(|hop| hop.object.is_none()) {
                hop.object = object(hop);
            }
        }
        // Conclusions are no evidence.
        _ => capture.services.clear(),
    }
    CAPTURE_SCHEMA.clone_into(&mut capture.schema);
    capture
}

/// The object of a wait, of which `parshall.capture/1` kept only the words: `10.0.0.2:7000`, `sh 812`, `worker-3 of app 311`.
fn object(hop: &Hop) -> Object {
    let words = hop.target.as_str();
    match hop.kind {
        _ if words.is_empty() => Object::None,
        HopKind::Stopped => Object::Stopper(Stopper::Words(words.to_owned())),
        HopKind::RunQueue => {
            let numbered = words.rsplit_once(' ').and_then(|(name, pid)| Some((name, pid.parse().ok()?)));
            let (name, pid) = numbered.unwrap_or((words, 0));
            let process = name.rsplit(" of ").next().unwrap_or(name);
            Object::Thread(Runner { pid, process: process.to_owned() })
        }
        _ => words.parse().map_or(Object::None, Object::Peer),
    }
}
