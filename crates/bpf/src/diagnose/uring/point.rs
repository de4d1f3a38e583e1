//! The kernel's tracepoints of io_uring, by the names that they have had, and the fields of their records.
use std::path::Path;

use crate::diagnose::classic::format::Format;
use crate::diagnose::observed::tracepoint;

/// A tracepoint that a program runs at. In the order of `enum uring_point` (uring.h).
pub(super) struct Point {
    /// The program.
    pub program: &'static str,
    /// Names of the tracepoint, the newest first.
    names: &'static [&'static str],
    /// The figure that is not known without it, as a phrase.
    shows: &'static str,
}

const fn point(program: &'static str, names: &'static [&'static str], shows: &'static str) -> Point {
    Point { program, names, shows }
}

/// All of them.
pub(super) const POINTS: [Point; 8] = [
    // Linux 6.4 has given it its new name.
    point("on_submit", &["io_uring_submit_req", "io_uring_submit_sqe"], "submissions"),
    point("on_complete", &["io_uring_complete"], "completions"),
    point("on_poll", &["io_uring_poll_arm"], "polls that were armed"),
    point("on_worker", &["io_uring_queue_async_work"], "requests that went to workers"),
    // Since Linux 5.19, as are the records of rejected requests.
    point("on_overflow", &["io_uring_cqe_overflow"], "completions that overflowed"),
    point("on_link", &["io_uring_fail_link"], "links that failed"),
    point("on_rejected", &["io_uring_req_failed"], "requests that were rejected"),
    point("on_wait", &["io_uring_cqring_wait"], "what waits are for"),
];

/// Names of fields in the order of `enum uring_field`. Where kernels differ, the newest name comes first.
const FIELDS: [&[&str]; 6] = [&["ctx"], &["req"], &["user_data", "data"], &["opcode"], &["res"], &["cflags"]];

/// The formats that this kernel has of them.
pub(super) struct Points {
    /// The format of each tracepoint that there is.
    pub formats: Vec<Option<Format>>,
}

impl Points {
    /// Reads them below the root of a tracefs.
    pub fn read(tracefs: &Path) -> Points {
        let found = |point: &Point| point.names.iter().find_map(|name| tracepoint(tracefs, "io_uring", name));
        Points { formats: POINTS.iter().map(found).collect() }
    }

    /// Where the fields are, 0 for those that are not there.
    pub fn offsets(&self) -> [[u32; FIELDS.len()]; POINTS.len()] {
        let mut offsets = [[0; FIELDS.len()]; POINTS.len()];
        for (format, row) in self.formats.iter().zip(&mut offsets) {
            for (names, offset) in FIELDS.iter().zip(row) {
                let field = format.as_ref().and_then(|format| names.iter().find_map(|name| format.field(name)));
                *offset = field.map_or(0, |field| field.offset);
            }
        }
        offsets
    }

    /// Events that this kernel does not show, a phrase each.
    pub fn absent(&self) -> Vec<String> {
        let all = POINTS.iter().zip(&self.formats);
        all.filter(|(_, format)| format.is_none()).map(|(point, _)| point.shows.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tracepoint that a kernel has, with the offset and size of each field.
    type Has = (&'static str, &'static [(&'static str, u32, u32)]);

    fn points(lines: &[Has]) -> Points {
        let format = |point: &Point| {
            let (_, fields) = lines.iter().find(|(name, _)| point.names.contains(name))?;
            let fields: String = fields
                .iter()
                .map(|(name, at, size)| format!("\tfield:u64 {name};\toffset:{at};\tsize:{size};\tsigned:0;\n"))
                .collect();
            Format::parse(&format!("name: x\nID: 7\nformat:\n{fields}\n"))
        };
        Points { formats: POINTS.iter().map(format).collect() }
    }

    #[test]
    fn fields_of_old_and_new_kernels_are_found() {
        let old: &[Has] = &[
            ("io_uring_submit_sqe", &[("ctx", 8, 8), ("opcode", 16, 1), ("user_data", 24, 8)]),
            ("io_uring_complete", &[("ctx", 8, 8), ("user_data", 16, 8), ("res", 24, 8)]),
        ];
        let points_of_old = points(old);
        let offsets = points_of_old.offsets();
        assert_eq!((offsets[0], offsets[1]), ([8, 0, 24, 16, 0, 0], [8, 0, 16, 0, 24, 0]));
        assert_eq!(offsets[4], [0; 6], "it has no such tracepoint");
        assert_eq!(points_of_old.absent().len(), 6);
        let new: &[Has] =
            &[("io_uring_submit_req", &[("ctx", 8, 8), ("req", 16, 8), ("user_data", 24, 8), ("opcode", 32, 1)])];
        assert_eq!(points(new).offsets()[0], [8, 16, 24, 32, 0, 0]);
    }
}
