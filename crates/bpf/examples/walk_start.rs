//! Measures the walk for bench/RESULTS.md: the CPU time of loading it, and with an argument that of as many dumps, with their rows.
use parshall_bpf::sockets::{Means, Walk};
use parshall_evidence::socket::Selection;

fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("readable");
    text.split_whitespace().next().expect("a word").parse().expect("a number")
}

fn main() {
    let begun = cpu_ns();
    let mut walk = Walk::open_by(Means::Casts, 1 << 19).expect("it loads");
    println!("open {}", cpu_ns() - begun);
    let dumps: u32 = std::env::args().nth(1).map_or(0, |n| n.parse().expect("a number"));
    for _ in 0..dumps {
        let (begun, mut rows) = (cpu_ns(), 0);
        walk.dump(&Selection::default(), &mut |batch| rows += batch.records.len()).expect("it dumps");
        println!("dump {} {rows}", cpu_ns() - begun);
    }
}
