//! Classifies each call on a connection in the connection's protocol: the begin of a request or a reply, a part of one, or neither.
//!
//! A frame says what the first bytes of a call look like. A connection has a protocol only if messages of both directions fit it, and
//! almost all do; else nothing is known of its calls. Where the protocol changes (encryption after a request for it, an upgrade), what
//! comes after is judged by itself.
use std::collections::HashSet;

use parshall_evidence::timeline::{Frame, Op, Protocol, SocketCall};

/// The part of a message that a call moves, in the protocol of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A request or a reply, or a part of one: nothing more is known.
    Data,
    /// Neither a request nor a reply, nor a part of one.
    Control,
    /// The begin of a request or a reply of a protocol that answers in order.
    Head,
    /// The begin of a request or a reply, or a later message of it, of the exchange with this number.
    Numbered {
        /// The number.
        stream: u32,
        /// It is certainly the begin.
        begins: bool,
    },
    /// The rest of a message that began with an earlier call.
    Rest,
}

/// The calls on a connection, or on a part of one, that has one protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Messages {
    /// None where it is not known.
    pub protocol: Option<Protocol>,
    /// One for each call.
    pub parts: Vec<Part>,
    /// Whether further messages may follow the first one within a call, one for each call.
    pub surplus: Vec<bool>,
}

impl Messages {
    /// The result for calls of which nothing is known.
    pub fn of_data(calls: usize) -> Messages {
        Messages { protocol: None, parts: vec![Part::Data; calls], surplus: vec![false; calls] }
    }
}

/// Of twenty calls that look like a message, as many may look like one of another protocol.
const OTHERS_OF_20: usize = 1;
/// As many may look like TLS: a record is read in two calls, and what is encrypted in the second may look like anything.
const OTHERS_OF_20_TLS: usize = 10;
/// Informational responses have little more than a line.
const INFORMATIONAL_MAX: u32 = 64;
/// Bytes of a record of TLS 1.3 with the last message of a handshake, for either length of its hash.
const FINISHED: [u32; 2] = [58, 74];
/// Before it comes a record for the sake of old boxes.
const CHANGE_CIPHER: u32 = 6;
/// Bytes of a record of TLS 1.3 that says that no more will be sent.
const CLOSE_NOTIFY: u32 = 24;
/// The longest record that is taken for a ticket, and how many tickets are sent.
const TICKET_MAX: u32 = 600;
const TICKETS_MAX: usize = 2;
/// Readers of some protocols take the length of a message first.
const LENGTH_BYTES: u32 = 4;
/// PostgreSQL: copy data with its length, `k`, where the log ends, the time, and whether the client should answer at once.
const KEEPALIVE_BYTES: u32 = 23;
/// One may be a part of something else.
const KEEPALIVES_MIN: usize = 2;
/// Commands of MySQL that have no reply.
const MYSQL_QUIT: u8 = 1;
const MYSQL_UNANSWERED: [u8; 2] = [0x18, 0x19];
/// MQTT: a message; CONNECT, PUBREL, SUBSCRIBE and UNSUBSCRIBE, which are answered as well; and the answers: CONNACK, PUBACK, PUBREC, PUBCOMP,
/// SUBACK and UNSUBACK.
const MQTT_PUBLISH: u8 = 3;
const MQTT_QUALITY: u8 = 6;
const MQTT_ASKS: [u8; 4] = [1, 6, 8, 10];
const MQTT_ANSWERS: [u8; 6] = [2, 4, 5, 7, 9, 11];
/// The longest header of a message that is read byte by byte.
const MQTT_HEADER_MAX: u32 = 4;

/// Classifies the calls on a connection. `asks` is the operation by which requests move: to receive for the one who serves. Of a message
/// that a slice cut, the rest is not known.
pub fn messages(calls: &[SocketCall], asks: Op, slices: &[(u64, u64)]) -> Messages {
    let mut all = Messages { protocol: None, parts: Vec::new(), surplus: Vec::new() };
    let mut begin = 0;
    for end in changes(calls, asks).into_iter().chain([calls.len()]) {
        let one = of_one_protocol(&calls[begin..end], asks, slices);
        all.parts.extend(one.parts);
        all.surplus.extend(one.surplus);
        // The part before encryption or an upgrade is the smaller one.
        if end > begin {
            all.protocol = one.protocol;
        }
        begin = end;
    }
    all
}

/// The indexes of the calls with which the protocol changes: behind a response that says so, and before a client begins with TLS.
fn changes(calls: &[SocketCall], asks: Op) -> Vec<usize> {
    let mut changes = Vec::new();
    for (n, call) in calls.iter().enumerate() {
        let Some(frame) = call.frame else { continue };
        let upgraded = frame.protocol == Protocol::Http1 && frame.kind == 4 && call.op != asks;
        let encrypts = frame.protocol == Protocol::Tls && frame.kind == 22 && call.op == asks;
        let before = || calls[changes.last().copied().unwrap_or(0)..n].iter().filter(|call| call.op != Op::Accept);
        let encrypted = |call: &SocketCall| call.frame.is_some_and(|frame| frame.protocol == Protocol::Tls);
        if upgraded {
            changes.push(n + 1);
        } else if encrypts && before().next().is_some() && !before().any(encrypted) {
            changes.push(n);
        }
    }
    changes
}

fn of_one_protocol(calls: &[SocketCall], asks: Op, slices: &[(u64, u64)]) -> Messages {
    let slice = |call: &SocketCall| slices.partition_point(|slice| slice.1 < call.at_ns);
    let found = protocol(calls, asks);
    if found.is_none() && keeps_alive(calls, asks) {
        let (parts, surplus) = (vec![Part::Control; calls.len()], vec![false; calls.len()]);
        return Messages { protocol: Some(Protocol::Postgres), parts, surplus };
    }
    let mut reader = Reader { asks, rest: [None; 2], handshake: Handshake::default() };
    let mut messages = Messages { protocol: found, parts: Vec::new(), surplus: Vec::new() };
    for n in 0..calls.len() {
        if n > 0 && slice(&calls[n - 1]) != slice(&calls[n]) {
            reader.rest = [None; 2];
        }
        let (part, surplus) = match found {
            Some(protocol) => reader.part(protocol, calls, n),
            None => (Part::Data, true),
        };
        messages.parts.push(part);
        messages.surplus.push(surplus);
    }
    messages
}

/// Whether a server of PostgreSQL that replicates has nothing new, and only says so; its client says then how far it is. Neither answers
/// the other. The server looks for a message by its first byte, so that no header is known. Where it has something new, commits may wait
/// for the client.
fn keeps_alive(calls: &[SocketCall], asks: Op) -> bool {
    let of = |asking: bool| calls.iter().filter(move |call| call.op != Op::Accept && (call.op == asks) == asking);
    let tells =
        |frame: Frame| (frame.protocol, frame.kind, frame.length) == (Protocol::Postgres, b'd', KEEPALIVE_BYTES);
    // Most connections are done with their first message.
    if !of(false).all(|call| call.frame.is_some_and(tells) && call.bytes == KEEPALIVE_BYTES) {
        return false;
    }
    let looks = of(true).filter(|call| call.bytes == 1).count();
    let nameless = of(true).all(|call| call.frame.is_none());
    of(false).count() >= KEEPALIVES_MIN && nameless && looks > 0 && looks * 2 >= of(true).count()
}

/// The protocol that messages of both directions have, if nearly all that are known have it.
pub(super) fn protocol(calls: &[SocketCall], asks: Op) -> Option<Protocol> {
    let framed = || calls.iter().filter(|c| c.op != Op::Accept).filter_map(|c| Some((c.op == asks, c.frame?)));
    let first = |asking: bool| framed().find(|(asks, _)| *asks == asking).map(|(_, frame)| frame.protocol);
    let protocol = first(true).filter(|protocol| first(false) == Some(*protocol))?;
    let fits = framed().filter(|(asks, frame)| frame.protocol == protocol && has_direction(frame, *asks));
    let (fit, all) = (fits.count(), framed().count());
    let others_max = if protocol == Protocol::Tls { OTHERS_OF_20_TLS } else { OTHERS_OF_20 };
    ((all - fit) * 20 <= all * others_max && (protocol != Protocol::Kafka || answers_by_number(framed())))
        .then_some(protocol)
}

/// Whether the replies have the numbers of requests: any message with a length before it looks like one of a numbered protocol. A reply is
/// unknown if its request was before the slice or behind another one in its call, so half of them are enough.
fn answers_by_number(framed: impl Iterator<Item = (bool, Frame)>) -> bool {
    let mut asked = HashSet::new();
    let (mut known, mut replies) = (0, 0);
    for (asks, frame) in framed {
        if asks {
            asked.insert(frame.stream);
        } else if !asked.is_empty() {
            replies += 1;
            known += usize::from(asked.contains(&frame.stream));
        }
    }
    known * 2 >= replies
}

/// Whether a message of a protocol may go in this direction.
fn has_direction(frame: &Frame, asks: bool) -> bool {
    match frame.protocol {
        Protocol::Http1 => (frame.kind == 1) == asks,
        Protocol::Http2 => asks || frame.kind != 255,
        Protocol::Postgres if asks => b"\0QPBEDCSHFdcfpX".contains(&frame.kind),
        Protocol::Postgres => b"RSKZTDC123IntENAGHWsVvdc".contains(&frame.kind),
        Protocol::Redis => !asks || frame.kind == b'*',
        Protocol::WebSocket => (frame.flags == 1) == asks,
        Protocol::Mqtt if asks => ![2, 9, 11, 13].contains(&frame.kind),
        Protocol::Mqtt => ![1, 8, 10, 12].contains(&frame.kind),
        Protocol::Tls | Protocol::Mysql | Protocol::Kafka | Protocol::Dns => true,
    }
}

/// Reads the messages of a connection call by call.
struct Reader {
    asks: Op,
    /// By direction, of a message that has begun: the bytes still to come, and what they are.
    rest: [Option<(u32, Part)>; 2],
    handshake: Handshake,
}

/// The steps of a TLS handshake that were seen.
#[derive(Default)]
struct Handshake {
    /// The client has begun it.
    begun: bool,
    /// The client has done its part.
    finished: bool,
    tickets: usize,
}

impl Reader {
    /// The part of a message that the `n`-th call moves, and whether more messages may follow within it.
    fn part(&mut self, protocol: Protocol, calls: &[SocketCall], n: usize) -> (Part, bool) {
        let call = &calls[n];
        if call.op == Op::Accept {
            return (Part::Control, false);
        }
        let direction = usize::from(call.op == self.asks);
        let (frame, before) = match call.frame {
            Some(frame) => (Some(frame), taken_before(&frame, call)),
            None => (behind_length(calls, n), 0),
        };
        let frame = frame.filter(|frame| frame.protocol == protocol);
        // A record of TLS cannot be mistaken; a message of the others may contain what looks like one.
        let begins = frame.filter(|_| protocol == Protocol::Tls || self.rest[direction].is_none());
        let Some(frame) = begins else { return self.goes_on(direction, call.bytes) };
        let part = self.begun(&frame, calls, n);
        let moved = call.bytes.saturating_add(before);
        let rest = frame.length.checked_sub(moved).filter(|rest| *rest > 0);
        let after = if part == Part::Control { Part::Control } else { Part::Rest };
        self.rest[direction] = rest.map(|rest| (rest, after));
        (part, frame.length == 0 || moved > frame.length)
    }

    /// A call that no message begins with.
    fn goes_on(&mut self, direction: usize, bytes: u32) -> (Part, bool) {
        let Some((rest, part)) = self.rest[direction] else { return (Part::Data, true) };
        self.rest[direction] = rest.checked_sub(bytes).filter(|rest| *rest > 0).map(|rest| (rest, part));
        // Bytes behind the end of a message that was neither may be a request.
        let surplus = bytes > rest;
        (if surplus && part == Part::Control { Part::Data } else { part }, surplus)
    }

    /// The part of a message that begins with this frame.
    fn begun(&mut self, frame: &Frame, calls: &[SocketCall], n: usize) -> Part {
        let call = &calls[n];
        let asks = call.op == self.asks;
        let control = |is: bool| if is { Part::Control } else { Part::Head };
        match frame.protocol {
            Protocol::Tls => self.record(frame, calls, n),
            Protocol::Http1 if frame.kind == 3 && call.bytes <= INFORMATIONAL_MAX => Part::Control,
            Protocol::Http1 => Part::Data,
            Protocol::Http2 => match (frame.kind, asks) {
                (1, true) => Part::Numbered { stream: frame.stream, begins: true },
                // The last headers of a reply end the stream, as those of a short one do.
                (1, false) => Part::Numbered { stream: frame.stream, begins: frame.flags & 1 == 0 },
                (0, false) => Part::Numbered { stream: frame.stream, begins: false },
                (0 | 9, _) => Part::Rest,
                _ => Part::Control,
            },
            Protocol::Kafka => Part::Numbered { stream: frame.stream, begins: true },
            Protocol::Postgres if asks => match frame.kind {
                0 => control(frame.flags == 1),
                b'X' => Part::Control,
                b'd' | b'H' | b'c' | b'f' => Part::Data,
                _ => Part::Head,
            },
            // Notices and notifications come when they like.
            Protocol::Postgres => control(matches!(frame.kind, b'A' | b'N' | b'S') && frame.length == call.bytes),
            Protocol::Mysql if asks && frame.stream == 0 => {
                control(MYSQL_UNANSWERED.contains(&frame.kind) || frame.kind == MYSQL_QUIT && frame.length == 5)
            }
            Protocol::Mysql => {
                if !asks && frame.stream == 1 {
                    Part::Head
                } else {
                    Part::Data
                }
            }
            Protocol::Redis => control(frame.kind == b'>'),
            // A message that is owed no answer is no request, one of lower quality included, and neither is a client's answer.
            Protocol::Mqtt => match (frame.kind, asks) {
                (MQTT_PUBLISH, true) => control(frame.flags & MQTT_QUALITY == 0),
                (kind, true) => control(!MQTT_ASKS.contains(&kind)),
                (kind, false) => control(!MQTT_ANSWERS.contains(&kind)),
            },
            Protocol::WebSocket if frame.kind >= 8 => Part::Control,
            Protocol::WebSocket | Protocol::Dns => Part::Data,
        }
    }

    /// A record of TLS. From version 1.3 on only its length tells the last message of a handshake, a ticket and the end from data.
    fn record(&mut self, frame: &Frame, calls: &[SocketCall], n: usize) -> Part {
        let call = &calls[n];
        let asks = call.op == self.asks;
        match frame.kind {
            22 => {
                // The first is the hello, which may come twice. Before version 1.3 the client's last message is seen as one, too.
                if asks && self.handshake.begun && frame.flags != 1 {
                    self.handshake.finished = true;
                    // Those versions send tickets as messages of the handshake.
                    self.handshake.tickets = TICKETS_MAX;
                }
                self.handshake.begun |= asks;
                Part::Control
            }
            20 if asks && self.handshake.begun && !self.handshake.finished && call.bytes > CHANGE_CIPHER => {
                let with_last = FINISHED.iter().any(|last| call.bytes == CHANGE_CIPHER + last);
                self.handshake.finished = true;
                if with_last { Part::Control } else { Part::Data }
            }
            20 | 21 => Part::Control,
            _ if asks && self.handshake.begun && !self.handshake.finished => {
                let is_last = |frame: &Frame| FINISHED.contains(&frame.length);
                // A client's certificate comes before.
                let last = run(calls, n).filter_map(|call| call.frame).any(|frame| is_last(&frame));
                self.handshake.finished = is_last(frame) || !last;
                if last { Part::Control } else { Part::Data }
            }
            _ if asks && frame.length == CLOSE_NOTIFY && calls[n..].iter().all(|call| call.op == self.asks) => {
                Part::Control
            }
            _ if !asks && self.is_ticket(frame, calls, n) => {
                self.handshake.tickets += 1;
                Part::Control
            }
            _ => {
                if !asks {
                    self.handshake.tickets = TICKETS_MAX;
                }
                Part::Data
            }
        }
    }

    /// Tickets come before the first reply, whenever the client sends its first request.
    fn is_ticket(&self, frame: &Frame, calls: &[SocketCall], n: usize) -> bool {
        let is_data = |frame: Frame| frame.protocol == Protocol::Tls && frame.kind == 23;
        let next = || run(calls, n).skip(1).any(|call| call.frame.is_some_and(is_data));
        let Handshake { finished, begun, tickets } = self.handshake;
        finished && begun && tickets < TICKETS_MAX && frame.length <= TICKET_MAX && next()
    }
}

/// The calls from the `n`-th on up to the first in the other direction.
fn run(calls: &[SocketCall], n: usize) -> impl Iterator<Item = &SocketCall> {
    let op = calls[n].op;
    calls[n..].iter().take_while(move |call| call.op == op)
}

/// Bytes of the message that its reader had taken before this call: its length, or its header byte by byte.
fn taken_before(frame: &Frame, call: &SocketCall) -> u32 {
    let before = frame.length.saturating_sub(call.bytes);
    let may_be = match frame.protocol {
        Protocol::Kafka | Protocol::Mysql => before == LENGTH_BYTES,
        Protocol::Mqtt => before <= MQTT_HEADER_MAX,
        _ => false,
    };
    if may_be && call.op == Op::Receive { before } else { 0 }
}

/// The call with which the message begins whose head is known with the `n`-th.
pub fn begin_of(calls: &[SocketCall], n: usize) -> usize {
    let mut before = calls[n].frame.map_or(0, |frame| taken_before(&frame, &calls[n]));
    let mut begin = n;
    while before > 0 && begin > 0 && calls[begin - 1].op == Op::Receive && calls[begin - 1].bytes <= before {
        begin -= 1;
        before -= calls[begin].bytes;
    }
    begin
}

/// The message of which the `n`-th call has taken the length, or the first byte of the header, and nothing else.
fn behind_length(calls: &[SocketCall], n: usize) -> Option<Frame> {
    let first = calls.get(n).filter(|call| call.op == Op::Receive && matches!(call.bytes, 1 | LENGTH_BYTES))?;
    let mut taken = first.bytes;
    let ahead = if taken == 1 { MQTT_HEADER_MAX as usize } else { 1 };
    for next in run(calls, n).skip(1).take(ahead) {
        if let Some(frame) = next.frame {
            return (taken_before(&frame, next) == taken).then_some(frame);
        }
        taken = taken.saturating_add(next.bytes);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use Part::{Control, Data, Head, Rest};

    const R: Op = Op::Receive;
    const S: Op = Op::Send;

    fn frame(protocol: Protocol, kind: u8, length: u32, stream: u32) -> Option<Frame> {
        Some(Frame { protocol, kind, flags: 0, length, stream })
    }

    fn tls(kind: u8, length: u32) -> Option<Frame> {
        frame(Protocol::Tls, kind, length, 0)
    }

    fn hello() -> Option<Frame> {
        tls(22, 517).map(|frame| Frame { flags: 1, ..frame })
    }

    fn calls(of: &[(Op, u32, Option<Frame>)]) -> Vec<SocketCall> {
        let one = |(n, &(op, bytes, frame)): (usize, &(Op, u32, Option<Frame>))| {
            let at_ns = n as u64 * 1_000;
            SocketCall { socket: 1, tid: 7, op, since_ns: at_ns, at_ns, bytes, peer: 0, frame }
        };
        of.iter().enumerate().map(one).collect()
    }

    fn parts(of: &[(Op, u32, Option<Frame>)]) -> Vec<Part> {
        messages(&calls(of), R, &[]).parts
    }

    /// TLS 1.3 without tickets, as a server sees it that reads what there is: a request, its reply, and this at the end.
    fn without_tickets(end: (Op, u32, Option<Frame>)) -> [(Op, u32, Option<Frame>); 6] {
        [
            (R, 517, hello()),
            (S, 2_300, tls(22, 127)),
            (R, 64, tls(20, 6)),
            (R, 100, tls(23, 100)),
            (S, 400, tls(23, 400)),
            end,
        ]
    }

    #[test]
    fn what_is_encrypted_may_look_like_another_protocol() {
        let mut calls = without_tickets((R, 24, tls(23, 24))).to_vec();
        calls.splice(3..4, [(R, 5, tls(23, 101)), (R, 96, frame(Protocol::Redis, b':', 0, 0))]);
        assert_eq!(parts(&calls), [Control, Control, Control, Data, Rest, Data, Control]);
    }

    #[test]
    fn the_handshake_of_tls_1_3_asks_for_nothing() {
        // As OpenSSL reads: the head of each record, then its body. Two tickets, a request with its reply, the end.
        let server = [
            // The type of the handshake's message is not in the head of a record.
            (R, 5, tls(22, 517)),
            (R, 512, None),
            (S, 2_300, tls(22, 127)),
            (R, 5, tls(20, 6)),
            (R, 1, None),
            (R, 5, tls(23, 74)),
            (R, 69, None),
            (S, 255, tls(23, 255)),
            (S, 255, tls(23, 255)),
            (R, 5, tls(23, 100)),
            (R, 95, None),
            (S, 400, tls(23, 400)),
            (R, 5, tls(23, 24)),
            (R, 19, None),
        ];
        let expected = [[Control; 7].as_slice(), &[Control, Data, Data, Rest, Data, Control, Control]].concat();
        assert_eq!(parts(&server), expected);
        // As Go reads: what there is.
        let server = without_tickets((R, 24, tls(23, 24)));
        assert_eq!(parts(&server), [Control, Control, Control, Data, Data, Control]);
    }

    #[test]
    fn the_only_reply_of_a_connection_is_no_ticket() {
        // TLS 1.2, a short reply, and the end of the connection behind it.
        let server = [
            (R, 188, hello()),
            (S, 1954, tls(22, 61)),
            (R, 93, tls(22, 37)),
            (S, 258, tls(22, 202)),
            (R, 87, tls(23, 82)),
            (S, 326, tls(23, 321)),
            (S, 31, tls(21, 26)),
        ];
        assert_eq!(parts(&server), [Control, Control, Control, Control, Data, Data, Control]);
        let server = without_tickets((S, 24, tls(21, 19)));
        assert_eq!(parts(&server), [Control, Control, Control, Data, Data, Control]);
    }

    #[test]
    fn a_client_may_ask_before_it_has_the_tickets() {
        let client = calls(&[
            (S, 517, hello()),
            (R, 2_300, tls(22, 127)),
            (S, 80, tls(20, 6)),
            (S, 100, tls(23, 100)),
            (R, 5, tls(23, 255)),
            (R, 250, None),
            (R, 5, tls(23, 255)),
            (R, 250, None),
            (R, 5, tls(23, 500)),
            (R, 495, None),
        ]);
        let expected = [Control, Control, Control, Data, Control, Control, Control, Control, Data, Rest];
        assert_eq!(messages(&client, S, &[]).parts, expected);
    }

    #[test]
    fn a_certificate_of_the_client_is_no_request() {
        let server = [
            (R, 517, hello()),
            (S, 2_300, tls(22, 127)),
            (R, 6, tls(20, 6)),
            (R, 1_500, tls(23, 1_500)),
            (R, 300, tls(23, 300)),
            (R, 58, tls(23, 58)),
            (S, 500, tls(23, 250)),
            (R, 100, tls(23, 100)),
            (S, 90, tls(23, 90)),
        ];
        let expected = [Control, Control, Control, Control, Control, Control, Data, Data, Data];
        assert_eq!(parts(&server), expected);
    }

    #[test]
    fn older_versions_of_tls_show_the_handshake_and_the_end() {
        let server = [
            (R, 517, hello()),
            (S, 4_000, tls(22, 100)),
            (R, 126, tls(22, 42)),
            (S, 51, tls(20, 6)),
            (R, 100, tls(23, 100)),
            (S, 400, tls(23, 400)),
            (R, 31, tls(21, 31)),
        ];
        assert_eq!(parts(&server), [Control, Control, Control, Control, Data, Data, Control]);
    }

    #[test]
    fn a_short_record_that_is_answered_is_no_end() {
        let server = [(R, 24, tls(23, 24)), (S, 30, tls(23, 30)), (R, 24, tls(23, 24)), (S, 30, tls(23, 30))];
        assert_eq!(parts(&server), [Data; 4]);
    }

    #[test]
    fn both_directions_have_to_fit() {
        let garbage = [(R, 100, tls(23, 100)), (S, 300, None), (R, 100, tls(23, 100)), (S, 300, None)];
        let found = messages(&calls(&garbage), R, &[]);
        assert_eq!((found.protocol, found.parts), (None, vec![Data; 4]));
        // Replies that look like requests, and as many messages of another protocol.
        let http = |kind| frame(Protocol::Http1, kind, 0, 0);
        assert_eq!(messages(&calls(&[(R, 90, http(1)), (S, 90, http(1))]), R, &[]).protocol, None);
        assert_eq!(messages(&calls(&[(R, 90, http(1)), (S, 90, http(2))]), R, &[]).protocol, Some(Protocol::Http1));
        let mixed = [(R, 90, http(1)), (S, 90, http(2)), (R, 90, tls(23, 90)), (S, 90, http(2))];
        assert_eq!(messages(&calls(&mixed), R, &[]).protocol, None);
    }

    #[test]
    fn leave_to_go_on_is_no_reply() {
        let http = |kind| frame(Protocol::Http1, kind, 0, 0);
        let put = [(R, 200, http(1)), (S, 25, http(3)), (R, 9_000, None), (S, 120, http(2))];
        assert_eq!(parts(&put), [Data, Control, Data, Data]);
    }

    #[test]
    fn what_comes_after_an_upgrade_is_another_protocol() {
        let http = |kind| frame(Protocol::Http1, kind, 0, 0);
        let ws = |kind, masked| {
            frame(Protocol::WebSocket, kind, 20, 0).map(|frame| Frame { flags: u8::from(masked), ..frame })
        };
        let chat = [
            (R, 400, http(1)),
            (S, 130, http(4)),
            (S, 20, ws(2, false)),
            (S, 20, ws(9, false)),
            (R, 20, ws(10, true)),
            (S, 20, ws(2, false)),
        ];
        assert_eq!(parts(&chat), [Data, Data, Data, Control, Control, Data]);
    }

    #[test]
    fn encryption_may_begin_later() {
        let pg = |kind, flags, length| frame(Protocol::Postgres, kind, length, 0).map(|frame| Frame { flags, ..frame });
        let session = [
            (R, 8, pg(0, 1, 8)),
            (S, 1, None),
            (R, 517, hello()),
            (S, 2_300, tls(22, 127)),
            (R, 64, tls(20, 6)),
            (R, 100, tls(23, 100)),
            (S, 400, tls(23, 400)),
        ];
        assert_eq!(parts(&session), [Data, Data, Control, Control, Control, Data, Data]);
    }

    #[test]
    fn sessions_of_databases_end_without_a_reply() {
        let pg = |kind, length| frame(Protocol::Postgres, kind, length, 0);
        let session = [(R, 30, pg(b'Q', 30)), (S, 90, pg(b'T', 33)), (S, 40, pg(b'A', 40)), (R, 5, pg(b'X', 5))];
        assert_eq!(parts(&session), [Head, Head, Control, Control]);
        // A server of MySQL reads the length of a message first.
        let my = |kind, length, number| frame(Protocol::Mysql, kind, length, number);
        let session = [(R, 4, None), (R, 9, my(3, 13, 0)), (S, 90, my(1, 5, 1)), (R, 4, None), (R, 1, my(1, 5, 0))];
        assert_eq!(parts(&session), [Head, Rest, Head, Control, Control]);
    }

    #[test]
    fn both_ends_of_an_idle_replication_send_when_they_like() {
        let pg = |kind, length| frame(Protocol::Postgres, kind, length, 0);
        let beat = [(S, 23, pg(b'd', 23)), (R, 1, None), (R, 38, None)];
        assert_eq!(parts(&[beat, beat].concat()), [Control; 6]);
        // Where there is something new, commits may wait for the client.
        assert_eq!(parts(&[(S, 300, pg(b'd', 300)), (R, 1, None), (R, 38, None), (S, 23, pg(b'd', 23))]), [Data; 4]);
        // A table that is copied out is an answer, of which the request may be before the window.
        let copied = (S, 8_192, pg(b'd', 120));
        assert_eq!(parts(&[copied, copied, (R, 30, None)]), [Data; 3]);
        // And this is another protocol.
        assert_eq!(parts(&[(S, 23, None), (R, 1, None), (R, 38, None), (S, 23, None)]), [Data; 4]);
    }

    #[test]
    fn pings_and_pushes_of_a_broker_are_no_requests() {
        let mqtt = |kind, flags, length| frame(Protocol::Mqtt, kind, length, 0).map(|frame| Frame { flags, ..frame });
        // As mosquitto reads: the header byte by byte.
        let session = [
            (R, 1, None),
            (R, 1, None),
            (R, 30, mqtt(1, 0, 32)),
            (S, 4, mqtt(2, 0, 4)),
            // PINGREQ is complete with its second byte.
            (R, 1, None),
            (R, 1, mqtt(12, 0, 2)),
            (S, 2, mqtt(13, 0, 2)),
            // The broker passes a message on, which is acknowledged.
            (S, 35, mqtt(3, 2, 35)),
            (R, 1, None),
            (R, 1, None),
            (R, 2, mqtt(4, 0, 4)),
            // A message that is owed no answer, and one that is.
            (R, 1, None),
            (R, 1, None),
            (R, 40, mqtt(3, 0, 42)),
            (R, 1, None),
            (R, 1, None),
            (R, 40, mqtt(3, 2, 42)),
            (S, 4, mqtt(4, 0, 4)),
        ];
        let expected = [
            [Head, Rest, Rest, Head, Control, Control, Control, Control].as_slice(),
            &[Control; 6],
            &[Head, Rest, Rest, Head],
        ];
        assert_eq!(parts(&session), expected.concat());
        let found = messages(&calls(&session), R, &[]);
        assert_eq!(found.protocol, Some(Protocol::Mqtt));
        // A client does not acknowledge a connection.
        assert_eq!(messages(&calls(&[(R, 4, mqtt(2, 0, 4)), (S, 4, mqtt(2, 0, 4))]), R, &[]).protocol, None);
    }

    #[test]
    fn the_body_of_a_message_is_never_a_head() {
        let h2 = |kind, length, stream| frame(Protocol::Http2, kind, length, stream);
        let headers = |stream| Part::Numbered { stream, begins: true };
        let upload = [
            (R, 50, h2(255, 24, 0)),
            (R, 40, h2(1, 40, 1)),
            (R, 9, h2(0, 16_393, 1)),
            (R, 8_000, h2(1, 30, 77)),
            (R, 8_384, None),
            (S, 80, h2(1, 40, 1)),
        ];
        let found = messages(&calls(&upload), R, &[]);
        assert_eq!(found.parts, [Control, headers(1), Rest, Rest, Rest, headers(1)]);
        assert_eq!(found.surplus, [true, false, false, false, false, true]);
        // The rest of what a slice cut is not waited for in the next one.
        let parts = messages(&calls(&upload), R, &[(0, 2_500), (2_600, 10_000)]).parts;
        assert_eq!(parts[3], headers(77));
    }
}
