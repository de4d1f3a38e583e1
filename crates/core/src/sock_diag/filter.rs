//! INET_DIAG_REQ_BYTECODE: the part of a selection that the kernel can test by itself, as a program of conditional jumps
//! (`inet_diag_bc_run`). Sockets that it accepts are tested again, so it may accept too much but never too little.
use std::net::IpAddr;

use parshall_evidence::socket::{Prefix, Selection, Side};

const JMP: u8 = 1;
const S_GE: u8 = 2;
const S_LE: u8 = 3;
const D_GE: u8 = 4;
const D_LE: u8 = 5;
const S_COND: u8 = 7;
const D_COND: u8 = 8;
const CGROUP_COND: u8 = 13;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// Longer programs are not sent: the kernel runs them for every socket, and attributes end at 64 KiB.
const MOST_BYTES: usize = 4096;

/// A comparison: its code, and what follows its header.
struct Test {
    code: u8,
    operand: Vec<u8>,
}

impl Test {
    fn len(&self) -> usize {
        4 + self.operand.len()
    }
}

/// Tests that must all hold.
type Alternative = Vec<Test>;

/// The program for a selection; `None` when there is nothing to test or it would be too long.
pub(super) fn program(selection: &Selection) -> Option<Vec<u8>> {
    let ports = selection.ports.iter().flat_map(|(side, port)| each(*side).map(|remote| port_is(remote, *port)));
    let prefixes = selection.prefixes.iter().flat_map(|p| each(p.side).map(|remote| vec![address_in(remote, p)]));
    let cgroups =
        selection.cgroups.iter().map(|id| vec![Test { code: CGROUP_COND, operand: id.to_ne_bytes().to_vec() }]);
    let rules: Vec<Vec<Alternative>> = [ports.collect(), prefixes.collect(), cgroups.collect()]
        .into_iter()
        .filter(|rule: &Vec<Alternative>| !rule.is_empty())
        .collect();
    let len: usize = rules.iter().map(|rule| rule_len(rule)).sum();
    (len > 0 && len <= MOST_BYTES).then(|| assemble(&rules, len))
}

/// The ends that a rule tests; `true` is the other end.
fn each(side: Side) -> impl Iterator<Item = bool> {
    [false, true].into_iter().filter(move |remote| match side {
        Side::Local => !remote,
        Side::Remote => *remote,
        Side::Either => true,
    })
}

/// Equality is younger than the two orderings.
fn port_is(remote: bool, port: u16) -> Alternative {
    let [a, b] = port.to_ne_bytes();
    let operand = vec![0, 0, a, b];
    let (least, most) = if remote { (D_GE, D_LE) } else { (S_GE, S_LE) };
    vec![Test { code: least, operand: operand.clone() }, Test { code: most, operand }]
}

/// `struct inet_diag_hostcond`: family, length of the prefix, padding, port (-1: any), address.
fn address_in(remote: bool, prefix: &Prefix) -> Test {
    let (family, address) = match prefix.network {
        IpAddr::V4(ip) => (AF_INET, ip.octets().to_vec()),
        IpAddr::V6(ip) => (AF_INET6, ip.octets().to_vec()),
    };
    let longest = (address.len() * 8) as u8;
    let mut operand = vec![family, prefix.length.min(longest), 0, 0];
    operand.extend_from_slice(&(-1_i32).to_ne_bytes());
    operand.extend_from_slice(&address);
    Test { code: if remote { D_COND } else { S_COND }, operand }
}

/// Each alternative ends with a jump to the end of its rule.
fn alternative_len(alternative: &Alternative) -> usize {
    alternative.iter().map(Test::len).sum::<usize>() + 4
}

fn rule_len(rule: &[Alternative]) -> usize {
    rule.iter().map(alternative_len).sum()
}

/// Every operation says how far to go when it holds (to the next operation, which is also how the kernel checks where jumps
/// may land) and when it does not: a test goes to the next alternative, or, in the last one, four bytes past the end of the
/// program, which rejects. The end itself accepts.
fn assemble(rules: &[Vec<Alternative>], len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len);
    for rule in rules {
        let rule_end = out.len() + rule_len(rule);
        for (at, alternative) in rule.iter().enumerate() {
            let next = if at + 1 == rule.len() { len + 4 } else { out.len() + alternative_len(alternative) };
            for test in alternative {
                let no = next - out.len();
                push_op(&mut out, test.code, test.len(), no);
                out.extend_from_slice(&test.operand);
            }
            let no = rule_end - out.len();
            push_op(&mut out, JMP, 4, no);
        }
    }
    out
}

fn push_op(out: &mut Vec<u8>, code: u8, yes: usize, no: usize) {
    out.extend_from_slice(&[code, yes as u8]);
    out.extend_from_slice(&(no as u16).to_ne_bytes());
}
