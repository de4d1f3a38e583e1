//! Parses the `format` file of a tracepoint, which has the offsets of the fields of its record, and the names of a field's values where
//! the kernel prints names.
//!
//! The layout is not an ABI: real-time kernels have a longer common header, and releases add, remove and resize fields.

/// A field of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Offset from the beginning of the record, in bytes.
    pub offset: u32,
    /// Its size in bytes.
    pub size: u32,
    /// Its numbers may be negative.
    pub signed: bool,
}

/// A field whose values have names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The field.
    pub field: Field,
    /// Values and their names, as the kernel lists them.
    pub names: Vec<(i64, String)>,
}

/// The record of one tracepoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Format {
    /// The id of the tracepoint for perf_event_open(2).
    pub id: u64,
    fields: Vec<(String, Field)>,
    /// Fields that are printed by name: the name of the field, and those of its values.
    named: Vec<(String, Vec<(i64, String)>)>,
}

/// The kernel's limit on the size of a record (PERF_MAX_TRACE_SIZE, include/linux/trace_events.h).
const RECORD_MAX: u32 = 8192;
/// Bytes at the beginning of the record that programs may not read: the kernel keeps a pointer there.
const HIDDEN: u32 = 8;
/// Fields whose names tell the least about an event.
const FAMILIES: [&str; 2] = ["family", "protocol"];

impl Format {
    /// Parses the text of a `format` file. Returns `None` if it has no id.
    pub fn parse(text: &str) -> Option<Self> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID:")?.trim().parse().ok())?;
        let fields = text.lines().filter_map(|line| parse_field(line.trim())).collect();
        let print = text.lines().find_map(|line| line.strip_prefix("print fmt:")).unwrap_or_default();
        Some(Self { id, fields, named: parse_names(print) })
    }

    /// The field whose value says most about an event: one called `reason` before others that the kernel prints by name.
    pub fn telling(&self) -> Option<Named> {
        let rank = |name: &str| if name == "reason" { 0 } else { 1 + u8::from(FAMILIES.contains(&name)) };
        let readable = self.named.iter().filter_map(|(name, names)| {
            let field = self.field(name).filter(|field| matches!(field.size, 1 | 2 | 4 | 8))?;
            Some((rank(name), Named { field, names: names.clone() }))
        });
        readable.min_by_key(|(rank, _)| *rank).map(|(_, named)| named)
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
    let (mut offset, mut size, mut signed) = (None, None, false);
    for part in parts {
        match part.split_once(':') {
            Some(("offset", number)) => offset = number.parse().ok(),
            Some(("size", number)) => size = number.parse().ok(),
            Some(("signed", number)) => signed = number == "1",
            _ => {}
        }
    }
    // The name is the last word before the length of an array, which can be any C expression.
    let declared = declared.replace("[]", "");
    let name = declared.split('[').next()?.split_whitespace().next_back()?.trim_start_matches('*');
    (!name.is_empty()).then(|| Some((name.to_owned(), Field { offset: offset?, size: size?, signed })))?
}

/// The lists of `__print_symbolic(REC->field, { 2, "NAME" }, …)`. A value that is an expression and no number is left out.
fn parse_names(print: &str) -> Vec<(String, Vec<(i64, String)>)> {
    let lists = print.split("__print_symbolic(").skip(1).filter_map(|list| {
        let (field, mut rest) = list.trim_start().strip_prefix("REC->")?.split_once(',')?;
        let mut names = Vec::new();
        while let Some(pair) = rest.trim_start_matches([' ', ',']).strip_prefix('{') {
            let (value, named) = pair.split_once(',')?;
            let (name, after) = named.trim_start().strip_prefix('"')?.split_once('"')?;
            names.extend(number(value.trim()).map(|value| (value, name.to_owned())));
            rest = after.trim_start().strip_prefix('}')?;
        }
        Some((field.trim().to_owned(), names))
    });
    lists.filter(|(_, names)| !names.is_empty()).collect()
}

/// A constant of C: `7`, `-1`, `0x10`, `1UL`.
fn number(text: &str) -> Option<i64> {
    let text = text.trim_end_matches(['u', 'U', 'l', 'L']);
    match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
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
        assert_eq!(format.field("prev_pid"), Some(Field { offset: 24, size: 4, signed: true }));
        assert_eq!(format.field("prev_state"), Some(Field { offset: 32, size: 8, signed: true }));
        assert_eq!(format.field("prev_comm"), Some(Field { offset: 8, size: 16, signed: false }));
        assert_eq!(format.field("next"), None);
        assert_eq!(format.field("common_pid"), None, "programs may not read the first eight bytes");
        let rt = Format::parse(SWITCH_RT).expect("a format");
        assert_eq!(rt.field("next_pid").map(|f| f.offset), Some(64));
        let reset = Format::parse(RESET).expect("a format");
        assert_eq!(reset.field("saddr"), Some(Field { offset: 32, size: 28, signed: false }));
        assert_eq!(reset.field("skaddr").map(|f| f.offset), Some(16));
        assert_eq!(reset.field("skbaddr").map(|f| f.offset), Some(8));
    }

    const DROP: &str = "name: kfree_skb\nID: 2310\nformat:\n\
        \tfield:unsigned short protocol;\toffset:32;\tsize:2;\tsigned:0;\n\
        \tfield:enum skb_drop_reason reason;\toffset:36;\tsize:4;\tsigned:0;\n\n\
        print fmt: \"protocol=%s reason: %s\", __print_symbolic(REC->protocol, { 0x0800, \"IP\" }), \
        __print_symbolic(REC->reason, { 2, \"NOT_SPECIFIED\" }, { 3U, \"NO_SOCKET\" }, { SKB_DROP_X, \"X\" }, \
        { -1, \"NONE\" })\n";

    #[test]
    fn names_of_values_are_those_that_the_kernel_prints() {
        let names = |list: &[(i64, &str)]| list.iter().map(|(v, n)| (*v, (*n).to_owned())).collect::<Vec<_>>();
        let drop = Format::parse(DROP).and_then(|format| format.telling()).expect("a reason");
        assert_eq!(drop.field, Field { offset: 36, size: 4, signed: false });
        assert_eq!(drop.names, names(&[(2, "NOT_SPECIFIED"), (3, "NO_SOCKET"), (-1, "NONE")]));
        let family = DROP.replace("reason", "other").replace("protocol", "family");
        let family = Format::parse(&family).and_then(|format| format.telling()).expect("another field");
        assert_eq!(family.field.offset, 36, "the family of an address says less");
        assert_eq!(Format::parse(SWITCH).and_then(|format| format.telling()), None);
        // A list that is cut, and a field that the record does not have.
        for broken in [&DROP[..DROP.len() - 12], &DROP.replace("skb_drop_reason reason", "skb_drop_reason why")] {
            let telling = Format::parse(broken).and_then(|format| format.telling()).expect("the protocol is left");
            assert_eq!((telling.field.offset, telling.names), (32, names(&[(0x800, "IP")])));
        }
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
        for end in 0..DROP.len() {
            let _ = Format::parse(&DROP[..end]).and_then(|format| format.telling());
        }
    }
}
