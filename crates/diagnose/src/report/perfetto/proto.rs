//! The encoding of protobuf messages (https://protobuf.dev/programming-guides/encoding), as far as a trace needs it: integers, fixed
//! integers, strings and messages. Field numbers stand where they are used.

/// A message under construction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message(pub Vec<u8>);

/// Wire types.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;

impl Message {
    /// Adds an integer of any size: `uint64`, `int64` that is not negative, `uint32`, an enum.
    pub fn uint(&mut self, field: u32, value: u64) -> &mut Message {
        self.key(field, VARINT);
        self.varint(value);
        self
    }

    /// Adds an integer of eight bytes: `fixed64`.
    pub fn fixed(&mut self, field: u32, value: u64) -> &mut Message {
        self.key(field, FIXED64);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Adds a string, or bytes.
    pub fn text(&mut self, field: u32, text: &str) -> &mut Message {
        self.bytes(field, text.as_bytes());
        self
    }

    /// Adds a message.
    pub fn message(&mut self, field: u32, message: &Message) -> &mut Message {
        self.bytes(field, &message.0);
        self
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, BYTES);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn key(&mut self, field: u32, kind: u32) {
        self.varint(u64::from(field << 3 | kind));
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_encoded_as_the_specification_says() {
        let mut message = Message::default();
        message.uint(1, 150).text(2, "testing").fixed(47, 1).uint(3, 0);
        let want = b"\x08\x96\x01\x12\x07testing\xf9\x02\x01\0\0\0\0\0\0\0\x18\0";
        assert_eq!(message.0, want);
        let mut outer = Message::default();
        outer.message(3, Message::default().uint(1, u64::MAX));
        assert_eq!(outer.0, b"\x1a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
    }
}
