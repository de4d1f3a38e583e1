//! When the name of a peer's endpoint is asked for: until it has an address, and again when its handshakes go unanswered, because
//! the peer may have got another address.
use std::net::SocketAddr;

use super::host_port::HostPort;
use super::{Ns, SECOND};

/// The time between two questions at first. It doubles with each, up to [`WAIT_MAX`].
const WAIT_MIN: Ns = SECOND;
const WAIT_MAX: Ns = 60 * SECOND;

/// The name of a peer's endpoint, as a peer has it.
#[derive(Debug)]
pub(super) struct Name {
    host: HostPort,
    /// When it was last asked for, and how long until it may be asked again.
    asked: Option<Ns>,
    wait: Ns,
    /// The answer has not come.
    pending: bool,
}

impl Name {
    pub(super) fn new(host: HostPort) -> Self {
        Self { host, asked: None, wait: WAIT_MIN, pending: false }
    }

    pub(super) fn host(&self) -> &HostPort {
        &self.host
    }

    /// When it may be asked for; `None` while an answer is expected.
    pub(super) fn due(&self) -> Option<Ns> {
        (!self.pending).then(|| self.asked.map_or(0, |asked| asked.saturating_add(self.wait)))
    }

    /// Returns whether it is to be asked for now, and counts on that.
    pub(super) fn ask(&mut self, now: Ns) -> bool {
        if self.due().is_none_or(|due| due > now) {
            return false;
        }
        if self.asked.replace(now).is_some() {
            self.wait = (2 * self.wait).min(WAIT_MAX);
        }
        self.pending = true;
        true
    }

    /// The answer has come, perhaps without addresses. Returns the one to use, which is the next one where several are known and
    /// `current` has not answered; `None` if there is no other than `current`.
    pub(super) fn answered(&mut self, current: Option<SocketAddr>, addresses: &[SocketAddr]) -> Option<SocketAddr> {
        self.pending = false;
        let at = current.and_then(|current| addresses.iter().position(|address| *address == current));
        let next = at.map_or(0, |at| (at + 1) % addresses.len());
        addresses.get(next).copied().filter(|address| Some(*address) != current)
    }

    /// The peer has answered a handshake: when it does not the next time, the name is asked for at once.
    pub(super) fn reached(&mut self) {
        self.wait = WAIT_MIN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Name {
        Name::new(HostPort { host: "vpn.example.com".to_owned(), port: 1 })
    }

    fn address(n: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, n], 1))
    }

    #[test]
    fn questions_come_less_often_until_the_peer_is_reached() {
        let mut name = name();
        let ask = |name: &mut Name, from: Ns| (from..).step_by(SECOND as usize).find(|now| name.ask(*now)).unwrap();
        let mut now = 0;
        let mut waits = Vec::new();
        for _ in 0..9 {
            let at = ask(&mut name, now);
            assert!(!name.ask(at + 1000 * SECOND), "an answer is expected");
            assert_eq!(name.answered(None, &[]), None);
            waits.push((at - now) / SECOND);
            now = at;
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        name.reached();
        assert_eq!(ask(&mut name, now) - now, SECOND);
    }

    #[test]
    fn the_next_address_is_tried_where_the_current_one_does_not_answer() {
        let all = [1, 2, 3].map(address);
        assert_eq!(name().answered(None, &all), Some(all[0]));
        assert_eq!(name().answered(Some(all[0]), &all), Some(all[1]));
        assert_eq!(name().answered(Some(all[2]), &all), Some(all[0]));
        assert_eq!(name().answered(Some(address(9)), &all), Some(all[0]), "it has other addresses now");
        assert_eq!(name().answered(Some(all[0]), &all[..1]), None);
        assert_eq!(name().answered(Some(all[0]), &[]), None, "no answer changes nothing");
    }
}
