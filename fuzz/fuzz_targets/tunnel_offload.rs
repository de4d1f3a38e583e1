//! Frames of a TUN device with any virtio header: what is cut is no longer than the frame, and cut packets join to what is cut the same.
#![no_main]
use libfuzzer_sys::fuzz_target;
use parshall_core::tunnel::{Superframe, VIRTIO_HEADER_LEN, VirtioHeader, has_push, join, prepare_first};

fn cut(frame: &Superframe<'_>) -> Vec<Vec<u8>> {
    (0..frame.packets())
        .map(|n| {
            let mut packet = vec![0; frame.packet_len()];
            let len = frame.write_packet(n, &mut packet);
            packet.truncate(len);
            packet
        })
        .collect()
}

fuzz_target!(|bytes: &[u8]| {
    let Some((header, frame)) = bytes.split_first_chunk::<VIRTIO_HEADER_LEN>() else { return };
    let Ok(superframe) = Superframe::new(VirtioHeader::from_bytes(*header), frame) else { return };
    // Frames of TUN devices are no longer, and the number of packets depends on it.
    if frame.len() > 65_535 {
        return;
    }
    let packets = cut(&superframe);
    assert!(packets.iter().all(|packet| packet.len() <= frame.len()));
    let mut rest = &packets[..];
    while let Some(joined) = join(rest.iter().map(Vec::as_slice), true) {
        let (run, others) = rest.split_at(joined.packets);
        rest = others;
        if run.len() > 1 {
            let mut whole = run[0].clone();
            let len = whole.len() + run[1..].iter().map(|packet| packet.len() - joined.payload_at).sum::<usize>();
            prepare_first(&mut whole, &joined, len, has_push(&run[run.len() - 1], &joined));
            run[1..].iter().for_each(|packet| whole.extend(&packet[joined.payload_at..]));
            let again = Superframe::new(joined.header, &whole).expect("a joined frame is right");
            assert_eq!(again.packets(), run.len());
            assert!(cut(&again).iter().zip(run).all(|(cut, packet)| cut.len() == packet.len()));
        }
    }
});
