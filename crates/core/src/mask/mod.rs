//! A capture that can be shown in public: addresses, names of hosts, paths, control groups, processes and threads are replaced by
//! pseudonyms, the same everywhere in it. It is judged like any other, and gets the same verdict: names by which causes decide
//! ([`crate::judge::telling`]) stay.
//!
//! Kept are ports, process and thread ids, loopback and wildcard addresses, names of system calls, functions and libraries, and kernel
//! settings.
mod names;

use std::net::{IpAddr, SocketAddr};

use parshall_evidence::timeline::Timeline;
use parshall_evidence::{
    Capture, Frame, Hop, Interpreted, Object, Origin, RelayStart, Stack, Stopper, Waiting, function_and_line,
};

use names::Names;

/// The capture under pseudonyms.
pub fn masked(mut capture: Capture) -> Capture {
    let mut names = Names::default();
    let mut ips: Vec<IpAddr> = Vec::new();
    each_address(&mut capture, &mut |address| ips.push(address.ip()));
    names.addresses(ips);
    each_address(&mut capture, &mut |address| names.address(address));
    programs(&mut names, &mut capture);
    capture.timeline.iter_mut().for_each(|found| timeline(&mut names, found));
    capture.waiting.iter_mut().for_each(|found| waiting(&mut names, found));
    capture.stacks.iter_mut().for_each(|found| stack(&mut names, found));
    capture.cgroups.iter_mut().for_each(|group| names.path(&mut group.path));
    if let Some(counters) = &mut capture.counters {
        counters.memory.iter_mut().for_each(|group| names.path(&mut group.path));
        let queues = counters.namespaces.iter_mut().flat_map(|namespace| &mut namespace.queues);
        for queue in queues.filter(|queue| queue.device != "lo") {
            queue.device = names.pseudonym("device", &queue.device);
        }
    }
    for relay in &mut capture.own_relays {
        if let RelayStart::File { config } = &mut relay.start {
            *config = format!("/{}", names.pseudonym("path", config));
        }
    }
    capture.origin.iter_mut().for_each(|found| origin(&mut names, found));
    // Sentences last, when all names are known.
    hops(&mut capture).for_each(|hop| names.target(&mut hop.target));
    let tails = capture.services.iter_mut().filter_map(|service| service.tail.as_mut());
    tails.flat_map(|tail| &mut tail.blockers).for_each(|blocker| names.sentence(blocker));
    capture.blind.iter_mut().for_each(|sentence| names.sentence(sentence));
    capture.unseen.iter_mut().for_each(|unseen| names.sentence(&mut unseen.what));
    capture
}

fn hops(capture: &mut Capture) -> impl Iterator<Item = &mut Hop> {
    capture.services.iter_mut().flat_map(|service| {
        let tail = service.tail.iter_mut().flat_map(|tail| &mut tail.path);
        service.path.iter_mut().chain(tail).flat_map(|part| &mut part.hops)
    })
}

/// Every address that stands by itself.
fn each_address(capture: &mut Capture, see: &mut impl FnMut(&mut SocketAddr)) {
    for flow in &mut capture.flows {
        see(&mut flow.local);
        see(&mut flow.remote);
    }
    for service in &mut capture.services {
        see(&mut service.address);
        service.limits.iter_mut().filter_map(|limit| limit.next.as_mut()).for_each(&mut *see);
    }
    for hop in hops(capture) {
        if let Object::Peer(address) = &mut hop.object {
            see(address);
        }
    }
    if let Some(counters) = &mut capture.counters {
        counters.listeners.iter_mut().for_each(|listener| see(&mut listener.local));
        counters.udp.iter_mut().for_each(|socket| see(&mut socket.local));
        counters.ports.iter_mut().for_each(|ports| see(&mut ports.remote));
    }
    for socket in capture.timeline.iter_mut().flat_map(|timeline| timeline.sockets.values_mut()) {
        see(&mut socket.local);
        see(&mut socket.remote);
    }
    for end in capture.waiting.iter_mut().flat_map(|waiting| &mut waiting.ends) {
        see(&mut end.local);
        see(&mut end.remote);
    }
}

/// Names of processes and threads, processes first: a thread with the name of its process keeps that in common with it.
fn programs(names: &mut Names, capture: &mut Capture) {
    capture.subject.comms.iter_mut().for_each(|name| names.program("process", name));
    if let Some(command) = &mut capture.command {
        names.program("process", &mut command.name);
    }
    for followed in &mut capture.followed {
        names.program("process", &mut followed.comm);
        title(names, &mut followed.title);
    }
    for hop in hops(capture) {
        names.program("process", &mut hop.process);
        names.program("thread", &mut hop.thread);
        title(names, &mut hop.title);
        match &mut hop.object {
            Object::None | Object::Peer(_) => {}
            Object::Thread(runner) => names.program("process", &mut runner.process),
            Object::Stopper(found) => stopper(names, found),
        }
    }
    if let Some(timeline) = &mut capture.timeline {
        timeline.names.values_mut().for_each(|found| names.program("process", &mut found.process));
        timeline.unobserved_ends.values_mut().for_each(|holder| names.program("process", &mut holder.process));
    }
    if let Some(waiting) = &mut capture.waiting {
        waiting.threads.iter_mut().for_each(|thread| names.program("process", &mut thread.process));
    }
    capture.threads.iter_mut().for_each(|thread| names.program("thread", &mut thread.comm));
    capture.thread_stalls.iter_mut().for_each(|stall| names.program("thread", &mut stall.waker_comm));
    for cell in capture.events.iter_mut().flat_map(|event| &mut event.cells) {
        names.program("process", &mut cell.process);
        names.program("thread", &mut cell.thread);
    }
    further(names, capture);
}

/// Names of processes and threads. Of log lines nothing stays: they are content, and may say anything.
fn further(names: &mut Names, capture: &mut Capture) {
    if let Some(uring) = &mut capture.uring {
        for cell in &mut uring.cells {
            names.program("process", &mut cell.process);
            names.program("thread", &mut cell.thread);
        }
        for waits in &mut uring.waits {
            names.program("process", &mut waits.process);
            names.program("thread", &mut waits.thread);
        }
    }
    for line in capture.log.iter_mut().flat_map(|log| &mut log.lines) {
        names.program("process", &mut line.process);
        if !is_stream(&line.to) {
            names.target(&mut line.to);
        }
        line.text = "(masked)".to_owned();
        line.cut = false;
    }
}

fn is_stream(to: &str) -> bool {
    matches!(to, "stdout" | "stderr")
}

fn title(names: &mut Names, title: &mut String) {
    if !title.is_empty() {
        *title = names.pseudonym("title", title);
    }
}

fn timeline(names: &mut Names, timeline: &mut Timeline) {
    timeline.names.values_mut().for_each(|found| names.program("thread", &mut found.thread));
    timeline.titles.values_mut().for_each(|found| title(names, found));
    timeline.files.values_mut().for_each(|path| names.target(path));
    timeline.stopped_by.values_mut().for_each(|found| stopper(names, found));
}

fn waiting(names: &mut Names, waiting: &mut Waiting) {
    for thread in &mut waiting.threads {
        names.program("thread", &mut thread.thread);
        title(names, &mut thread.title);
        names.target(&mut thread.target);
        thread.stopped_by.iter_mut().for_each(|found| stopper(names, found));
    }
}

fn stopper(names: &mut Names, stopper: &mut Stopper) {
    match stopper {
        Stopper::Sender { comm, .. } | Stopper::Debugger { comm, .. } => names.program("process", comm),
        Stopper::Freezer { group } => names.path(group),
        Stopper::Words(words) => names.sentence(words),
    }
}

/// Functions stay. Interpreters have names with the path of a file in them.
fn stack(names: &mut Names, stack: &mut Stack) {
    for frame in stack.frames.iter_mut().filter(|frame| !frame.kernel) {
        if let Some(from) = frame.interpreted() {
            *frame = interpreted(names, frame, from);
            continue;
        }
        names.object(&mut frame.module);
        if let Some(at) = frame.name.find([' ', ':']).and_then(|at| Some(at + frame.name[at..].find('/')?))
            && frame.name[..at].ends_with([' ', ':'])
        {
            let mut path = frame.name.split_off(at);
            names.target(&mut path);
            frame.name.push_str(&path);
        }
    }
}

/// Files of the application have pseudonyms, those of packages and of the language do not.
fn interpreted(names: &mut Names, frame: &Frame, from: Interpreted) -> Frame {
    let mut object = frame.object().to_owned();
    names.object(&mut object);
    let mut name = frame.name.clone();
    let parts = function_and_line(&frame.name).and_then(|(text, line)| Some((text.rsplit_once(" (")?, line)));
    if let Some(((function, file), line)) = parts.filter(|_| from == Interpreted::Application) {
        let mut path = format!("/{file}");
        names.path(&mut path);
        name = format!("{function} ({}:{line})", path.trim_start_matches('/'));
    }
    Frame::of_interpreter(name, &object, from)
}

/// Options and numbers of the command line stay, and the values of the others do not.
fn origin(names: &mut Names, origin: &mut Origin) {
    if !origin.host.is_empty() {
        origin.host = names.pseudonym("host", &origin.host);
    }
    for word in origin.command_line.iter_mut().skip(2) {
        let (option, value) = match word.split_once('=') {
            Some((option, value)) if option.starts_with("--") => (format!("{option}="), value),
            // `-oFILE`
            _ if word.starts_with('-') && !word.starts_with("--") && word.is_char_boundary(2) => {
                (word[..2].to_owned(), &word[2..])
            }
            _ => (String::new(), word.as_str()),
        };
        if !is_plain(value) {
            let made = names.pseudonym("argument", value);
            *word = format!("{option}{made}");
        }
    }
}

/// An option, or numbers with a unit or without: `7000`, `500ms`, `4120,4121`.
fn is_plain(value: &str) -> bool {
    let is_number = |part: &str| {
        let number = part.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        part.len() - number.len() <= 2 && number.parse::<f64>().is_ok()
    };
    value.is_empty() || value.starts_with("--") || value.split(',').all(is_number)
}

#[cfg(test)]
mod tests;
