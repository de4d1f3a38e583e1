//! Lanes of requests: one for each connection that had any.
use std::net::SocketAddr;

use super::lane::{Draft, Of, Span, Texts};
use super::state::State;
use crate::critical_path::{self, Index, Request};
use crate::units::duration;

/// In order of the services, and within one of the time that its connections waited.
pub fn lanes(index: &Index<'_>, texts: &mut Texts) -> Vec<Draft> {
    let timeline = index.timeline;
    let mut lanes: Vec<Draft> = Vec::new();
    for request in critical_path::requests_by_connection(index) {
        if lanes.last().is_none_or(|lane| lane.of != Of::Connection(request.socket)) {
            let socket = timeline.sockets.get(&request.socket);
            // The client's end: that of the service is the same in all lanes.
            let client = socket.map(|s| if s.serves { s.remote } else { s.local });
            let name = client.map_or_else(|| format!("socket {}", request.socket), client_name);
            let service = socket.map_or_else(String::new, |s| if s.serves { s.local } else { s.remote }.to_string());
            let group = format!("requests to {service}");
            lanes.push(Draft { of: Of::Connection(request.socket), group, name, spans: Vec::new() });
        }
        let Some(lane) = lanes.last_mut() else { continue };
        spans(&request, texts, &mut lane.spans);
    }
    lanes
}

/// The address of a client. A socket of UDP that is not connected has requests of many, and no address of its own.
fn client_name(end: SocketAddr) -> String {
    if end.ip().is_unspecified() && end.port() == 0 { "all clients".to_owned() } else { end.to_string() }
}

/// A request is up to three spans, one after the other.
fn spans(request: &Request, texts: &mut Texts, out: &mut Vec<(Span, u32)>) {
    let total = duration(request.end_ns.saturating_sub(request.arrived_ns) as f64);
    let text =
        texts.id(if request.cut { format!("a part of a request, {total} seen") } else { format!("{total} in all") });
    let mut at = request.arrived_ns;
    let mut push = |until: u64, state: State, ended_by: u32| {
        if until > at {
            let span = Span { begin_ns: at, end_ns: until, state, text, ended_by: None, stack: None };
            out.push((span, ended_by));
            at = until;
        }
    };
    if let Some((accepted_ns, tid)) = request.accepted {
        push(accepted_ns.min(request.end_ns), State::AcceptQueue, tid);
    }
    push(request.read_ns.min(request.end_ns), State::Unread, request.read_tid);
    match request.reply_tid {
        Some(tid) => push(request.end_ns, State::Working, tid),
        None => push(request.end_ns, State::Unanswered, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_without_a_peer_has_requests_of_all_clients() {
        assert_eq!(client_name(SocketAddr::from(([0, 0, 0, 0], 0))), "all clients");
        assert_eq!(client_name(SocketAddr::from(([10, 9, 0, 2], 35_500))), "10.9.0.2:35500");
    }
}
