//! Parses the `format` file of a tracepoint, which has the offsets of the fields of its record.
//!
//! The layout is not an ABI: real-time kernels have a longer common header, and releases add, remove and resize fields.

/// A field of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Offset from the beginning of the record, in bytes.
    pub offset: u32,
    /// Its size in bytes.
    pub size: u32,
}

/// The record of one tracepoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Format {
    /// The id of the tracepoint for perf_event_open(2).
    pub id: u64,
    fields: Vec<(String, Field)>,
}

/// The kernel's limit on the size of a record (PERF_MAX_TRACE_SIZE, include/linux/trace_events.h).
const RECORD_MAX: u32 = 8192;
/// Bytes at the beginning of the record that programs may not read: the kernel keeps a pointer there.
const HIDDEN: u32 = 8;

impl Format {
    /// Parses the text of a `format` file. Returns `None` if it has no id.
    pub fn parse(text: &str) -> Option<Self> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID:")?.trim().parse().ok())?;
        let fields = text.lines().filter_map(|line| parse_field(line.trim())).collect();
        Some(Self { id, fields })
    }

    /// The field with this name, if programs may read it.
    pub fn field(&self, name: &str) -> Option<Field> {
        let field = self.fields.iter().find(|(known, _)| known == name)?.1;
        let end = field.offset.checked_add(field.size)?;
        (field.offset >= HIDDEN && field.size > 0 && end <= RECORD_MAX).then_some(field)
    }
}

/// A line such as `field:pid_t prev_pid; offset:24; size:4; signed:1;`.
fn parse_field(line: &str) -> Option<(String, Field)> {
    let mut parts = line.strip_prefix("field:")?.split(';').map(str::trim);
    let declared = parts.next()?;
    let (mut offset, mut size) = (None, None);
    for part in parts {
        match part.split_once(':') {
            Some(("offset", number)) => offset = number.parse().ok(),
            Some(("size", number)) => size = number.parse().ok(),
            _ => {}
        }
    }
    // The name is the last word before the length of an array, which can be any C expression.
    let declared = declared.replace("[]", "");
    let name = declared.split('[').next()?.split_whitespace().next_back()?.trim_start_matches('*');
    (!name.is_empty()).then(|| Some((name.to_owned(), Field { offset: offset?, size: size? })))?
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWITCH: &str = "name: sched_switch\nID: 372\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
        \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
        \tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
        \tfield:int prev_prio;\toffset:28;\tsize:4;\tsigned:1;\n\
        \tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n\
        \tfield:char next_comm[16];\toffset:40;\tsize:16;\tsigned:0;\n\
        \tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;\n\
        \tfield:int next_prio;\toffset:60;\tsize:4;\tsigned:1;\n\n\
        print fmt: \"prev_comm=%s prev_pid=%d\", REC->prev_comm, REC->prev_pid\n";

    /// A real-time kernel of 5.10: the common header is 8 bytes longer.
    const SWITCH_RT: &str = "name: sched_switch\nID: 315\nformat:\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\
        \tfield:unsigned char common_migrate_disable;\toffset:8;\tsize:1;\tsigned:0;\n\
        \tfield:unsigned char common_preempt_lazy_count;\toffset:9;\tsize:1;\tsigned:0;\n\n\
        \tfield:char prev_comm[16];\toffset:12;\tsize:16;\tsigned:1;\n\
        \tfield:pid_t prev_pid;\toffset:28;\tsize:4;\tsigned:1;\n\
        \tfield:long prev_state;\toffset:40;\tsize:8;\tsigned:1;\n\
        \tfield:pid_t next_pid;\toffset:64;\tsize:4;\tsigned:1;\n";

    const RESET: &str = "name: tcp_send_reset\nID: 1403\nformat:\n\
        \tfield:const void * skbaddr;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:const void *skaddr;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:__data_loc char[] group;\toffset:24;\tsize:4;\tsigned:1;\n\
        \tfield:__u8 saddr[sizeof(struct sockaddr_in6)];\toffset:32;\tsize:28;\tsigned:0;\n";

    #[test]
    fn formats_of_real_kernels_are_parsed() {
        let format = Format::parse(SWITCH).expect("a format");
        assert_eq!(format.id, 372);
        assert_eq!(format.field("prev_pid"), Some(Field { offset: 24, size: 4 }));
        assert_eq!(format.field("prev_state"), Some(Field { offset: 32, size: 8 }));
        assert_eq!(format.field("prev_comm"), Some(Field { offset: 8, size: 16 }));
        assert_eq!(format.field("next"), None);
        assert_eq!(format.field("common_pid"), None, "programs may not read the first eight bytes");
        let rt = Format::parse(SWITCH_RT).expect("a format");
        assert_eq!(rt.field("next_pid").map(|f| f.offset), Some(64));
        let reset = Format::parse(RESET).expect("a format");
        assert_eq!(reset.field("saddr"), Some(Field { offset: 32, size: 28 }));
        assert_eq!(reset.field("skaddr").map(|f| f.offset), Some(16));
        assert_eq!(reset.field("skbaddr").map(|f| f.offset), Some(8));
    }

    #[test]
    fn invalid_text_is_rejected() {
        for text in ["", "ID:", "ID: x", "name: y\nformat:\n", "\0\0"] {
            assert_eq!(Format::parse(text), None, "{text:?}");
        }
        for line in [
            "field:",
            "field:;offset:8;size:4;",
            "field:int pid",
            "field:int pid;offset:8;",
            "field:int pid;offset:-8;size:4;",
            "field:int pid;offset:8;size:99999999999;",
            "field:int pid;offset:4294967295;size:4;",
            "field:int pid;offset:8;size:0;",
            "field:int pid;offset:9000;size:4;",
        ] {
            let format = Format::parse(&format!("ID: 1\n{line}\n")).expect("it has an id");
            assert_eq!(format.field("pid"), None, "{line:?}");
        }
    }

    #[test]
    fn truncated_and_scrambled_text_never_panics() {
        for end in (0..SWITCH.len()).filter(|&end| SWITCH.is_char_boundary(end)) {
            let _ = Format::parse(&SWITCH[..end]).map(|format| format.field("prev_pid"));
            let scrambled: String = SWITCH.chars().cycle().skip(end).step_by(7).take(200).collect();
            let _ = Format::parse(&scrambled).map(|format| format.field("prev_pid"));
        }
    }
}
