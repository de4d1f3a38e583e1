//! Requests of observed processes to io_uring: how many of which kind with which result, and when, as far as there was room.
use serde::{Deserialize, Serialize};

use crate::zero::is_zero;

/// Requests to io_uring in the window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uring {
    /// By thread and opcode.
    #[serde(default)]
    pub cells: Vec<UringCell>,
    /// Waits in io_uring_enter(), by thread and what was outstanding.
    #[serde(default)]
    pub waits: Vec<UringWaits>,
    /// Requests with their times, in the order of their submissions.
    #[serde(default)]
    pub requests: Vec<UringRequest>,
    /// Requests that are not in `requests`, because there were too many.
    #[serde(default)]
    pub left_out: u64,
    /// Events that were not counted, because there were too many different ones.
    #[serde(default)]
    pub lost: u64,
    /// Requests that were not followed, because there were too many in a moment: they are in no other figure.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_followed: u64,
    /// Events that this kernel does not show, a phrase each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<String>,
}

/// How often something happened to requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UringCounts {
    /// Requests that were submitted.
    pub submitted: u64,
    /// Completions. A request that goes on has several, and one that was submitted before the window counts too.
    pub completed: u64,
    /// Requests that were outstanding when the window ended, of those submitted in it.
    #[serde(skip_serializing_if = "is_zero")]
    pub outstanding: u64,
    /// Times that a request had to wait for its descriptor to become ready.
    #[serde(skip_serializing_if = "is_zero")]
    pub polls: u64,
    /// Requests that a worker thread of the kernel (io-wq) took.
    #[serde(skip_serializing_if = "is_zero")]
    pub to_workers: u64,
    /// Completions for which the ring had no place.
    #[serde(skip_serializing_if = "is_zero")]
    pub overflowed: u64,
    /// Requests whose failure ended those that were linked to them.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed_links: u64,
    /// Requests that were refused at once.
    #[serde(skip_serializing_if = "is_zero")]
    pub rejected: u64,
    /// Completions with an error, the most frequent first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<UringErrors>,
}

/// Completions with an error.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UringErrors {
    /// Its name, such as `ENOBUFS`.
    pub error: String,
    /// How many.
    pub count: u64,
}

/// A thread's requests with one opcode.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UringCell {
    /// The process.
    pub pid: u32,
    /// The thread that submitted them; that whose turn it was when they completed, for those of before the window.
    pub tid: u32,
    /// The name of the process.
    #[serde(default)]
    pub process: String,
    /// The name of the thread.
    #[serde(default)]
    pub thread: String,
    /// The opcode, such as `recv`; empty where it is not known.
    pub opcode: String,
    /// Their counts.
    #[serde(flatten)]
    pub counts: UringCounts,
    /// Requests that were submitted in the window and came to their end in it.
    #[serde(default)]
    pub timed: u64,
    /// Their time from the submission to the last completion, in sum.
    #[serde(default)]
    pub ns: u64,
    /// The longest of these.
    #[serde(default)]
    pub longest_ns: u64,
}

/// Waits of a thread in io_uring_enter() with the same opcodes outstanding.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UringWaits {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The name of the process.
    #[serde(default)]
    pub process: String,
    /// The name of the thread.
    #[serde(default)]
    pub thread: String,
    /// The opcodes of what it had submitted in the window.
    pub outstanding: Vec<String>,
    /// How many waits.
    pub count: u64,
}

/// A request of which the times are known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UringRequest {
    /// When it was submitted, in nanoseconds since the window began.
    pub begin_ns: u64,
    /// When it completed for the last time; None when it was outstanding at the window's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_ns: Option<u64>,
    /// The thread that submitted it.
    pub tid: u32,
    /// The opcode.
    pub opcode: String,
    /// Its result: bytes or another number, or the negative number of an error.
    #[serde(default, skip_serializing_if = "is_zero_result")]
    pub result: i32,
    /// The name of that error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// It had to wait for its descriptor to become ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub polled: bool,
    /// A worker thread of the kernel took it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub worker: bool,
    /// Its failure ended the requests that were linked to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed_link: bool,
}

/// io_uring in the report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UringReport {
    /// By process, name of the thread and opcode, the most frequent first.
    pub requests: Vec<UringRow>,
    /// Waits of threads in io_uring_enter() by what was outstanding, the most frequent first.
    pub waits: Vec<UringWaitRow>,
    /// Requests that the timeline does not have.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
    /// Events that were not counted, because there were too many different ones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// Requests that were not followed, because there were too many in a moment: they are in no other figure.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_followed: u64,
    /// Events that this kernel does not show, a phrase each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<String>,
}

/// Requests of threads of the same name with one opcode.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UringRow {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub process: String,
    /// The name of the threads, without their numbers.
    pub thread: String,
    /// The opcode; empty where it is not known.
    pub opcode: String,
    /// Completions per second.
    pub per_s: f64,
    /// Their counts.
    #[serde(flatten)]
    pub counts: UringCounts,
    /// Mean time of a request from the submission to its last completion; None where none came to its end in the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_us: Option<f64>,
    /// The longest of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_us: Option<f64>,
}

/// Waits of threads of the same name with the same opcodes outstanding.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UringWaitRow {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub process: String,
    /// The name of the threads, without their numbers.
    pub thread: String,
    /// The opcodes; none where all that was outstanding had been submitted before the window.
    pub outstanding: Vec<String>,
    /// How many waits.
    pub count: u64,
    /// Per second.
    pub per_s: f64,
    /// The part of all waits of the process in io_uring_enter().
    pub share: f64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference.
fn is_zero_result(number: &i32) -> bool {
    *number == 0
}
