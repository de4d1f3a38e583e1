//! Rows for the tests: a realistic connection, and random rows.
use parshall_core::sockets::{Dump, Owner, Rates, Row, Seen};
use parshall_evidence::socket::{Completeness, FIELDS, SocketRecord};
use proptest::prelude::*;

pub fn dump() -> Dump {
    Dump { at_unix_ns: 1_795_250_207_123_456_789, sequence: 7, host: "web-1".to_owned(), backend: "walk" }
}

pub fn completeness() -> Completeness {
    Completeness { expected: 12, emitted: 10, torn: 1, dropped: 1, namespaces: 3, ..Default::default() }
}

pub fn ipv4(bytes: [u8; 4]) -> [u8; 16] {
    let mut address = [0; 16];
    address[..4].copy_from_slice(&bytes);
    address
}

/// A connection that has exchanged data, with about 60 fields that are not 0. `seed` varies the numbers.
pub fn connection(seed: u64) -> SocketRecord {
    let n = seed as u32;
    let mut congestion = [0; 16];
    congestion[..5].copy_from_slice(b"cubic");
    SocketRecord {
        address: 0xffff_8881_0000_0000 | seed << 8,
        cgroup_id: 4711,
        bytes_sent: 1_234_567 + seed * 997,
        bytes_acked: 1_234_000 + seed * 997,
        bytes_received: 98_765 + seed * 13,
        pacing_bytes_per_s: 288_000_000 + seed * 1009,
        delivery_bytes_per_s: 92_000_000 + seed * 31,
        busy_us: 1_200_000 + seed,
        netns: 4_026_531_840,
        inode: 100_000 + n,
        uid: 33,
        birth_sent: n.wrapping_mul(2_654_435_761),
        birth_received: n.wrapping_mul(2_246_822_519),
        rto_us: 204_000,
        ato_us: 40_000,
        rtt_us: 1_200 + n % 900,
        rttvar_us: 300 + n % 77,
        min_rtt_us: 800 + n % 50,
        rcv_rtt_us: 1_100 + n % 50,
        snd_mss: 1448,
        rcv_mss: 536,
        advmss: 1448,
        pmtu: 1500,
        snd_cwnd: 10 + n % 40,
        snd_ssthresh: 20,
        rcv_ssthresh: 64_088,
        rcv_space: 14_480,
        snd_wnd: 64_256 + n % 3000,
        rcv_wnd: 65_536,
        reordering: 3,
        last_data_sent_ms: n % 5000,
        last_data_recv_ms: n % 6000,
        last_ack_recv_ms: n % 4000,
        segs_out: 1000 + n % 500,
        segs_in: 900 + n % 500,
        data_segs_out: 850 + n % 300,
        data_segs_in: 70 + n % 30,
        delivered: 851 + n % 300,
        rmem_alloc_bytes: n % 3 * 768,
        rcvbuf_bytes: 131_072,
        sndbuf_bytes: 87_040,
        fwd_alloc_bytes: 4096,
        local_port: 443,
        remote_port: 1024 + n as u16 % 60_000,
        protocol: 6,
        sock_flags: 2,
        sock_type: 1,
        family: 2,
        state: 1,
        tcp_options: 7,
        snd_wscale: 7,
        rcv_wscale: 7,
        app_limited: 1,
        timer: (n % 2) as u8,
        timer_ms: n % 2 * 180,
        reuse: 1,
        nodelay: 1,
        local_address: ipv4([10, 0, 0, 1]),
        remote_address: ipv4([10, 1, (n >> 8) as u8, n as u8]),
        congestion,
        ..Default::default()
    }
}

/// Owns the data that a row borrows.
#[derive(Debug, Clone, Default)]
pub struct Owned {
    pub record: SocketRecord,
    pub socket: u64,
    pub seen: Seen,
    pub name: Vec<u8>,
    pub texts: [String; 4],
    pub owners: Vec<Owner>,
    pub rates: Option<Rates>,
}

impl Owned {
    pub fn row(&self) -> Row<'_> {
        let [netns, cgroup, container, pod] = &self.texts;
        Row {
            record: &self.record,
            socket: self.socket,
            seen: self.seen,
            name: &self.name,
            netns,
            cgroup,
            container,
            pod,
            owners: &self.owners,
            rates: self.rates,
        }
    }
}

/// Sets a field by its index in `FIELDS`, independently of the code under test.
fn set(record: &mut SocketRecord, at: usize, value: u64, bytes: [u8; 16]) {
    macro_rules! set_fields {
        ($($name:ident)*) => {
            match FIELDS[at].name {
                $(stringify!($name) => record.$name = value as _,)*
                "local_address" => record.local_address = bytes,
                "remote_address" => record.remote_address = bytes,
                "congestion" => record.congestion = bytes,
                _ => {}
            }
        };
    }
    set_fields!(
        address cookie bytes_sent pacing_bytes_per_s busy_us mptcp_bytes_retrans netns inode mark rqueue_bytes accept_limit
        birth_sent rto_us rtt_us min_rtt_us snd_ssthresh total_retrans received_ce_bytes drops vegas_minrtt_us
        mptcp_token peer_inode name_at local_port remote_port protocol sock_flags total_rto name_len sock_type record_flags
        family state ca_state tcp_options timer shutdown ulp nodelay reserved
    );
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(u64::MAX),
        Just(u64::from(u32::MAX)),
        any::<u64>(),
        (0u32..64).prop_map(|s| 1 << s)
    ]
}

fn record() -> impl Strategy<Value = SocketRecord> {
    prop::collection::vec((0..FIELDS.len(), number(), any::<[u8; 16]>()), 0..60).prop_map(|settings| {
        let mut record = SocketRecord::default();
        for (at, value, bytes) in settings {
            set(&mut record, at, value, bytes);
        }
        record
    })
}

/// Any text, often with control characters and quotes, as names on a host may have.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), any::<String>(), "[\\x00-\\x1f\"\\\\\u{7f}-\u{9f}a]{0,40}"]
}

pub fn any_row() -> impl Strategy<Value = Owned> {
    let name = prop_oneof![Just(Vec::new()), prop::collection::vec(any::<u8>(), 0..110)];
    let texts = [text(), text(), text(), text()];
    let owner =
        (any::<u32>(), any::<u32>(), text()).prop_map(|(pid, fd, command)| Owner { pid, fd, command: command.into() });
    let owners = prop::collection::vec(owner, 0..4);
    let rates = prop::option::of(prop::array::uniform6(number()).prop_map(|n| Rates {
        interval_us: n[0],
        sent_bytes_per_s: n[1],
        received_bytes_per_s: n[2],
        segs_out_per_s: n[3],
        segs_in_per_s: n[4],
        retrans: n[5],
    }));
    let seen = prop::sample::select(vec![Seen::Open, Seen::New, Seen::Changed, Seen::Same, Seen::Closed]);
    (record(), number(), seen, name, texts, owners, rates).prop_map(
        |(record, socket, seen, name, texts, owners, rates)| Owned { record, socket, seen, name, texts, owners, rates },
    )
}
