//! The rules by which figures are made and causes are named, in words: of the answer, of each cause that a report names or has seen something
//! of, and of the accounts of time. Those of causes are the rows of docs/causes.md.
use parshall_evidence::{Report, TimeShare};

use super::page::Basis;

/// The document that has a row for each cause.
const CAUSES: &str = include_str!("../../../../docs/causes.md");

/// A rule. Texts are Markdown with code and emphasis only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its anchor.
    pub id: String,
    /// The cause or the figure that the rule is for, as a heading.
    pub title: String,
    /// Paragraphs.
    pub text: Vec<String>,
    /// Its parts: the anchor, the name and the text of each.
    pub parts: Vec<(String, String, String)>,
}

/// The anchor of a figure's rule.
pub fn anchor(basis: &Basis, report: &Report) -> Option<String> {
    match basis {
        Basis::None => None,
        Basis::Verdict => Some(ANSWER.to_owned()),
        Basis::Finding(at) => report.findings.get(*at).map(|finding| of_cause(&finding.cause)),
        Basis::Requests(state) => request_state(state).map(|_| format!("{REQUESTS}-{state}")),
        Basis::Flows(state) => flow_state(state).map(|_| format!("{FLOWS}-{state}")),
        Basis::Threads(state) => thread_state(state).map(|_| format!("{THREADS}-{state}")),
    }
}

const ANSWER: &str = "rule-answer";
const REQUESTS: &str = "rule-requests";
const FLOWS: &str = "rule-flows";
const THREADS: &str = "rule-threads";

/// The anchor of a cause's rule.
pub fn of_cause(cause: &str) -> String {
    format!("rule-{cause}")
}

/// The rules of a report: of causes that hold first, then of the answer and the accounts, then of other causes of which something was seen.
pub fn rules(report: &Report) -> Vec<Rule> {
    let found = report.findings.iter().filter_map(|finding| cause(&finding.cause));
    let ruled_out = report.ruled_out.iter().filter(|entry| entry.seen).filter_map(|entry| cause(&entry.cause));
    let not_tested = report.not_tested.iter().filter_map(|entry| cause(&entry.cause));
    let requests = report.service.as_ref().map(|service| {
        let known = [
            (Basis::ACCEPT_QUEUE, "in the accept queue", service.time.accept_queue),
            (Basis::UNREAD, "unread in the socket", service.time.unread),
            (Basis::INCOMPLETE, "rest of it not sent by the client yet", service.time.incomplete),
            (Basis::REPLY_UNSENT, "reply not sent yet", service.time.reply_unsent),
        ];
        let whole = [(Basis::WORKING, "worked on", service.time.working)];
        let whole = whole.into_iter().filter(|_| service.time.work.is_empty());
        let known = known.into_iter().chain(whole).filter(|(.., share)| *share > 0.0);
        let known = known.map(|(id, label, _)| (id.to_owned(), label.to_owned()));
        let work = service.time.work.iter().map(|work| (work.state.clone(), format!("worked on: {}", work.label)));
        let text = "The time from the arrival of each request until its reply was sent, summed over all requests and divided in the order \
                    in which they pass. Of requests whose way is followed, what the service's own threads did is the first hop of the way; \
                    shares are of all of that time.";
        account(REQUESTS, "Time of the requests", text, known.chain(work), request_state)
    });
    let states = |states: &[TimeShare]| -> Vec<(String, String)> {
        states.iter().map(|state| (state.state.clone(), state.label.clone())).collect()
    };
    let flows = "The wall time of each flow, divided by the state of its socket between two events: what it had unsent, in flight and unread, \
                 and its windows, as they were before the event that ended the interval. Intervals of a millisecond or more are single events; \
                 shorter ones are sums.";
    let threads = "The wall time of each thread. Its CPU time is the scheduler's own sum; what remains is divided as it was observed.";
    let flows = account(FLOWS, "Time of the flows", flows, states(&report.time.flows.states).into_iter(), flow_state);
    let threads =
        account(THREADS, "Time of the threads", threads, states(&report.time.threads.states).into_iter(), thread_state);
    let accounts = requests.into_iter().chain([flows, threads]).filter(|rule| !rule.parts.is_empty());
    let mut rules: Vec<Rule> = found.chain([answer()]).chain(accounts).chain(ruled_out).chain(not_tested).collect();
    let mut known = std::collections::BTreeSet::new();
    rules.retain(|rule| known.insert(rule.id.clone()));
    rules
}

/// The part of the document before its table: when a cause is named, and what is lost time.
fn answer() -> Rule {
    let before = CAUSES.split("\n| id |").next().unwrap_or_default();
    let mut text: Vec<String> = Vec::new();
    for paragraph in before.split("\n\n").skip(1) {
        // A list is a paragraph for each of its items.
        for line in paragraph.lines() {
            let item = line.split_once(". ").is_some_and(|(number, _)| number.bytes().all(|b| b.is_ascii_digit()));
            match text.last_mut() {
                Some(last) if !item && !last.is_empty() => {
                    last.push(' ');
                    last.push_str(line.trim());
                }
                _ => text.push(line.trim().to_owned()),
            }
        }
        text.push(String::new());
    }
    text.retain(|paragraph| !paragraph.is_empty());
    Rule { id: ANSWER.to_owned(), title: "How a cause is named".to_owned(), text, parts: Vec::new() }
}

/// The row of a cause.
fn cause(id: &str) -> Option<Rule> {
    let rows = CAUSES.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
    let row =
        rows.map(|row| row.splitn(2, "` | ")).find_map(|mut row| (row.next() == Some(id)).then(|| row.next())?)?;
    let cells: Vec<&str> = row.split(" | ").collect();
    let [mechanism, evidence, alike, _fix] = cells.as_slice() else { return None };
    Some(Rule {
        id: of_cause(id),
        title: id.replace('-', " "),
        text: vec![
            (*mechanism).to_owned(),
            format!("*Counted as such:* {evidence}."),
            format!("*Told from others by:* {}.", alike.trim_end_matches('.')),
        ],
        parts: Vec::new(),
    })
}

fn account(
    id: &str,
    title: &str,
    text: &str,
    states: impl Iterator<Item = (String, String)>,
    words: fn(&str) -> Option<&'static str>,
) -> Rule {
    let parts = states.filter_map(|(state, label)| Some((format!("{id}-{state}"), label, words(&state)?.to_owned())));
    Rule { id: id.to_owned(), title: title.to_owned(), text: vec![text.to_owned()], parts: parts.collect() }
}

/// By the ids of [`Basis::Requests`].
fn request_state(state: &str) -> Option<&'static str> {
    Some(match state {
        Basis::ACCEPT_QUEUE => "From the end of the handshake until a thread called accept() for the connection.",
        Basis::UNREAD => "From the arrival of the request's first byte at the socket until a thread had read it.",
        Basis::INCOMPLETE => "A thread had read the begin of the request, and slept until the client sent more.",
        Basis::WORKING => "From the end of the first read until the begin of the reply.",
        Basis::REPLY_UNSENT => {
            "The reply was written and lay in the socket: held by Nagle's algorithm or a cork, or for a window, pacing, the local queue or a \
             retransmission."
        }
        "on-cpu" => "The thread that had the request ran: time on a CPU, user and kernel, which has no single events.",
        "run-queue" => "The thread could run, and others ran on its CPU.",
        "throttled" => "The thread's control group had used up its CPU quota for the period.",
        "stopped" => "The process was stopped, by a signal, a debugger or the freezer.",
        "deadlock" => "The thread slept for one that, directly or through others, waited for it.",
        "lock" => {
            "The thread slept in futex or for a file lock until another thread, which was not idle meanwhile, released it; or in a function that \
             only waits for a lock, also where its sleep has a limit and is repeated."
        }
        "turn" => "As many requests as ever were under way at the next server, and this one waited for its turn.",
        "worker" => "The thread slept until another one had done what it was given to do.",
        "disk" => "The thread slept in a call on a file or a block device.",
        "memory" => "The thread slept until memory was read in or reclaimed.",
        "timer" => "The thread slept until a time: a sleep, a poll interval, a timeout.",
        "reply" => "The thread slept for the reply to a request that it had sent.",
        "close" => {
            "The thread had received a reply, nothing more came, and the server closed the connection at the end of the sleep."
        }
        "name-server" => "The thread slept for the answer of a name server.",
        "pipe" => "The thread slept for a pipe, a terminal or a UNIX socket.",
        "client" => "The thread slept for the rest of the request.",
        "send" => "The thread slept until the receiver took what it sent.",
        "held" => {
            "Its second part lay in the socket of its sender, whose first part was read: Nagle's algorithm held it."
        }
        "connect" => "The thread slept until a connection was established.",
        "network" => "The request or its reply was on the way between two sockets of this host.",
        "other-request" => "The requested data came with another request: nobody owed the answer before.",
        "idle" => "The thread had the request and waited for events; nothing that blocks it was seen.",
        "kernel" => "The thread slept in the kernel for something else.",
        "unseen" => "Nothing that was observed says what the request waited for.",
        _ => return None,
    })
}

/// By the ids of the states of `judge::ledger::flow`.
fn flow_state(state: &str) -> Option<&'static str> {
    Some(match state {
        "nothing-to-send" => "Nothing was unsent, in flight or unread, and no side owed an answer that was seen.",
        "app-thinking" => "The local application had read a request and had not answered it yet.",
        "held-by-nagle" => {
            "A segment that was not full lay unsent with others in flight and TCP_NODELAY off, until an ACK came after about a round trip."
        }
        "held-by-nagle-delayed-ack" => {
            "The same hold, ended by an ACK that a delayed-ACK timer sent, or that came after the time such a timer takes."
        }
        "corked" => "A segment that was not full lay unsent with nothing in flight: TCP_CORK or MSG_MORE.",
        "in-flight" => "All was sent and not acknowledged yet, for one round trip at most.",
        "ack-delayed" => "All was sent, and the acknowledgement took longer than a round trip.",
        "loss-recovery" => "Segments were lost, and fast recovery repaired it.",
        "retransmission-timeout" => "Segments were lost, and the retransmission timer had to notice it.",
        "cwnd-limited" => "Data was unsent and as much in flight as the congestion window allows.",
        "peer-window-limited" => "Data was unsent that does not fit the receive window of the peer.",
        "sndbuf-limited" => "The writer waited for space in the send buffer of its own socket.",
        "paced" => "Data was unsent until the pacing timer allowed the next segment.",
        "qdisc-queued" => "Too much lay in the local qdisc or device for more to be passed on.",
        "reader-waiting" => "Received data lay unread in the socket.",
        "peer-thinking" => "The peer had acknowledged a request and had not answered it yet.",
        "peer-held" => "The peer's Nagle algorithm held its next part until our delayed ACK.",
        "other" => "The flow was connecting or closing, or this part of the time lies between the slices.",
        _ => return None,
    })
}

/// By the ids of the states of `judge::ledger::thread`.
fn thread_state(state: &str) -> Option<&'static str> {
    Some(match state {
        "on-cpu-user" => {
            "CPU time in user mode: the scheduler's sum, divided as the samples are. It has no single events."
        }
        "on-cpu-kernel" => {
            "CPU time in the kernel: the scheduler's sum, divided as the samples are. It has no single events."
        }
        "runnable" => "The thread could run, and others ran on its CPU.",
        "throttled" => "The thread could run, and its control group had used up its quota.",
        "blocked-work-available" => "The thread slept while data lay unread in a socket that it or its process reads.",
        "idle" => "The thread slept with nothing unread, whatever call it slept in. It has no single events.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use parshall_evidence::HopKind;

    use super::*;
    use crate::judge::cause;
    use crate::judge::ledger::{flow, thread};

    #[test]
    fn every_cause_has_its_row_and_every_state_its_words() {
        for known in cause::CAUSES {
            let rule = super::cause(known.id).unwrap_or_else(|| panic!("{} has no row of four cells", known.id));
            assert!(rule.text.iter().all(|text| text.len() > 20 && !text.contains('|')), "{rule:?}");
        }
        assert_eq!(super::cause("no-such-cause"), None);
        for state in flow::State::ALL {
            assert!(flow_state(state.id()).is_some(), "{state:?}");
        }
        for state in thread::State::ALL {
            assert!(thread_state(state.id()).is_some(), "{state:?}");
        }
        let own = [Basis::INCOMPLETE, Basis::WORKING, Basis::REPLY_UNSENT];
        for id in HopKind::ALL.into_iter().map(HopKind::id).chain(own) {
            assert!(request_state(id).is_some(), "{id}");
        }
        let words: Vec<&str> = flow::State::ALL.iter().filter_map(|state| flow_state(state.id())).collect();
        assert_eq!(words.iter().collect::<BTreeSet<_>>().len(), words.len());
    }

    #[test]
    fn the_rule_of_the_answer_has_its_limits_as_paragraphs_of_their_own() {
        let text = answer().text;
        assert!(text[0].starts_with("The causes that `run` and `attach` can name"), "{text:?}");
        assert!(text.iter().any(|part| part.starts_with("1. it accounts for at least 30 %")), "{text:?}");
        assert!(text.iter().any(|part| part.starts_with("*Lost* is time")), "{text:?}");
        assert!(text.iter().all(|part| !part.contains('\n') && !part.starts_with('#')), "{text:?}");
    }
}
