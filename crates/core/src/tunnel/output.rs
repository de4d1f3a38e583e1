//! Output of the device for its caller: messages to send, names to look up, and the fate of packets that wait.
use super::host_port::HostPort;
use super::link::Endpoint;
use super::message::HANDSHAKE_LEN_MAX;
use super::peer_id::PeerId;

/// A message to send.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing {
    #[allow(missing_docs)]
    pub to: Endpoint,
    bytes: [u8; HANDSHAKE_LEN_MAX],
    len: usize,
}

impl Outgoing {
    pub(super) fn new(to: Endpoint, message: &[u8]) -> Self {
        let mut bytes = [0; HANDSHAKE_LEN_MAX];
        bytes[..message.len()].copy_from_slice(message);
        Self { to, bytes, len: message.len() }
    }

    /// The datagram.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// An instruction for the packets that the caller keeps for a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// There is a session, or a new address: the packets can be sent, after the messages of the same [`Output`].
    Flush(PeerId),
    /// No session comes about, or the peer was removed: the packets are dropped.
    Discard(PeerId),
}

/// The output that calls of a [`Device`](super::Device) add to. The caller empties it and uses it again.
#[derive(Debug, Default)]
pub struct Output {
    /// Messages in the order in which they are to be sent.
    pub messages: Vec<Outgoing>,
    #[allow(missing_docs)]
    pub events: Vec<Event>,
    /// Names to look up. [`Device::resolved`](super::Device::resolved) is called with each answer, also if there are no addresses.
    pub lookups: Vec<Lookup>,
}

/// The name of an endpoint that is to be looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    #[allow(missing_docs)]
    pub peer: PeerId,
    #[allow(missing_docs)]
    pub name: HostPort,
}

impl Output {
    pub(super) fn send(&mut self, to: Endpoint, message: &[u8]) {
        self.messages.push(Outgoing::new(to, message));
    }

    #[allow(missing_docs)]
    pub fn clear(&mut self) {
        self.messages.clear();
        self.events.clear();
        self.lookups.clear();
    }
}
