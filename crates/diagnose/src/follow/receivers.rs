//! Processes that are passed a connection of the service: they were there before, and only then become a part of the subject.

use std::collections::HashSet;

/// Those that may be passed one, and those that were since they were last asked for.
#[derive(Debug, Default)]
pub struct Receivers {
    possible: HashSet<u32>,
    ports: Vec<u16>,
    seen: Vec<u32>,
}

impl Receivers {
    /// Of a service at `ports`: the `possible` processes are none of the subject.
    pub fn new(possible: HashSet<u32>, ports: &[u16]) -> Self {
        Self { possible, ports: ports.to_vec(), seen: Vec::new() }
    }

    /// Whether a process may be passed one, and was not yet.
    pub fn may_be(&self, pid: u32) -> bool {
        self.possible.contains(&pid)
    }

    /// A process sends or receives on a connection of the subject.
    pub fn see(&mut self, pid: u32) {
        self.seen.extend(self.possible.take(&pid));
    }

    /// A connection ended that `pid` used last, and that was accepted at `local_port` if it is `passive`.
    pub fn see_closed(&mut self, passive: bool, local_port: u16, pid: u32) {
        if passive && self.ports.contains(&local_port) {
            self.see(pid);
        }
    }

    /// Whether there are any that were not asked for.
    pub fn any(&self) -> bool {
        !self.seen.is_empty()
    }

    /// Those that were passed a connection since this was last called.
    pub fn take(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_returned_once_and_others_never() {
        let mut receivers = Receivers::new(HashSet::from([7, 8]), &[80]);
        [7, 9, 7].into_iter().for_each(|pid| receivers.see(pid));
        assert!(receivers.any());
        assert_eq!(receivers.take(), [7]);
        receivers.see(7);
        assert!(!receivers.any() && receivers.take().is_empty());
    }

    #[test]
    fn the_last_user_of_a_connection_that_ended_had_it() {
        let closed = |passive: bool, port: u16, pid: u32| {
            let mut receivers = Receivers::new(HashSet::from([7]), &[80]);
            receivers.see_closed(passive, port, pid);
            receivers.take()
        };
        assert_eq!(closed(true, 80, 7), [7]);
        // One that it opened itself, one at another port, and one of somebody else.
        let others = [closed(false, 80, 7), closed(true, 81, 7), closed(true, 80, 9)];
        assert!(others.iter().all(Vec::is_empty), "{others:?}");
    }
}
