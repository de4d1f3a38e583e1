//! Records as the pass over all descriptors writes them, in portions that end anywhere.
#![no_main]
use libfuzzer_sys::fuzz_target;
use parshall_bpf::sockets::owners::Table;

const MOST: usize = 64;

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = (usize::from(input.0) + 1, input.1);
    let read = |size: usize| {
        let mut table = Table::new(MOST);
        bytes.chunks(size).for_each(|portion| table.take(portion));
        table.build();
        table
    };
    let (whole, parts) = (read(bytes.len().max(1)), read(size));
    assert_eq!((whole.len(), whole.dropped()), (parts.len(), parts.dropped()));
    // Ask for whatever the bytes could name.
    for inode in bytes.chunks_exact(4).map(|four| u32::from_ne_bytes([four[0], four[1], four[2], four[3]])) {
        assert!(whole.holders(0, inode).eq(parts.holders(0, inode)));
        assert!(whole.holders(u64::from(inode), inode).count() <= MOST);
    }
});
