//! The columns and the indexes of the record's fields. A number is 0 and a text is empty where the value is not known.
use parquet::schema::types::TypePtr;
use parshall_core::sockets::schema::{OWNER, RATES, Wire, wire};
use parshall_core::sockets::value_names;
use parshall_evidence::socket::{FIELDS, Field, Width};

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// INT32, unsigned.
    Int,
    /// INT64, unsigned.
    Long,
    /// Nanoseconds since 1970.
    Time,
    /// BYTE_ARRAY of UTF-8.
    Text,
    /// BYTE_ARRAY.
    Bytes,
}

/// A column with one value in each row.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub name: &'static str,
    pub kind: Kind,
    /// Width of an [`Kind::Int`].
    bits: u8,
}

/// The columns before those of the record.
pub const LEADING: [Column; 7] = [
    Column { name: "at_unix_ns", kind: Kind::Time, bits: 64 },
    Column { name: "sequence", kind: Kind::Long, bits: 64 },
    Column { name: "host", kind: Kind::Text, bits: 0 },
    Column { name: "backend", kind: Kind::Text, bits: 0 },
    Column { name: "kind", kind: Kind::Text, bits: 0 },
    Column { name: "seen", kind: Kind::Text, bits: 0 },
    Column { name: "socket", kind: Kind::Long, bits: 64 },
];

/// The columns behind those of the record.
pub const TRAILING: [Column; 5] = [
    Column { name: "name", kind: Kind::Bytes, bits: 0 },
    Column { name: "netns_name", kind: Kind::Text, bits: 0 },
    Column { name: "cgroup", kind: Kind::Text, bits: 0 },
    Column { name: "container", kind: Kind::Text, bits: 0 },
    Column { name: "pod", kind: Kind::Text, bits: 0 },
];

fn is_written(field: &&Field) -> bool {
    wire(field.number) != Wire::Absent
}

fn of_field(field: &Field) -> Column {
    let (kind, bits) = match field.width {
        _ if value_names::of(field.number).is_some() => (Kind::Text, 0),
        Width::Bytes16 => (Kind::Text, 0),
        Width::U64 => (Kind::Long, 64),
        Width::U32 => (Kind::Int, 32),
        Width::U16 => (Kind::Int, 16),
        Width::U8 => (Kind::Int, 8),
    };
    Column { name: field.name, kind, bits }
}

/// All columns with one value per row, in their order.
pub fn scalar_columns() -> Vec<Column> {
    let fields = FIELDS.iter().filter(is_written).map(of_field);
    LEADING.into_iter().chain(fields).chain(TRAILING).collect()
}

/// The column index of each field, by field number; `u16::MAX` for a field without a column.
pub fn places() -> [u16; 256] {
    let mut places = [u16::MAX; 256];
    for (at, field) in FIELDS.iter().filter(is_written).enumerate() {
        if let Some(place) = places.get_mut(field.number as usize) {
            *place = (LEADING.len() + at) as u16;
        }
    }
    places
}

/// The schema of every file.
pub fn schema() -> TypePtr {
    let mut text = String::from("message socket {\n");
    for column in scalar_columns() {
        let (physical, logical) = match column.kind {
            Kind::Int => ("INT32", format!("INTEGER({},false)", column.bits)),
            Kind::Long => ("INT64", "INTEGER(64,false)".to_owned()),
            Kind::Time => ("INT64", "TIMESTAMP(NANOS,true)".to_owned()),
            Kind::Text => ("BYTE_ARRAY", "STRING".to_owned()),
            Kind::Bytes => ("BYTE_ARRAY", String::new()),
        };
        let logical = if logical.is_empty() { logical } else { format!(" ({logical})") };
        text += &format!("REQUIRED {physical} {}{logical};\n", column.name);
    }
    text += "REQUIRED GROUP owners (LIST) { REPEATED GROUP list { REQUIRED GROUP element {\n";
    for part in OWNER {
        text += match part.kind {
            "string" => "REQUIRED BYTE_ARRAY command (STRING);\n".to_owned(),
            _ => format!("REQUIRED INT32 {} (INTEGER(32,false));\n", part.name),
        }
        .as_str();
    }
    text += "} } }\nOPTIONAL GROUP rates {\n";
    for part in RATES {
        text += &format!("REQUIRED INT64 {} (INTEGER(64,false));\n", part.name);
    }
    text += "}\n}\n";
    let schema = parquet::schema::parser::parse_message_type(&text).expect("the schema is written here");
    std::sync::Arc::new(schema)
}
