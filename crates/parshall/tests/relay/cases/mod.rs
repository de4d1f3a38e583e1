//! The behaviours, one file per topic.
mod closing;
mod connecting;
mod descriptors;
mod families;
mod limits;
mod proxy_in;
mod proxy_out;
mod stalls;
mod stopping;
mod timeouts;
mod transfer;

use super::matrix::Topic;

/// In the order of the table.
pub const TOPICS: [Topic; 11] = [
    transfer::TOPIC,
    closing::TOPIC,
    stalls::TOPIC,
    connecting::TOPIC,
    timeouts::TOPIC,
    descriptors::TOPIC,
    families::TOPIC,
    limits::TOPIC,
    proxy_in::TOPIC,
    proxy_out::TOPIC,
    stopping::TOPIC,
];
