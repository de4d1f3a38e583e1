//! Protobuf messages, field by field: those of other people's schemas (OTLP, pprof) written, and any read back. Rows have an
//! encoder of their own.

/// A message that is being written.
#[derive(Debug, Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn tag(&mut self, number: u32, kind: u64) {
        self.varint(u64::from(number) << 3 | kind);
    }

    /// An integer, enum or flag; 0 is left out.
    pub fn uint(&mut self, number: u32, value: u64) {
        if value != 0 {
            self.tag(number, 0);
            self.varint(value);
        }
    }

    /// Eight bytes, also if they are 0: members of a `oneof` must be there.
    pub fn fixed64(&mut self, number: u32, value: u64) {
        self.tag(number, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Bytes or text; empty ones are left out.
    pub fn bytes(&mut self, number: u32, value: impl AsRef<[u8]>) {
        if !value.as_ref().is_empty() {
            self.always(number, value.as_ref());
        }
    }

    /// Bytes or text, also if they are empty: an element of a list.
    pub fn always(&mut self, number: u32, value: impl AsRef<[u8]>) {
        self.tag(number, 2);
        self.varint(value.as_ref().len() as u64);
        self.0.extend_from_slice(value.as_ref());
    }

    /// A list of integers.
    pub fn packed(&mut self, number: u32, values: impl IntoIterator<Item = u64>) {
        let mut inner = Self::default();
        values.into_iter().for_each(|value| inner.varint(value));
        self.bytes(number, inner.0);
    }

    /// A list of numbers of eight bytes each.
    pub fn packed_fixed64(&mut self, number: u32, values: impl IntoIterator<Item = u64>) {
        let inner: Vec<u8> = values.into_iter().flat_map(u64::to_le_bytes).collect();
        self.bytes(number, inner);
    }

    /// A message within.
    pub fn message(&mut self, number: u32, write: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        write(&mut inner);
        self.always(number, inner.0);
    }
}

/// What is left of a message that is being read. Any bytes will do.
#[derive(Debug, Clone, Copy)]
pub struct Unread<'a>(pub &'a [u8]);

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// A varint, or a number of fixed length.
    Number(u64),
    /// Bytes, text or a message within.
    Bytes(&'a [u8]),
}

impl<'a> Unread<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    /// The next field, with its number; none at the end, or where the bytes are no message.
    pub fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => Value::Number(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Number(u32::from_le_bytes(self.take(4)?.try_into().ok()?).into()),
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    /// The first field of this number.
    pub fn find(mut self, number: u64) -> Option<Value<'a>> {
        std::iter::from_fn(|| self.field()).find(|(found, _)| *found == number).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_encoding_guide_says() {
        let mut message = Message::default();
        message.uint(1, 150);
        message.bytes(2, "testing");
        message.message(3, |m| m.uint(1, 150));
        message.packed(6, [3, 270, 86_942]);
        message.uint(7, 0);
        let expected = b"\x08\x96\x01\x12\x07testing\x1a\x03\x08\x96\x01\x32\x06\x03\x8e\x02\x9e\xa7\x05";
        assert_eq!(message.0, expected);
    }
}
