//! The causes: one file each, and this list. A cause is a function over the prepared [`Facts`](crate::judge::facts::Facts) that either holds, with
//! its lost time and evidence, or says with figures why not. Look-alikes are tested inside each cause.
mod accept_queue_overflow;
mod app_limited;
mod base;
mod blocking_disk_io;
mod blocking_dns;
mod blocking_downstream_call;
mod blocking_log_write;
mod bottleneck_bandwidth;
mod buffer_sysctl_cap;
pub mod common;
mod concurrency_limit;
mod connection_per_request;
mod cork_held;
mod cpu_throttled;
mod fd_limit;
mod handshake_per_request;
mod hot_thread;
mod kernel_cpu_bound;
mod local_shaper;
mod lock_contention;
mod memory_reclaim;
mod nagle_delayed_ack;
mod nagle_hold;
mod packet_loss;
mod page_fault_churn;
mod peer_think_time;
mod peer_window_limited;
mod pmtu_black_hole;
mod port_exhaustion;
mod process_stopped;
mod rcvbuf_locked;
mod receive_queue_collapse;
mod resets;
mod retransmission_timeout;
mod rtt_window_bound;
mod run_queue_latency;
mod serial_protocol;
mod serialized_service;
mod slow_reader;
mod slow_start_after_idle;
mod small_copy_buffer;
mod sndbuf_limited;
mod stop_the_world;
mod syn_loss;
mod timer_wait;
mod udp_rcvbuf_overflow;
mod user_cpu_bound;
mod workers_exhausted;

pub use base::{Candidate, Cause, MIN_REFUSED_SHARE, MIN_SHARE, Outcome, Refused, RequestLoss};

/// All causes. Adding one means adding its file and its line here.
pub const CAUSES: &[Cause] = &[
    nagle_delayed_ack::CAUSE,
    nagle_hold::CAUSE,
    cork_held::CAUSE,
    packet_loss::CAUSE,
    retransmission_timeout::CAUSE,
    pmtu_black_hole::CAUSE,
    syn_loss::CAUSE,
    accept_queue_overflow::CAUSE,
    fd_limit::CAUSE,
    port_exhaustion::CAUSE,
    resets::CAUSE,
    udp_rcvbuf_overflow::CAUSE,
    connection_per_request::CAUSE,
    serial_protocol::CAUSE,
    rcvbuf_locked::CAUSE,
    sndbuf_limited::CAUSE,
    buffer_sysctl_cap::CAUSE,
    rtt_window_bound::CAUSE,
    receive_queue_collapse::CAUSE,
    slow_start_after_idle::CAUSE,
    local_shaper::CAUSE,
    bottleneck_bandwidth::CAUSE,
    cpu_throttled::CAUSE,
    handshake_per_request::CAUSE,
    user_cpu_bound::CAUSE,
    small_copy_buffer::CAUSE,
    slow_reader::CAUSE,
    peer_window_limited::CAUSE,
    peer_think_time::CAUSE,
    app_limited::CAUSE,
    lock_contention::CAUSE,
    blocking_disk_io::CAUSE,
    blocking_downstream_call::CAUSE,
    blocking_dns::CAUSE,
    timer_wait::CAUSE,
    concurrency_limit::CAUSE,
    serialized_service::CAUSE,
    workers_exhausted::CAUSE,
    stop_the_world::CAUSE,
    hot_thread::CAUSE,
    run_queue_latency::CAUSE,
    kernel_cpu_bound::CAUSE,
    blocking_log_write::CAUSE,
    memory_reclaim::CAUSE,
    page_fault_churn::CAUSE,
    process_stopped::CAUSE,
];

#[cfg(test)]
mod tests {
    #[test]
    fn ids_are_unique_and_kebab_case() {
        let mut ids: Vec<&str> = super::CAUSES.iter().map(|c| c.id).collect();
        assert!(ids.iter().all(|id| id.chars().all(|c| c.is_ascii_lowercase() || c == '-')));
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), super::CAUSES.len());
    }
}
