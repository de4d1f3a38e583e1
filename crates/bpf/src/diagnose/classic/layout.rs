//! Reads the layouts of this kernel's tracepoints, and checks that they have the fields that the programs read.
use std::fs;
use std::path::Path;

use super::error::Error;
use super::format::{Field, Format};

/// A program, and the tracepoint it is attached to.
#[derive(Debug, Clone)]
pub struct Tracepoint {
    /// Name of the program.
    pub program: &'static str,
    /// The tracepoint's id in this kernel.
    pub id: u64,
}

/// Offsets of the fields that the programs read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Offsets {
    pub prev_pid: u32,
    pub prev_state: u32,
    pub next_pid: u32,
    pub waking_pid: u32,
    pub enter_id: u32,
    pub enter_args: u32,
    pub exit_ret: u32,
    pub new_pid: u32,
    pub new_flags: u32,
    pub retrans: Option<Ports>,
    pub rst_in: Option<Ports>,
    pub rst_out: Option<Ports>,
}

/// Offsets of the ports in the record of a TCP tracepoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Ports {
    pub sport: u32,
    pub dport: u32,
    /// The ports are in socket addresses, in network byte order.
    pub swapped: bool,
}

/// The layout of this kernel's tracepoints.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Attached for the whole window.
    pub always: Vec<Tracepoint>,
    /// Attached in slices.
    pub slice: Vec<Tracepoint>,
    /// The fields.
    pub offsets: Offsets,
    /// Observations that this kernel does not allow, one sentence each.
    pub missing: Vec<&'static str>,
}

/// Reads the layouts below `tracefs`.
pub fn read(tracefs: &Path) -> Result<Layout, Error> {
    let open = |system: &'static str, name: &'static str| -> Result<Format, Error> {
        let path = tracefs.join("events").join(system).join(name).join("format");
        let text = fs::read_to_string(&path).map_err(|source| Error::Tracepoint { name, source })?;
        Format::parse(&text).ok_or(Error::Layout { name, field: "ID" })
    };
    let switch = open("sched", "sched_switch")?;
    let waking = open("sched", "sched_waking")?;
    let (enter, exit) = (open("raw_syscalls", "sys_enter")?, open("raw_syscalls", "sys_exit")?);
    let (new_task, end) = (open("task", "task_newtask")?, open("sched", "sched_process_exit")?);
    let mut layout = Layout {
        always: vec![
            Tracepoint { program: "on_new_task", id: new_task.id },
            Tracepoint { program: "on_exit", id: end.id },
        ],
        slice: vec![
            Tracepoint { program: "on_switch", id: switch.id },
            Tracepoint { program: "on_waking", id: waking.id },
            Tracepoint { program: "on_sys_enter", id: enter.id },
            Tracepoint { program: "on_sys_exit", id: exit.id },
        ],
        offsets: Offsets {
            prev_pid: at(&switch, "sched_switch", "prev_pid", 4)?,
            prev_state: at(&switch, "sched_switch", "prev_state", 8)?,
            next_pid: at(&switch, "sched_switch", "next_pid", 4)?,
            waking_pid: at(&waking, "sched_waking", "pid", 4)?,
            enter_id: at(&enter, "sys_enter", "id", 8)?,
            enter_args: at(&enter, "sys_enter", "args", 48)?,
            exit_ret: at(&exit, "sys_exit", "ret", 8)?,
            new_pid: at(&new_task, "task_newtask", "pid", 4)?,
            new_flags: at(&new_task, "task_newtask", "clone_flags", 8)?,
            ..Offsets::default()
        },
        missing: Vec::new(),
    };
    // TCP tracepoints came with 4.15 and 4.16 and need CONFIG_INET. They are optional.
    layout.add_ports(open("tcp", "tcp_retransmit_skb"), "on_retransmit", |o, p| o.retrans = Some(p));
    layout.add_ports(open("tcp", "tcp_receive_reset"), "on_reset_received", |o, p| o.rst_in = Some(p));
    layout.add_ports(open("tcp", "tcp_send_reset"), "on_reset_sent", |o, p| o.rst_out = Some(p));
    if layout.always.len() < 5 {
        layout.missing.push("the kernel lacks some TCP tracepoints: resets are not all counted");
    }
    Ok(layout)
}

impl Layout {
    fn add_ports(&mut self, format: Result<Format, Error>, program: &'static str, keep: fn(&mut Offsets, Ports)) {
        let Some((id, ports)) = format.ok().and_then(|format| Some((format.id, ports(&format)?))) else { return };
        keep(&mut self.offsets, ports);
        self.always.push(Tracepoint { program, id });
    }
}

/// A field of exactly the size that the programs read.
fn at(format: &Format, name: &'static str, field: &'static str, size: u32) -> Result<u32, Error> {
    match format.field(field) {
        Some(found) if found.size == size => Ok(found.offset),
        _ => Err(Error::Layout { name, field }),
    }
}

/// The ports: fields of their own, or in a `struct sockaddr_in6` (28 bytes; the port follows the family).
fn ports(format: &Format) -> Option<Ports> {
    let of_size = |name, size| format.field(name).filter(|field: &Field| field.size == size);
    if let (Some(sport), Some(dport)) = (of_size("sport", 2), of_size("dport", 2)) {
        return Some(Ports { sport: sport.offset, dport: dport.offset, swapped: false });
    }
    let (source, destination) = (of_size("saddr", 28)?, of_size("daddr", 28)?);
    Some(Ports { sport: source.offset + 2, dport: destination.offset + 2, swapped: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_both_kinds() {
        let plain = "ID: 1\nfield:__u16 sport;offset:28;size:2;\nfield:__u16 dport;offset:30;size:2;\n\
            field:__u8 saddr[4];offset:34;size:4;\n";
        let format = Format::parse(plain).expect("a format");
        assert_eq!(ports(&format), Some(Ports { sport: 28, dport: 30, swapped: false }));
        let addresses = "ID: 1\nfield:__u8 saddr[28];offset:32;size:28;\nfield:__u8 daddr[28];offset:60;size:28;\n";
        let format = Format::parse(addresses).expect("a format");
        assert_eq!(ports(&format), Some(Ports { sport: 34, dport: 62, swapped: true }));
        let neither = "ID: 1\nfield:__u8 saddr[4];offset:32;size:4;\nfield:__u8 daddr[4];offset:60;size:4;\n";
        assert_eq!(Format::parse(neither).and_then(|f| ports(&f)), None);
    }

    #[test]
    fn a_field_that_changed_its_size_is_an_error_with_its_name() {
        let format = Format::parse("ID: 1\nfield:pid_t pid;offset:8;size:8;\n").expect("a format");
        let error = at(&format, "sched_waking", "pid", 4).expect_err("eight bytes are not four");
        assert!(error.to_string().contains("sched_waking"), "{error}");
    }

    #[test]
    fn without_tracefs_the_error_names_the_tracepoint() {
        let error = read(Path::new("/nonexistent")).expect_err("nothing is there");
        assert!(error.to_string().contains("sched_switch"), "{error}");
    }
}
