//! Records of sockets as the BPF iterators write them, with names of any length, in portions that end anywhere.
#![no_main]
use libfuzzer_sys::fuzz_target;
use parshall_bpf::sockets::iter::Portion;
use parshall_evidence::socket::Batch;

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = (8 * (usize::from(input.0) + 1), input.1);
    let read = |size: usize| {
        let mut portion = Portion::default();
        bytes.chunks(size).for_each(|part| portion.take(part));
        let batch = Batch { records: &portion.records, names: &portion.names };
        batch.records.iter().map(|r| (r.address, r.inode, batch.name(r).to_vec())).collect::<Vec<_>>()
    };
    assert_eq!(read(bytes.len().max(1)), read(size));
});
