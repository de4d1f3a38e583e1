//! Measures the cost of the memory of a dump, with native loads and nothing else, of as many objects of the size of a TCP socket: in the
//! order of the memory, which is what the walk does, and in random order, which is that of the kernel's hash table.
use std::hint::black_box;

use super::cpu_ns;

const LINE: usize = 64;
/// Of a `struct tcp_sock` of Linux 6.18, in slabs.
const OBJECT: usize = 2368;
/// The lines that hold what `ss -tinm` shows, there: what `lines_of` of the walk finds. It asks for all up to the last.
const LINES: [usize; 23] = [0, 1, 2, 3, 5, 7, 8, 9, 12, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 34];
const HUGE: usize = 2 << 20;

/// Prints the least, the median and the greatest CPU time per object of the passes, in nanoseconds, of either order.
pub fn measure(objects: usize, passes: usize) {
    let mut memory = vec![0u8; objects * OBJECT + HUGE];
    // The kernel maps its memory with large pages.
    let begin = HUGE - memory.as_ptr() as usize % HUGE;
    // SAFETY: the range lies within `memory`, and the advice changes nothing of its contents.
    unsafe { libc::madvise(memory.as_mut_ptr().add(begin).cast(), objects * OBJECT, libc::MADV_HUGEPAGE) };
    memory.fill(1);
    let in_order: Vec<u32> = (0..objects as u32).collect();
    let up_to_last: Vec<usize> = (0..=LINES[LINES.len() - 1]).collect();
    for (name, order, lines) in [("in order", in_order, &up_to_last[..]), ("at random", shuffled(objects), &LINES)] {
        let mut ns: Vec<u64> = (0..passes).map(|_| pass(&memory[begin..], &order, lines)).collect();
        ns.sort_unstable();
        println!("{name}: {} {} {}", ns[0], ns[passes / 2], ns[passes - 1]);
    }
}

/// One pass over the objects: nanoseconds of CPU for each.
fn pass(memory: &[u8], order: &[u32], lines: &[usize]) -> u64 {
    let before = cpu_ns();
    let mut sum = 0u64;
    for object in order {
        let object = &memory[*object as usize * OBJECT..][..OBJECT];
        sum += lines.iter().map(|line| u64::from(object[line * LINE])).sum::<u64>();
    }
    assert_eq!(black_box(sum), (order.len() * lines.len()) as u64);
    (cpu_ns() - before) / order.len() as u64
}

/// Fisher and Yates; the numbers need not be good.
fn shuffled(objects: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..objects as u32).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for at in (1..objects).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(at, (state >> 33) as usize % (at + 1));
    }
    order
}
