//! A reader of messages by a published schema. It knows of the encoders only what the text of the schema says, and refuses all that the
//! schemas do not use: packed numbers, groups, unknown fields. Google's own reads the same (`contrib.rs`, in `make test-all`).
use std::collections::{BTreeMap, BTreeSet};

/// What a file declares. A message inside another is named with it: `Envelope.Row`.
#[derive(Debug, Default)]
pub struct Schema {
    messages: BTreeMap<String, Vec<Field>>,
    enums: BTreeSet<String>,
}

/// A field of a message, as the file declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub number: u32,
    kind: Kind,
    repeated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Varint,
    Fixed32,
    Fixed64,
    Text,
    Bytes,
    Message(String),
}

/// A message that was read, with the fields that it has.
#[derive(Debug)]
pub struct Message<'a> {
    declared: &'a [Field],
    fields: Vec<(&'a Field, Value<'a>)>,
}

#[derive(Debug)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Message(Message<'a>),
}

impl Schema {
    /// Parses a file that has a declaration per line, as the published ones have.
    pub fn parse(text: &str) -> Self {
        let mut schema = Self::default();
        let mut scopes: Vec<&str> = Vec::new();
        let mut declared: Vec<(String, &str)> = Vec::new();
        for line in text.lines().map(|line| line.split("//").next().unwrap_or_default().trim()) {
            if let Some(name) = line.strip_prefix("message ").and_then(|rest| rest.strip_suffix(" {")) {
                scopes.push(name);
                assert!(schema.messages.insert(scopes.join("."), Vec::new()).is_none(), "{line} stands there twice");
            } else if let Some(name) = line.strip_prefix("enum ").and_then(|rest| rest.strip_suffix(" {")) {
                scopes.push(name);
                schema.enums.insert(scopes.join("."));
            } else if line == "}" {
                scopes.pop().expect("a scope that is open");
            } else if let Some(line) = line.strip_suffix(';') {
                declared.push((scopes.join("."), line));
            } else {
                assert!(line.is_empty(), "not understood: {line}");
            }
        }
        assert!(scopes.is_empty(), "{scopes:?} have no end");
        for (scope, line) in declared {
            schema.declare(&scope, line);
        }
        schema
    }

    fn declare(&mut self, scope: &str, line: &str) {
        if self.enums.contains(scope) || line.starts_with("reserved ") {
            return;
        }
        if scope.is_empty() {
            assert!(matches!(line, "syntax = \"proto3\"" | "package parshall.sockets.v1"), "not understood: {line}");
            return;
        }
        let words: Vec<&str> = line.split(' ').collect();
        let (repeated, [kind, name, "=", number]) = (match *words.as_slice() {
            ["repeated", kind, name, equals, number] => (true, [kind, name, equals, number]),
            [kind, name, equals, number] => (false, [kind, name, equals, number]),
            _ => panic!("not understood: {line}"),
        }) else {
            panic!("not understood: {line}")
        };
        let kind = self.kind(scope, kind);
        assert!(!repeated || matches!(kind, Kind::Message(_)), "numbers would be packed: {line}");
        let field = Field { name: name.into(), number: number.parse().expect("a number"), kind, repeated };
        let fields = self.messages.get_mut(scope).expect("the message is declared");
        assert!(fields.iter().all(|f| f.name != field.name && f.number != field.number), "declared twice: {line}");
        fields.push(field);
    }

    /// A name is looked for in the message that uses it, then in those around it.
    fn kind(&self, scope: &str, name: &str) -> Kind {
        match name {
            "uint32" | "uint64" => return Kind::Varint,
            "fixed32" => return Kind::Fixed32,
            "fixed64" => return Kind::Fixed64,
            "string" => return Kind::Text,
            "bytes" => return Kind::Bytes,
            _ => {}
        }
        let mut around = Some(scope);
        while let Some(scope) = around {
            let full = format!("{scope}.{name}");
            let full = full.trim_start_matches('.');
            if self.enums.contains(full) {
                return Kind::Varint;
            }
            if self.messages.contains_key(full) {
                return Kind::Message(full.into());
            }
            around = scope.rsplit_once('.').map(|(outer, _)| outer).or(if scope.is_empty() { None } else { Some("") });
        }
        panic!("{name} is not declared");
    }

    /// The fields of a message.
    pub fn fields(&self, message: &str) -> &[Field] {
        self.messages.get(message).unwrap_or_else(|| panic!("{message} is not in the schema"))
    }

    /// Reads a message of the type.
    pub fn read<'a>(&'a self, message: &str, mut bytes: &'a [u8]) -> Result<Message<'a>, String> {
        let declared = self.fields(message);
        let mut fields: Vec<(&Field, Value<'_>)> = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes)?;
            let field = declared.iter().find(|f| u64::from(f.number) == tag >> 3);
            let field = field.ok_or_else(|| format!("{message} has no field {}", tag >> 3))?;
            if !field.repeated && fields.iter().any(|(f, _)| *f == field) {
                return Err(format!("{} is there twice", field.name));
            }
            let value = match (&field.kind, tag & 7) {
                (Kind::Varint, 0) => Value::Number(varint(&mut bytes)?),
                (Kind::Fixed64, 1) => Value::Number(fixed(&mut bytes, 8)?),
                (Kind::Fixed32, 5) => Value::Number(fixed(&mut bytes, 4)?),
                (Kind::Bytes, 2) => Value::Bytes(delimited(&mut bytes)?),
                (Kind::Text, 2) => {
                    let text = delimited(&mut bytes)?;
                    std::str::from_utf8(text).map_err(|e| format!("{}: {e}", field.name))?;
                    Value::Bytes(text)
                }
                (Kind::Message(name), 2) => Value::Message(self.read(name, delimited(&mut bytes)?)?),
                (kind, wire) => return Err(format!("{} is {kind:?}, and has wire type {wire}", field.name)),
            };
            fields.push((field, value));
        }
        Ok(Message { declared, fields })
    }
}

impl<'a> Message<'a> {
    /// The fields that it has.
    pub fn fields(&self) -> impl Iterator<Item = &'a Field> {
        self.fields.iter().map(|(field, _)| *field)
    }

    pub fn has(&self, name: &str) -> bool {
        self.values(name).next().is_some()
    }

    /// A number, which is 0 where the message does not have it.
    pub fn number(&self, name: &str) -> u64 {
        match self.values(name).next() {
            None => 0,
            Some(Value::Number(n)) => *n,
            Some(other) => panic!("{name} is {other:?}"),
        }
    }

    /// A text or bytes, which are empty where the message does not have them.
    pub fn text(&self, name: &str) -> &'a [u8] {
        match self.values(name).next() {
            None => &[],
            Some(Value::Bytes(bytes)) => bytes,
            Some(other) => panic!("{name} is {other:?}"),
        }
    }

    pub fn messages(&self, name: &str) -> Vec<&Self> {
        self.values(name)
            .map(|value| match value {
                Value::Message(message) => message,
                other => panic!("{name} is {other:?}"),
            })
            .collect()
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &Value<'a>> {
        assert!(self.declared.iter().any(|f| f.name == name), "{name} is in the schema");
        self.fields.iter().filter(move |(field, _)| field.name == name).map(|(_, value)| value)
    }

    /// All of it, as `scripts/peers/protobuf_read.py` prints it: bytes are hexadecimal.
    pub fn json(&self) -> serde_json::Value {
        let mut all = serde_json::Map::new();
        for (field, value) in &self.fields {
            let value = match value {
                Value::Number(n) => (*n).into(),
                Value::Bytes(bytes) => bytes.iter().map(|b| format!("{b:02x}")).collect::<String>().into(),
                Value::Message(message) => message.json(),
            };
            let list = all.entry(&field.name).or_insert_with(|| serde_json::Value::Array(Vec::new()));
            list.as_array_mut().expect("a list").push(value);
        }
        all.into()
    }
}

/// Splits a stream into its messages.
pub fn messages(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        messages.push(delimited(&mut bytes).expect("a message"));
    }
    messages
}

fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0;
    for at in 0..10 {
        let byte = fixed(bytes, 1)?;
        value |= (byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a varint without an end".into())
}

/// A number of `length` bytes, the lowest first.
fn fixed(bytes: &mut &[u8], length: usize) -> Result<u64, String> {
    Ok(take(bytes, length)?.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

fn delimited<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], String> {
    let length = varint(bytes)?;
    take(bytes, usize::try_from(length).expect("64 bits"))
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], String> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or_else(|| format!("{length} bytes are not there"))?;
    *bytes = rest;
    Ok(taken)
}
