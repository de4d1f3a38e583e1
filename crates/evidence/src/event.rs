//! Events of the kernel that were counted because the user asked for them (`--event`): what calls them, and how often.
use serde::{Deserialize, Serialize};

use crate::zero::is_zero;

/// The counts of an event in the window, of the whole host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventCounts {
    /// Its name: `category:name` of a tracepoint, or that of a counter of the kernel.
    pub event: String,
    /// By thread, value and stack, the most frequent first.
    pub cells: Vec<EventCell>,
    /// Events that are in no cell, because there were too many different ones.
    #[serde(default)]
    pub lost: u64,
    /// Events whose stack was not kept, because there were too many different ones.
    #[serde(default)]
    pub without_stack: u64,
}

/// Events with the same thread, value and stack.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventCell {
    /// The process that ran; 0 for an idle CPU.
    pub pid: u32,
    /// The thread that ran; 0 for threads that are summed up, because there were too many different cells.
    pub tid: u32,
    /// The name of the process.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub process: String,
    /// The name of the thread.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thread: String,
    /// It happened in an interrupt: what ran has nothing to do with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_irq: bool,
    /// The name of the value that says most of the event, such as the reason of a drop; empty for an event without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Index into [`crate::Capture::stacks`].
    pub stack: Option<u32>,
    /// How many.
    pub count: u64,
}

/// An event in the report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EventReport {
    /// Its name.
    pub event: String,
    /// How many the host had in the window.
    pub count: u64,
    /// Per second.
    pub per_s: f64,
    /// The part that threads of the subject had outside of interrupts.
    pub of_subject: f64,
    /// The part in interrupts.
    pub in_irq: f64,
    /// Events that were not counted, because there were too many different ones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// Events whose stack was not kept, because there were too many different ones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub without_stack: u64,
    /// By process, thread's name, value and stack: those of the subject and of interrupts first, and of both kinds the most frequent first.
    pub callers: Vec<EventCaller>,
}

/// The thread that calls an event, or the interrupts or idle CPUs that do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EventCaller {
    /// The process; None for interrupts and idle CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub process: String,
    /// The name of its threads that did it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thread: String,
    /// Whether it belongs to the subject.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub subject: bool,
    /// It happened in interrupts, and whatever ran has nothing to do with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_irq: bool,
    /// The name of the event's value, such as the reason of a drop.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// How many.
    pub count: u64,
    /// Per second.
    pub per_s: f64,
    /// The part of the event's count.
    pub share: f64,
    /// Names of the stack's functions, innermost first; those of the kernel end in ` [k]`.
    pub stack: Vec<String>,
}
