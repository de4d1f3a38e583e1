//! An answer of SOCK_DIAG, as the socket collector reads it: the first byte picks the table, the rest is a part.
#![no_main]
use libfuzzer_sys::fuzz_target;
use parshall_core::sock_diag::{Layout, Message, Messages, Reading, Table, decode};
use parshall_evidence::socket::{Batch, Groups, SocketRecord};

fuzz_target!(|bytes: &[u8]| {
    let Some((first, part)) = bytes.split_first() else { return };
    let table = [Table::Tcp, Table::Udp, Table::UdpLite, Table::Mptcp, Table::Unix][usize::from(first % 5)];
    let reading = Reading { groups: Groups::ALL, layout: Layout { packed_accecn: first & 0x80 != 0 } };
    let mut names = Vec::new();
    let mut read = |payload: &[u8]| {
        let mut record = SocketRecord::default();
        if decode(table, payload, &reading, &mut record, &mut names).is_some() {
            let name = Batch { records: &[], names: &names }.name(&record);
            assert_eq!(name.len(), usize::from(record.name_len));
        }
    };
    for message in Messages::new(part, 0) {
        if let Message::Socket(payload) = message {
            read(payload);
        }
    }
    read(part);
});
