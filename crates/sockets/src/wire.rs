//! Protobuf messages, field by field: writes those of the OTLP and pprof schemas, and reads any. Rows have an encoder of
//! their own (`format::protobuf`).
use parshall_core::sockets::varint;

/// Appends the fields of one message. A method's `number` is the field's number in the schema.
#[derive(Debug, Default)]
pub struct MessageWriter(pub Vec<u8>);

impl MessageWriter {
    fn tag(&mut self, number: u32, kind: u64) {
        varint::append(&mut self.0, u64::from(number) << 3 | kind);
    }

    /// Writes an integer, enum or flag. Zero is the default of proto3 and is left out.
    pub fn uint(&mut self, number: u32, value: u64) {
        if value != 0 {
            self.tag(number, 0);
            varint::append(&mut self.0, value);
        }
    }

    /// Writes eight bytes. Zero is written too, because a member of a `oneof` must be present.
    pub fn fixed64(&mut self, number: u32, value: u64) {
        self.tag(number, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes bytes or text unless they are empty.
    pub fn bytes(&mut self, number: u32, value: impl AsRef<[u8]>) {
        if !value.as_ref().is_empty() {
            self.always(number, value.as_ref());
        }
    }

    /// Writes bytes or text even if they are empty, as an element of a repeated field must be.
    pub fn always(&mut self, number: u32, value: impl AsRef<[u8]>) {
        self.tag(number, 2);
        varint::append(&mut self.0, value.as_ref().len() as u64);
        self.0.extend_from_slice(value.as_ref());
    }

    /// Writes a packed repeated field of varints; an empty list is left out.
    pub fn packed(&mut self, number: u32, values: impl IntoIterator<Item = u64>) {
        let mut inner = Self::default();
        values.into_iter().for_each(|value| varint::append(&mut inner.0, value));
        self.bytes(number, inner.0);
    }

    /// Writes a packed repeated field of `fixed64`; an empty list is left out.
    pub fn packed_fixed64(&mut self, number: u32, values: impl IntoIterator<Item = u64>) {
        let inner: Vec<u8> = values.into_iter().flat_map(u64::to_le_bytes).collect();
        self.bytes(number, inner);
    }

    /// Writes an embedded message, even if it is empty.
    pub fn message(&mut self, number: u32, write: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        write(&mut inner);
        self.always(number, inner.0);
    }
}

/// The fields of a message that were not read yet. Accepts any bytes.
#[derive(Debug, Clone, Copy)]
pub struct MessageReader<'a>(pub &'a [u8]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// A varint, or a number of four or eight bytes.
    Number(u64),
    /// Bytes, text or an embedded message.
    Bytes(&'a [u8]),
}

impl<'a> MessageReader<'a> {
    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    /// The next field and its number. `None` at the end, and where the bytes are not a valid field.
    pub fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let tag = varint::take(&mut self.0)?;
        let value = match tag & 7 {
            0 => Value::Number(varint::take(&mut self.0)?),
            1 => Value::Number(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = varint::take(&mut self.0)?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Number(u32::from_le_bytes(self.take(4)?.try_into().ok()?).into()),
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    /// The first field with this number.
    pub fn find(mut self, number: u64) -> Option<Value<'a>> {
        std::iter::from_fn(|| self.field()).find(|(found, _)| *found == number).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_encoding_guide_says() {
        let mut message = MessageWriter::default();
        message.uint(1, 150);
        message.bytes(2, "testing");
        message.message(3, |m| m.uint(1, 150));
        message.packed(6, [3, 270, 86_942]);
        message.uint(7, 0);
        let expected = b"\x08\x96\x01\x12\x07testing\x1a\x03\x08\x96\x01\x32\x06\x03\x8e\x02\x9e\xa7\x05";
        assert_eq!(message.0, expected);
    }
}
