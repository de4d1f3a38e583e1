//! Messages of a kernel (6.18), and arbitrary bytes.
use parshall_evidence::socket::{Batch, Group, Groups, Visitor};
use proptest::prelude::*;

use super::*;
use parshall_evidence::socket::{Kind, Kinds, Prefix, Selection, Side};

/// Messages as the kernel sent them, each behind the number of its table and its length (four bytes each). The sockets were
/// made for the purpose: connections with BBR and Cubic, a mark, unread data, IPv6, MPTCP, TIME_WAIT, an embryonic
/// connection, listeners with a connection that waits, UDP, UDP-Lite and UNIX sockets of several kinds. The expected values
/// were compared with what `ss` said of the same sockets.
const MESSAGES: &[u8] = include_bytes!("golden/messages.bin");
const RECORDS: &str = include_str!("golden/records.txt");

const TABLES: [Table; 5] = [Table::Tcp, Table::Udp, Table::UdpLite, Table::Mptcp, Table::Unix];
const ALL: Reading = Reading { groups: Groups::ALL, layout: Layout { packed_accecn: false } };

fn golden() -> Vec<(Table, &'static [u8])> {
    let mut rest = MESSAGES;
    let mut messages = Vec::new();
    while let [a, b, c, d, e, f, g, h, tail @ ..] = rest {
        let len = u32::from_le_bytes([*e, *f, *g, *h]) as usize;
        messages.push((TABLES[u32::from_le_bytes([*a, *b, *c, *d]) as usize], &tail[..len]));
        rest = &tail[len..];
    }
    messages
}

fn decoded(table: Table, payload: &[u8], reading: &Reading) -> Option<(SocketRecord, Vec<u8>)> {
    let (mut record, mut names) = (SocketRecord::default(), Vec::new());
    decode(table, payload, reading, &mut record, &mut names)?;
    Some((record, names))
}

/// A line of `field=value` for every field that is not zero.
struct Line(String);

impl Visitor for Line {
    fn uint(&mut self, _: u32, name: &'static str, value: u64) {
        self.0 += &format!(" {name}={value}");
    }

    fn bytes(&mut self, _: u32, name: &'static str, value: &[u8; 16]) {
        let end = value.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let text = match name {
            "congestion" => String::from_utf8_lossy(&value[..end]).into_owned(),
            _ => value[..end].iter().map(|byte| format!("{byte:02x}")).collect(),
        };
        self.0 += &format!(" {name}={text}");
    }
}

#[test]
#[cfg(target_endian = "little")]
fn captured_messages_give_the_values_that_the_tools_show() {
    let mut text = String::new();
    for (table, payload) in golden() {
        let (record, names) = decoded(table, payload, &ALL).expect("a whole message");
        let mut line = Line(format!("{table:?}"));
        record.visit(&mut line);
        let name = Batch { records: &[], names: &names }.name(&record);
        text += &format!(
            "{}{}\n",
            line.0,
            if name.is_empty() { String::new() } else { format!(" {}", name.escape_ascii()) }
        );
    }
    assert!(text == RECORDS, "decoded otherwise:\n{text}");
}

#[test]
fn a_group_fills_its_fields_and_no_others() {
    for (table, payload) in golden() {
        let (all, _) = decoded(table, payload, &ALL).expect("a whole message");
        let mut given = 0;
        for group in Group::ALL {
            let (part, _) = decoded(table, payload, &Reading { groups: Groups::of([group]), ..ALL }).expect("whole");
            for (name, value) in fields(&part) {
                let of =
                    parshall_evidence::socket::FIELDS.iter().find(|field| field.name == name).expect("a field").group;
                assert!(of == group || of == Group::Identity, "{name} is of {of:?}, not {group:?}");
                given += usize::from(of == group);
                assert_eq!(fields(&all).iter().find(|(other, _)| *other == name).map(|(_, v)| v), Some(&value));
            }
        }
        assert_eq!(given, fields(&all).len(), "together they are everything");
    }
}

fn fields(record: &SocketRecord) -> Vec<(&'static str, String)> {
    struct Fields(Vec<(&'static str, String)>);
    impl Visitor for Fields {
        fn uint(&mut self, _: u32, name: &'static str, value: u64) {
            self.0.push((name, value.to_string()));
        }
        fn bytes(&mut self, _: u32, name: &'static str, value: &[u8; 16]) {
            self.0.push((name, format!("{value:?}")));
        }
    }
    let mut fields = Fields(Vec::new());
    record.visit(&mut fields);
    fields.0
}

/// An established TCP socket of the captured ones.
fn established() -> Vec<u8> {
    let (_, payload) = golden().into_iter().find(|(table, p)| *table == Table::Tcp && p[1] == 1).expect("there is one");
    payload.to_vec()
}

fn with(mut message: Vec<u8>, kind: u16, value: &[u8]) -> Vec<u8> {
    message.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(value);
    message.resize(message.len().next_multiple_of(4), 0);
    message
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn controls_that_were_not_at_hand() {
    let message = with(established(), 3, &words(&[1, 2, 3, 4]));
    let halves = [[1u16.to_ne_bytes(), 7u16.to_ne_bytes()].concat(), words(&[10, 11, 12])].concat();
    let message = with(message, 9, &halves);
    let (record, _) = decoded(Table::Tcp, &message, &ALL).expect("whole");
    assert_eq!((record.vegas_enabled, record.vegas_rttcnt), (1, 2));
    assert_eq!((record.vegas_rtt_us, record.vegas_minrtt_us), (3, 4));
    assert_eq!((record.dctcp_enabled, record.dctcp_ce_state, record.dctcp_alpha), (1, 7, 10));
    assert_eq!((record.dctcp_ab_ecn, record.dctcp_ab_tot), (11, 12));
}

#[test]
fn a_class_without_a_major_number_is_the_priority_too() {
    for (written, class, priority) in [(6u32, 6, 6), (0x0001_0002, 0x0001_0002, 0)] {
        let (record, _) = decoded(Table::Tcp, &with(established(), 17, &written.to_ne_bytes()), &ALL).expect("whole");
        assert_eq!((record.class_id, record.priority), (class, priority));
    }
}

#[test]
fn upper_layers_are_told_by_name() {
    for (name, number) in [(&b"tls\0"[..], 1), (b"espintcp\0", 3), (b"smc", 4), (b"other\0", 255), (b"\0", 0)] {
        let nested = with(Vec::new(), 1, name);
        let (record, _) = decoded(Table::Tcp, &with(established(), 19 | 0x8000, &nested), &ALL).expect("whole");
        assert_eq!(record.ulp, number, "{}", name.escape_ascii());
    }
}

#[test]
fn tcp_info_of_any_length() {
    let info: Vec<u8> = (1..=600u32).map(|n| n as u8).collect();
    let head = established()[..72].to_vec();
    let whole = decoded(Table::Tcp, &with(head.clone(), 2, &info), &ALL).expect("whole").0;
    assert_eq!(whole.snd_wnd, u32::from_ne_bytes([229, 230, 231, 232]));
    assert_eq!(whole.accecn_opt_seen, u16::from_ne_bytes([23, 24]), "bytes 278 and 279");
    for len in 0..=info.len() {
        let part = decoded(Table::Tcp, &with(head.clone(), 2, &info[..len]), &ALL).expect("whole").0;
        assert_eq!(part.snd_wnd != 0, len >= 232);
        assert_eq!(part.total_rto_time_ms != 0, len >= 248);
        if len >= 280 {
            assert_eq!(part, whole);
        }
    }
    let mut info = vec![0; 280];
    info[276] = 0b1010_1101;
    let packed = Reading { layout: Layout::of_release("7.0.0-rc3"), ..ALL };
    let record = decoded(Table::Tcp, &with(head, 2, &info), &packed).expect("whole").0;
    if cfg!(target_endian = "little") {
        assert_eq!((record.accecn_opt_seen, record.accecn_fail_mode), (3, 10));
    }
    assert!(!Layout::of_release("6.18.44-x").packed_accecn && !Layout::of_release("").packed_accecn);
}

#[test]
fn parts_are_cut_into_messages() {
    let message = |kind: u16, flags: u16, sequence: u32, payload: &[u8]| {
        let mut bytes = ((16 + payload.len()) as u32).to_ne_bytes().to_vec();
        for half in [kind, flags] {
            bytes.extend_from_slice(&half.to_ne_bytes());
        }
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let errno = (-2i32).to_ne_bytes();
    let part =
        [message(20, 2, 6, b"old"), message(20, 2, 7, b"one"), message(20, 0x12, 7, b"two!"), message(2, 0, 7, &errno)];
    let part = part.concat();
    let mut messages = Messages::new(&part, 7);
    assert_eq!(messages.next(), Some(Message::Socket(b"one")));
    assert!(!messages.interrupted());
    assert_eq!(messages.next(), Some(Message::Socket(b"two!")));
    assert!(messages.interrupted());
    assert_eq!((messages.next(), messages.next(), messages.broken()), (Some(Message::Refused(2)), None, false));
    let mut cut = Messages::new(&part[..part.len() - 1], 7);
    assert_eq!((cut.by_ref().count(), cut.next(), cut.broken()), (2, None, true));
    let done = message(3, 2, 7, &0i32.to_ne_bytes());
    assert_eq!(Messages::new(&done, 7).next(), Some(Message::Done(0)));
}

fn every_kind() -> Kinds {
    Kinds::of(Kind::ALL)
}

#[test]
fn requests_say_what_is_wanted() {
    let request = |selection: &Selection, at: usize| {
        let mut bytes = Vec::new();
        push_dump(&mut bytes, 9, tables(selection)[at], selection, true);
        assert_eq!(u32::from_ne_bytes(bytes[..4].try_into().expect("4")), bytes.len() as u32);
        assert_eq!(u32::from_ne_bytes(bytes[8..12].try_into().expect("4")), 9);
        bytes
    };
    let all = Selection { kinds: every_kind(), ..Default::default() };
    let dumped: Vec<Table> = tables(&all).iter().map(|dump| dump.table).collect();
    use Table::{Mptcp, Tcp, Udp, UdpLite, Unix};
    assert_eq!(dumped, [Tcp, Udp, Udp, UdpLite, UdpLite, Mptcp, Mptcp, Unix]);
    // Both families, every extension but MEMINFO and SHUTDOWN, every state but BOUND_INACTIVE.
    let tcp = request(&all, 0);
    assert_eq!((tcp[4], &tcp[16..20], tcp.len()), (18, &[0, 0, 0, 0b0111_1110][..], 16 + 60));
    assert_eq!(tcp[68..72], (!(1u32 << 13)).to_ne_bytes());
    // A named state is dumped; a group requests the extension that holds it.
    let few = Selection { groups: Groups::of([Group::Memory]), states: 1 << 13, ..all.clone() };
    assert_eq!((request(&few, 0)[19], &request(&few, 0)[68..72]), (1 << 6, &(1u32 << 13).to_ne_bytes()[..]));
    assert_eq!(request(&few, 1)[16..24], [[2, 17, 1 << 6, 0], (1u32 << 13).to_ne_bytes()].concat());
    let mptcp = request(&all, 6);
    assert_eq!(mptcp[16..18], [10, 254]);
    assert_eq!(mptcp[72..], [[8, 0, 3, 0], 262u32.to_ne_bytes()].concat());
    let unix = request(&all, 7);
    assert_eq!((unix[16], &unix[28..32]), (1, &0x75u32.to_ne_bytes()[..]));
    let ported = Selection { ports: vec![(Side::Local, 80)], ..all };
    assert!(tables(&ported).iter().all(|dump| dump.table != Unix));
}

/// A program run as by the kernel (net/ipv4/inet_diag.c), with its checks.
fn kernel_lets_through(program: &[u8], record: &SocketRecord) -> bool {
    let u16_at = |at: usize| u16::from_ne_bytes([program[at], program[at + 1]]);
    let mut landings = vec![];
    let mut at = 0;
    while at < program.len() {
        landings.push(at);
        at += usize::from(program[at + 1]);
    }
    assert_eq!(at, program.len());
    at = 0;
    while at < program.len() {
        let (code, yes, no) = (program[at], usize::from(program[at + 1]), usize::from(u16_at(at + 2)));
        let least = match code {
            1 => 4,
            2..=5 => 8,
            7 | 8 => 4 + 8 + if program[at + 4] == 2 { 4 } else { 16 },
            13 => 12,
            _ => panic!("no operation {code}"),
        };
        let left = program.len() - at;
        assert!(yes >= least && yes % 4 == 0 && no >= least && no % 4 == 0 && no <= left + 4, "at {at}");
        assert!(no >= left || landings.contains(&(at + no)), "the jump from {at} leads between operations");
        let operand = &program[at + 4..at + yes];
        let port = |at: usize| u16::from_ne_bytes([operand[at], operand[at + 1]]);
        let holds = match code {
            1 => false,
            2 => record.local_port >= port(2),
            3 => record.local_port <= port(2),
            4 => record.remote_port >= port(2),
            5 => record.remote_port <= port(2),
            13 => record.cgroup_id == u64::from_ne_bytes(operand.try_into().expect("8 bytes")),
            _ => address_holds(operand, record, code == 8),
        };
        at += if holds { yes } else { no };
    }
    at == program.len()
}

fn address_holds(operand: &[u8], record: &SocketRecord, remote: bool) -> bool {
    let bytes = if remote { &record.remote_address } else { &record.local_address };
    let mut address = &bytes[..if record.family == 2 { 4 } else { 16 }];
    if operand[0] != record.family {
        if operand[0] != 2 || address[..12] != [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255] {
            return false;
        }
        address = &address[12..];
    }
    let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
    (0..usize::from(operand[1])).all(|at| bit(address, at) == bit(&operand[8..], at))
}

fn sides() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Local), Just(Side::Remote), Just(Side::Either)]
}

fn prefixes() -> impl Strategy<Value = Prefix> {
    let v4 = (sides(), 0u8..=32).prop_map(|(side, length)| {
        let all = u32::from_be_bytes([10, 1, 2, 3]);
        let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        Prefix { side, network: std::net::Ipv4Addr::from(all & mask).into(), length }
    });
    let v6 = (sides(), 0u8..=128).prop_map(|(side, length)| {
        let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
        Prefix { side, network: std::net::Ipv6Addr::from(u128::from_be_bytes([0x20; 16]) & mask).into(), length }
    });
    prop_oneof![v4, v6]
}

fn addresses() -> impl Strategy<Value = (u8, [u8; 16])> {
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 1, 2, 4];
    prop_oneof![
        Just((2, [10, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        Just((2, [10, 1, 200, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        Just((10, mapped)),
        Just((10, [0x20; 16])),
        Just((10, [0x21; 16])),
    ]
}

proptest! {
    #[test]
    fn the_program_never_leaves_out_what_is_wanted(
        ports in prop::collection::vec((sides(), 1u16..4), 0..4),
        prefixes in prop::collection::vec(prefixes(), 0..4),
        cgroups in prop::collection::vec(1u64..4, 0..3),
        socket in (addresses(), addresses(), 1u16..4, 1u16..4, 0u64..4),
    ) {
        let ((family, local_address), (_, remote_address), local_port, remote_port, cgroup_id) = socket;
        let record = SocketRecord {
            family, protocol: 6, state: 1, local_address, remote_address, local_port, remote_port, cgroup_id,
            ..Default::default()
        };
        let selection = Selection { ports, prefixes, cgroups, ..Default::default() };
        let Some(program) = filter::program(&selection) else {
            prop_assert!(selection.ports.is_empty() && selection.prefixes.is_empty() && selection.cgroups.is_empty());
            return Ok(());
        };
        let through = kernel_lets_through(&program, &record);
        if selection.holds(&record) {
            prop_assert!(through);
        } else if selection.prefixes.is_empty() {
            // Without prefixes (where an IPv4 address in IPv6 form counts as both in the kernel) it is exact.
            prop_assert!(!through);
        }
    }

    #[test]
    fn any_bytes_are_taken(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        message in 0usize..28,
        cut in any::<prop::sample::Index>(),
        change in any::<(prop::sample::Index, u8)>(),
        sequence in any::<u32>(),
        packed_accecn in any::<bool>(),
    ) {
        let reading = Reading { groups: Groups::ALL, layout: Layout { packed_accecn } };
        for table in TABLES {
            let short = bytes.len() < if table == Table::Unix { 16 } else { 72 };
            prop_assert_eq!(decoded(table, &bytes, &reading).is_none(), short);
        }
        for message in Messages::new(&bytes, sequence) {
            if let Message::Done(errno) | Message::Refused(errno) = message {
                prop_assert!(errno >= 0);
            }
        }
        // One that is nearly right.
        let golden = golden();
        let (table, payload) = golden[message.min(golden.len() - 1)];
        let mut payload = payload.to_vec();
        let at = change.0.index(payload.len());
        payload[at] = change.1;
        payload.truncate(cut.index(payload.len()) + 1);
        if let Some((record, names)) = decoded(table, &payload, &reading) {
            prop_assert!(usize::from(record.name_len) <= names.len());
        }
    }
}
