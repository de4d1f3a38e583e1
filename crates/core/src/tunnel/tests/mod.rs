//! Whole devices without sockets: each on its own, against another implementation, and over a network in virtual time.
mod device;
mod oracle;
mod simulation;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use super::*;

/// A device, the time that it is told, and what it has sent.
struct Host {
    device: Device,
    path: Arc<DataPath>,
    key: PrivateKey,
    endpoint: Endpoint,
    out: Output,
}

/// Numbers that look random and are the same in each run.
fn random(seed: u64) -> impl Random {
    let mut state = seed;
    move |bytes: &mut [u8]| {
        for byte in bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
    }
}

fn time(now: Ns) -> Time {
    Time { now, unix: Duration::from_secs(1_700_000_000) + Duration::from_nanos(now) }
}

impl Host {
    /// Host `n` has the address 192.0.2.`n` outside and 10.0.0.`n` inside.
    fn new(n: u8, limits: Limits) -> Self {
        Self::seeded(n, limits, n.into())
    }

    fn seeded(n: u8, limits: Limits, seed: u64) -> Self {
        let device = Device::new(limits, Box::new(random(seed)));
        let key = PrivateKey::new([n; 32]);
        let endpoint = Endpoint::from(SocketAddr::from(([192, 0, 2, n], 51820)));
        let mut host = Self { path: device.data_path(), device, key: key.clone(), endpoint, out: Output::default() };
        host.configure(DeviceChange { private_key: Some(key), ..DeviceChange::default() });
        host
    }

    fn configure(&mut self, change: DeviceChange) {
        self.device.configure(&change, &mut self.out);
    }

    fn change_peer(&mut self, change: PeerChange) {
        self.configure(DeviceChange { peers: vec![change], ..DeviceChange::default() });
    }

    fn add_peer(&mut self, n: u8, endpoint: Option<SocketAddr>) {
        let prefix = IpNet::new_assert([10, 0, 0, n].into(), 32);
        let key = PrivateKey::new([n; 32]).public();
        self.change_peer(PeerChange { endpoint, allowed_ips: vec![PrefixChange::Add(prefix)], ..PeerChange::new(key) });
        self.out.clear();
    }

    fn link(&self) -> Arc<Link> {
        Arc::clone(self.device.link(*self.device.peers.keys().next().unwrap()).unwrap())
    }

    /// Seals a packet for the peer that has the destination.
    fn send(&mut self, now: Ns, packet: &[u8]) -> Result<Vec<u8>, Refusal> {
        let routes = self.path.routes();
        let link = routes.get(destination(packet).unwrap()).expect("a route");
        let mut datagram = vec![0xee; datagram_len(packet.len())];
        datagram[HEADER_LEN..HEADER_LEN + packet.len()].copy_from_slice(packet);
        let mut sealer = link.sealer(now, 1).inspect_err(|refusal| {
            if *refusal == (Refusal::NoSession { attend: true }) {
                self.device.attend(time(now), &mut self.out);
            }
        })?;
        assert_eq!(sealer.seal(&mut datagram, packet.len()), datagram.len());
        if sealer.finish(now) {
            self.device.attend(time(now), &mut self.out);
        }
        Ok(datagram)
    }

    fn receive(&mut self, now: Ns, datagram: &[u8], from: &Endpoint) -> Result<Vec<u8>, Outcome> {
        let mut bytes = datagram.to_vec();
        let mut batch = [Datagram::new(&mut bytes, from)];
        if self.path.open(now, &mut batch) {
            self.device.attend(time(now), &mut self.out);
        }
        match batch[0].outcome {
            Outcome::Handshake => {
                let done = self.device.receive(time(now), datagram, from, &mut self.out);
                Err(done.map_or_else(Outcome::Dropped, |()| Outcome::Handshake))
            }
            Outcome::Packet { .. } => Ok(batch[0].packet().unwrap().to_vec()),
            other => Err(other),
        }
    }

    fn tick(&mut self, now: Ns) -> Option<Ns> {
        self.device.tick(time(now), &mut self.out);
        self.device.deadline()
    }

    fn take_messages(&mut self) -> Vec<Vec<u8>> {
        self.out.messages.drain(..).map(|message| message.bytes().to_vec()).collect()
    }

    fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.out.events)
    }
}

/// An IPv4 packet of 20 bytes and `payload`.
fn packet(from: u8, to: u8, payload: &[u8]) -> Vec<u8> {
    let len = 20 + payload.len() as u16;
    let mut packet = vec![0x45, 0, (len >> 8) as u8, len as u8, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend([10, 0, 0, from, 10, 0, 0, to]);
    packet.extend(payload);
    packet
}

/// Passes messages on until both have no more. Returns how many there were.
fn exchange(now: Ns, a: &mut Host, b: &mut Host) -> usize {
    let mut count = 0;
    loop {
        let (from_a, from_b) = (a.take_messages(), b.take_messages());
        if from_a.is_empty() && from_b.is_empty() {
            return count;
        }
        count += from_a.len() + from_b.len();
        for message in from_a {
            let _ = b.receive(now, &message, &a.endpoint.clone());
        }
        for message in from_b {
            let _ = a.receive(now, &message, &b.endpoint.clone());
        }
    }
}
