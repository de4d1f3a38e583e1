//! A segment of a spool: any bytes are read to an end, and a record never reaches beyond them.
#![no_main]
use libfuzzer_sys::fuzz_target;
use parshall_core::sockets::spool::{Cursor, SEGMENT_MAGIC, Step, checksum, step};

fuzz_target!(|bytes: &[u8]| {
    let mut at = SEGMENT_MAGIC.len().min(bytes.len());
    while let Step::Record(header) = step(&bytes[at..], (bytes.len() - at) as u64) {
        let end = at + header.record_bytes() as usize;
        let body = &bytes[end - header.body_bytes as usize..end];
        let _ = checksum(body) == header.body_crc;
        assert!(end > at);
        at = end;
    }
    if let Some(cursor) = Cursor::decode(bytes) {
        assert_eq!(cursor.encode(), bytes);
    }
});
