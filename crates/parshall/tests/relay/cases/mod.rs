//! The behaviours, a file per topic.
mod closing;
mod descriptors;
mod dialing;
mod limits;
mod places;
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
    dialing::TOPIC,
    timeouts::TOPIC,
    descriptors::TOPIC,
    places::TOPIC,
    limits::TOPIC,
    proxy_in::TOPIC,
    proxy_out::TOPIC,
    stopping::TOPIC,
];
