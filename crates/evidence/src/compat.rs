//! Cases of earlier versions. Each format has its step here that makes it the next one; nothing else knows that there were others.
//!
//! | format | differs from the next one |
//! |---|---|
//! | `parshall.capture/1` | has no timeline, but the services that were found in it |
use crate::capture::{CAPTURE_SCHEMA, Capture};

/// The format that kept services.
const WITH_SERVICES: &str = "parshall.capture/1";

/// Whether a case of this format can be read.
pub fn is_known(schema: &str) -> bool {
    matches!(schema, WITH_SERVICES | CAPTURE_SCHEMA)
}

/// Makes what was read of a case of a known format a capture of today's.
pub fn migrate(mut capture: Capture) -> Capture {
    match capture.schema.as_str() {
        // What is found in a timeline was saved: there is nothing to find.
        WITH_SERVICES => capture.timeline = None,
        // What was concluded is no evidence.
        _ => capture.services.clear(),
    }
    CAPTURE_SCHEMA.clone_into(&mut capture.schema);
    capture
}
