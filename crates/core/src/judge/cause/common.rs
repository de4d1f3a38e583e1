//! Functions that causes found in the requests' paths share: the loss to one thing, its place, and the candidate made of it.
use std::collections::BTreeMap;

use parshall_evidence::{Evidence, Frame, Hop, HopKind, Limit, PeerCommand, Place, function_and_line};

use super::base::{Candidate, Outcome, RequestLoss, denied};
use crate::judge::denial::{Denial, share};
use crate::judge::facts::requests::{
    Kept, PartFact, ServiceFact, Turn, UsedUp, connections_of, given_up, is_full, limit_in_hands, queue_of, turn_of,
    used_up, workers_keep_one_each,
};
use crate::judge::facts::{Facts, Lost, Spent};
use crate::judge::words;
use crate::judge::{chain, confidence};
use crate::report;
use crate::sorting::StableSort as _;
use crate::stats::ratio;
use crate::units;

/// A cause in the requests' paths is named from this share of the time of the affected services' requests.
pub const MIN_REQUEST_SHARE: f64 = 0.30;
/// The same for a limit that keeps clients out: those that are served may wait for long for what others bring, which is no loss.
const MIN_KEPT_OUT_SHARE: f64 = 0.10;
/// A client that is kept out waits until another one is done, which takes longer than it takes to wake up somebody who accepts.
const KEPT_OUT_NS: f64 = 20e6;
/// Share of a cause's time whose end must have been seen for high confidence.
const END_SEEN: f64 = 0.7;

/// The requests' loss to one use of time.
pub struct Waits<'f, 'a> {
    facts: &'f Facts<'a>,
    spent: Spent,
    /// The service that lost most to it.
    pub service: &'f ServiceFact<'a>,
    /// Its largest part.
    part: &'f PartFact<'a>,
    /// The last hop of that part.
    pub leaf: &'f Hop,
    /// The loss.
    pub loss: RequestLoss,
}

impl<'f, 'a> Waits<'f, 'a> {
    /// The loss of the services on the account to `spent`; None when there is none.
    pub fn on(facts: &'f Facts<'a>, spent: Spent) -> Option<Waits<'f, 'a>> {
        let ns_of = |s: &ServiceFact<'_>| s.lost_to(spent).map(|p| p.ns).sum::<f64>();
        let affected: Vec<(&ServiceFact<'_>, f64)> =
            facts.requests.counted().map(|s| (s, ns_of(s))).filter(|(_, ns)| *ns > 0.0).collect();
        let (service, _) = affected.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
        let part = service.lost_to(spent).max_by(|a, b| a.ns.total_cmp(&b.ns))?;
        let ns: f64 = affected.iter().map(|(_, ns)| ns).sum();
        let requests: f64 = affected.iter().map(|(s, _)| s.requests).sum();
        // A slice that cuts requests shows time of more of them than it counts. None lost more than the longest time of each part.
        let parts = || affected.iter().flat_map(|(s, _)| s.lost_to(spent));
        let longest: f64 = parts().map(|p| p.rec.longest_ns as f64).sum();
        let loss = RequestLoss {
            ns,
            time_ns: affected.iter().map(|(s, _)| s.time_ns).sum(),
            each_ns: ratio(ns, requests).min(longest),
            requests: affected.iter().map(|(s, _)| s.seen_requests()).fold(0, u64::saturating_add),
            step: 1.0,
            least_ns: 0.0,
            chain: chain::of(facts, service, spent),
            seen: parts().filter(|p| chain::is_end_seen(facts, p)).map(|p| p.ns).sum::<f64>() >= END_SEEN * ns,
            waited: affected.iter().any(|(s, _)| s.rec.waited),
        };
        Some(Waits { facts, spent, service, part, leaf: part.rec.hops.last()?, loss })
    }

    /// The hop of the largest part that this one chooses, the innermost first.
    pub fn hop(&self, choose: impl Fn(&Hop) -> bool) -> Option<&'f Hop> {
        self.part.rec.hops.iter().rev().find(|h| choose(h))
    }

    /// The hops of a deadlock in the order in which they wait for each other: the last is the first again.
    pub fn cycle(&self) -> Vec<&'f Hop> {
        let hops = &self.part.rec.hops;
        let begin = hops.iter().position(|h| h.tid == self.leaf.tid).unwrap_or(0);
        hops[begin..].iter().collect()
    }

    /// Where requests of the largest part wait for their turn to be passed on.
    pub fn turn(&self) -> Option<Turn<'f>> {
        turn_of(self.facts.requests.all, self.part.rec)
    }

    /// The pool of its process of which nothing is free, where no request of the largest part was answered.
    pub fn used_up(&self) -> Option<UsedUp<'f>> {
        let unanswered = self.leaf.kind == HopKind::OtherRequest;
        unanswered.then(|| used_up(self.service.rec, self.facts.capture)).flatten()
    }

    /// Requests of its service that clients gave up.
    pub fn given_up(&self) -> u64 {
        given_up(self.service.rec, self.facts.capture)
    }

    /// How many connections its process has open, where requests of the largest part wait for it to accept one more although it has time.
    pub fn full(&self) -> Option<u64> {
        let held = || connections_of(self.facts.capture, self.service.rec.address.port()).get(&self.leaf.pid).copied();
        is_full(self.part.rec).then(held).flatten()
    }

    /// The share of the requests' time from which on it is named that a process accepts nobody although it has time.
    pub fn min_kept_out_share(&self) -> f64 {
        let kept_out = || self.service.lost_to(self.spent).map(|part| part.rec).filter(|rec| is_full(rec));
        let ns: f64 = kept_out().map(|rec| rec.ns as f64).sum();
        let requests: f64 = kept_out().map(|rec| rec.requests as f64).sum();
        if ratio(ns, requests) >= KEPT_OUT_NS { MIN_KEPT_OUT_SHARE } else { MIN_REQUEST_SHARE }
    }

    /// The hop in front of which requests of the largest part lie unread, and how many its service works on at a time.
    pub fn queue(&self) -> Option<(&'f Hop, u32)> {
        queue_of(self.facts.requests.all, &self.part.rec.hops, self.facts.capture)
    }

    /// The limit on what the service of a process has in its hands.
    pub fn limit_in_hands(&self, pid: u32) -> Option<&'f Limit> {
        limit_in_hands(self.facts.requests.all, pid)
    }

    /// The server behind the queue of the largest part that takes no more requests at a time than it has now, named, and how many: more
    /// workers before it would only wait there.
    pub fn limit_beyond(&self) -> Option<(String, u32)> {
        let hops = &self.part.rec.hops;
        let queue = hops.iter().position(|hop| hop.kind.is_queue())?;
        let mut asked = hops[queue..].windows(2).filter(|pair| pair[0].kind == HopKind::Reply && pair[1].pid != 0);
        asked.find_map(|pair| {
            let limit = self.limit_in_hands(pair[1].pid)?;
            Some((chain::named(&pair[1]), limit.most))
        })
    }

    /// The service whose workers each keep a connection while these requests wait to be accepted, if it is so.
    pub fn kept_by_workers(&self) -> Option<Kept<'f>> {
        let waited = self.service.rec.waited && self.leaf.kind == HopKind::AcceptQueue;
        let all = self.facts.requests.all;
        waited.then(|| workers_keep_one_each(self.service.rec, all, self.facts.capture)).flatten()
    }

    /// The last hop that is a thread: beyond it is nothing but the way to another host.
    pub fn last_thread(&self) -> &'f Hop {
        self.hop(|hop| hop.tid != 0).unwrap_or(self.leaf)
    }

    /// The hop that lets the requests wait for their turn, if one does: what comes behind it is the way of others.
    pub fn keeper(&self) -> Option<&'f Hop> {
        self.hop(|hop| hop.kind == HopKind::Turn)
    }

    /// The hop after that one.
    pub fn after(&self, hop: &Hop) -> Option<&'f Hop> {
        let at = self.part.rec.hops.iter().position(|h| std::ptr::eq(h, hop))?;
        self.part.rec.hops.get(at + 1)
    }

    /// The sentence of a finding. How much of the requests' time it takes is the finding's share; of requests that did nothing but
    /// wait, `3 requests have waited since before the window (the longest for 34 s) and not been answered` is put in front.
    pub fn summary(&self, sentence: &str) -> String {
        let rec = self.service.rec;
        if !rec.waited {
            return sentence.to_string();
        }
        let requests = units::plural(rec.unanswered, "request has", "requests have");
        let before = self.part.rec.longest_ns >= self.facts.capture.window_ns;
        let since = if before { " since before the window" } else { "" };
        let longest = units::duration(rec.unanswered_longest_ns as f64);
        let sentence = words::behind_colon(sentence, self.service.names());
        format!("{requests} waited{since} (the longest for {longest}) and not been answered: {sentence}")
    }

    /// Mean length of it in a request, in words; of requests that only waited, the longest.
    pub fn each(&self) -> String {
        if self.service.rec.waited {
            return units::duration(self.service.rec.unanswered_longest_ns as f64);
        }
        units::duration(self.loss.each_ns)
    }

    /// The longest time of the largest part, nanoseconds.
    pub fn longest_ns(&self) -> f64 {
        self.part.rec.longest_ns as f64
    }

    /// Whether what was seen of the service is one request at a time.
    pub fn at_a_time(&self) -> f64 {
        ratio(self.service.rec.worked_ns as f64, self.service.rec.working_ns as f64)
    }

    /// How many requests it happened to, and for how long: over all parts of the service's time that went to it, as in the sentence.
    fn waits(&self) -> Evidence {
        let parts = || self.service.lost_to(self.spent).map(|part| part.rec);
        let longest_ns = parts().map(|rec| rec.longest_ns).max().unwrap_or(0);
        let in_parts = parts().map(|rec| rec.requests).fold(0, u64::saturating_add);
        let seen = self.service.seen_requests();
        // Of these alone the ways are known.
        let followed = match self.service.rec.followed_requests {
            0 => seen,
            followed => followed,
        };
        let affected = in_parts.min(followed);
        let share = ratio(affected as f64, followed as f64);
        let mean_ms = ratio(self.loss.each_ns, share) / 1e6;
        // A request that waited in several parts waited longer than in any of them.
        let longest_ms = Some(longest_ns as f64 / 1e6).filter(|longest| affected == in_parts && *longest >= mean_ms);
        Evidence {
            what: format!("requests {}", self.spent.label()),
            count: Some((share * seen as f64).round() as u64),
            scaled: affected > 0 && followed != seen,
            mean_ms: (affected > 0).then_some(mean_ms),
            max_ms: longest_ms.filter(|_| affected > 0),
            ..Evidence::default()
        }
    }

    /// The candidate, with the evidence that all of these have put in front.
    pub fn candidate(self, summary: String, evidence: Vec<Evidence>, fix: impl Into<String>) -> Candidate {
        let leaf = self.keeper().unwrap_or(self.leaf);
        let mut list = vec![self.waits()];
        list.extend(evidence);
        let place = Place {
            pid: (leaf.pid != 0).then_some(leaf.pid),
            tid: (leaf.tid != 0).then_some(leaf.tid),
            requests: self.loss.requests,
            ..Place::default()
        };
        let mut candidate = Candidate::new(Lost::default(), place, summary, list, fix);
        candidate.min_share = MIN_REQUEST_SHARE;
        candidate.gaps = confidence::of_path(self.facts, self.service, self.spent, self.loss.seen);
        candidate.peer = self.closer(leaf);
        candidate.requests = Some(self.loss);
        candidate
    }

    /// The next command to type: a look at the process where the chain ends, if the user did not ask about that one.
    fn closer(&self, leaf: &Hop) -> Option<PeerCommand> {
        let subject = &self.facts.capture.subject;
        if let Some(host) =
            (leaf.kind == HopKind::Reply).then(|| leaf.target.parse::<std::net::SocketAddr>().ok()).flatten()
        {
            let elsewhere = chain::is_elsewhere(self.facts, &leaf.target);
            // Nobody can be observed at no address, and what was just observed shows the same again.
            if host.port() == 0 || host.ip().is_unspecified() || !elsewhere && subject.ports.contains(&host.port()) {
                return None;
            }
            let command = format!("parshall attach --port {}", host.port());
            return Some(PeerCommand { command, host: elsewhere.then(|| words::host(host)) });
        }
        let alone = subject.pids.len() == 1 && subject.pids.contains(&leaf.pid);
        let asked = self.service.rec.pids.contains(&leaf.pid);
        (leaf.pid != 0 && !asked && !alone)
            .then(|| PeerCommand { command: format!("parshall attach --pid {}", leaf.pid), host: None })
    }
}

/// The answer of a cause that owns no lost time of requests: the share of their time that speaks against it.
pub fn not_spent(facts: &Facts<'_>, spent: Spent) -> Outcome {
    if facts.requests.is_empty() {
        return Outcome::Untested("single requests were not seen".to_string());
    }
    let of = share(facts.requests.share(spent), format!("of the requests' time {}", spent.label()));
    denied(Denial::of(of).because("too short to make a request slow"))
}

/// The samples that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Those in user mode.
    User,
    /// Those in the kernel.
    Kernel,
}

/// The functions in which threads were sampled most in one mode, at most three; the first carries a stack.
pub fn hottest(facts: &Facts<'_>, of: impl Fn(u32) -> bool, mode: Mode) -> Vec<Evidence> {
    let mut by_name = BTreeMap::<&str, (u64, u64, usize, &str)>::new();
    let mut total = 0u64;
    for sample in facts.capture.samples.iter().filter(|s| of(s.tid) && s.user == (mode == Mode::User)) {
        total = total.saturating_add(sample.count);
        let Some(stack) = sample.stack.map(|i| i as usize).filter(|&i| i < facts.capture.stacks.len()) else {
            continue;
        };
        let frames = &facts.capture.stacks[stack].frames;
        let Some(frame) = innermost(frames, mode) else { continue };
        // A function that an interpreter runs counts with all of its lines, and is shown with the one of its most frequent stack.
        let function = function_and_line(&frame.name).map_or(frame.name.as_str(), |(function, _)| function);
        let entry = by_name.entry(function).or_insert((0, 0, stack, &frame.name));
        entry.0 = entry.0.saturating_add(sample.count);
        if sample.count > entry.1 {
            (entry.1, entry.2, entry.3) = (sample.count, stack, &frame.name);
        }
    }
    let mut list: Vec<_> = by_name.into_iter().collect();
    list.stable_sort_by(|a, b| b.1.0.cmp(&a.1.0).then(a.0.cmp(b.0)));
    list.into_iter()
        .take(3)
        .enumerate()
        .map(|(rank, (_, (count, _, stack, name)))| {
            let frames = &facts.capture.stacks[stack].frames;
            Evidence {
                count: Some(count),
                stack: if rank == 0 { frames.iter().take(24).map(|f| f.name.clone()).collect() } else { Vec::new() },
                ..words::valued(name, ratio(count as f64, total as f64), "1")
            }
        })
        .collect()
}

/// The frame that a sample counts for. In an interpreter it is the application's function, whatever that calls.
fn innermost(frames: &[Frame], mode: Mode) -> Option<&Frame> {
    match mode {
        Mode::Kernel => frames.iter().find(|f| f.kernel),
        Mode::User => chain::own_interpreted(frames).or_else(|| frames.iter().find(|f| !f.kernel)),
    }
}

/// The same for all threads of a process.
pub fn hottest_of_process(facts: &Facts<'_>, pid: u32, mode: Mode) -> Vec<Evidence> {
    hottest(facts, |tid| facts.thread(tid).is_some_and(|t| t.rec.pid == pid), mode)
}

/// The sentence that names the first of these functions: where most of the samples are in it, it says so, and else gives its share.
pub fn most_in(hot: &[Evidence]) -> String {
    let Some(first) = hot.first() else { return String::new() };
    let name = report::simplified(&first.what);
    match first.value {
        Some(share) if share < 0.5 => {
            format!(" Its most frequent function is {name}, with {} of the samples.", units::percent(share))
        }
        Some(share) => format!(" {} of the samples are in {name}.", units::percent(share)),
        None => format!(" Most samples are in {name}."),
    }
}

/// How long a request takes with `more` than a limit lets through now. By Little's law, that is as long as one is under way times those
/// that are outstanding, divided by the limit.
pub fn limited_ns(limit: &Limit, more: u32) -> f64 {
    let outstanding = f64::from(limit.most) + limit.waiting;
    let each_ns = limit.each_ns as f64;
    (ratio(outstanding, f64::from(limit.most) + f64::from(more)) * each_ns).max(each_ns)
}

/// Advice where a server takes no more than `most` at a time, and workers wait for it.
pub fn beyond(server: &str, most: u32) -> String {
    format!(
        "{server} takes no more than {most} at a time: raise that first, since more workers before it would only wait there."
    )
}

/// A limit as evidence: what it is, how many wait, and what one more would give.
pub fn limited(limit: &Limit) -> Vec<Evidence> {
    if limit.next.is_none() && limit.by_connections {
        return vec![
            words::valued("connections served at a time, at most", f64::from(limit.most), "connections"),
            words::valued("connections waiting beside them, mean", limit.waiting, "connections"),
            words::valued("time for which one is served, mean", limit.each_ns as f64 / 1e6, "ms"),
        ];
    }
    vec![
        words::valued("requests under way at a time, at most", f64::from(limit.most), "requests"),
        words::valued("requests waiting beside them, mean", limit.waiting, "requests"),
        words::valued("time for which one is under way, mean", limit.each_ns as f64 / 1e6, "ms"),
        words::valued("the same with its wait for its turn, by these figures", limited_ns(limit, 0) / 1e6, "ms"),
        words::valued("the same if one more were under way at a time", limited_ns(limit, 1) / 1e6, "ms"),
    ]
}

/// A figure of the service as evidence.
pub fn outstanding(service: &ServiceFact<'_>) -> Evidence {
    words::valued("requests outstanding, mean", service.outstanding, "requests")
}

#[cfg(test)]
mod tests {
    use parshall_evidence::HopKind;

    use crate::testkit::service::{Hops, ServiceBuilder, with};

    #[test]
    fn nobody_is_asked_to_type_the_same_command_again() {
        let report = |target: &str, pids: Vec<u32>| {
            let way = Hops::new().thread(300, 301, "inner").on(HopKind::Reply, "recvfrom").target(target);
            let mut capture = with(ServiceBuilder::new(7000).requests(60, 50.0).part(way, 1.0));
            capture.subject.pids = pids;
            crate::judge::judge(&capture).findings[0].fix.peer.clone().map(|peer| peer.command)
        };
        assert_eq!(report("10.9.0.2:9000", vec![100]).as_deref(), Some("parshall attach --port 9000"));
        // Port 7000 is what was observed; nobody can be observed at no address.
        assert_eq!(report("127.0.0.1:7000", vec![100]), None);
        assert_eq!(report("0.0.0.0:0", vec![100]), None);
        let disk = |pids: Vec<u32>| {
            let way = Hops::new().thread(300, 301, "inner").on(HopKind::Disk, "fsync");
            let mut capture = with(ServiceBuilder::new(7000).requests(60, 50.0).part(way, 1.0));
            capture.subject.pids = pids;
            crate::judge::judge(&capture).findings[0].fix.peer.clone().map(|peer| peer.command)
        };
        assert_eq!(disk(vec![100]).as_deref(), Some("parshall attach --pid 300"));
        assert_eq!(disk(vec![300]), None);
    }

    #[test]
    fn the_first_row_of_the_evidence_is_over_all_parts() {
        let disk = |tid: u32| Hops::new().thread(100, tid, "app").on(HopKind::Disk, "fsync");
        let service = ServiceBuilder::new(7000).requests(60, 20.0).part(disk(101), 0.5).part(disk(102), 0.4).cpu(0.1);
        let mut capture = with(service);
        let first = |capture: &parshall_evidence::Capture| crate::judge::judge(capture).findings[0].evidence[0].clone();
        // Each request waited in both, for nine tenths of its time: longer than in one of them.
        let both = first(&capture);
        assert_eq!((both.what.as_str(), both.count), ("requests waiting for the disk", Some(60)));
        assert_eq!((both.mean_ms, both.max_ms), (Some(18.0), None));
        // Half of them waited in each.
        let parts = &mut capture.services[0].path;
        parts.iter_mut().for_each(|part| part.requests = 30);
        let one_each = first(&capture);
        assert_eq!((one_each.count, one_each.mean_ms, one_each.max_ms), (Some(60), Some(18.0), Some(20.0)));
        // Of twice as many, half were followed, and a third of these waited.
        (capture.services[0].requests, capture.services[0].followed_requests) = (120, 60);
        capture.services[0].path.iter_mut().for_each(|part| part.requests = 10);
        let some = first(&capture);
        assert_eq!((some.count, some.scaled, some.mean_ms), (Some(40), true, Some(27.0)));
    }

    #[test]
    fn functions_say_how_many_of_the_samples_they_have() {
        let hot = |share| super::most_in(&[crate::judge::words::valued("memcpy", share, "1")]);
        assert_eq!(hot(0.64), " 64 % of the samples are in memcpy.");
        assert_eq!(hot(0.032), " Its most frequent function is memcpy, with 3.2 % of the samples.");
        assert_eq!(super::most_in(&[]), "");
    }

    #[test]
    fn no_request_loses_more_than_the_longest() {
        let wait = Hops::new().thread(100, 101, "app").on(HopKind::Timer, "nanosleep");
        let mut capture = with(ServiceBuilder::new(7000).requests(20, 50.0).part(wait, 1.0));
        // Five more were cut: their time is there, and they are not counted.
        let service = &mut capture.services[0];
        service.outstanding_ns = 25 * 50_000_000;
        (service.followed_ns, service.path[0].ns) = (service.outstanding_ns, service.outstanding_ns);
        service.path[0].longest_ns = 50_100_000;
        let report = crate::judge::judge(&capture);
        assert!(report.verdict.summary.contains("50.1 ms a request"), "{}", report.verdict.summary);
        assert!((report.findings[0].lost_ms - 50.1).abs() < 0.01, "{}", report.findings[0].lost_ms);
    }
}
