use parshall_bpf::*;
use std::time::*;
fn main() {
    let pid: u32 = std::env::args().nth(1).unwrap().parse().unwrap();
    let secs: u64 = std::env::args().nth(2).unwrap().parse().unwrap();
    let t = Instant::now();
    let mut p = Probes::load(&Config { tgids: vec![(pid, Scope::All)], port: None, max_flows: 8192 }).unwrap();
    println!("load {:?}", t.elapsed());
    let t = Instant::now();
    p.attach_always().unwrap();
    println!("always {:?}", t.elapsed());
    let t = Instant::now();
    println!("sample fail {}", p.attach_samples(0..2));
    println!("samples {:?}", t.elapsed());
    let t = Instant::now();
    let o = p.owners().unwrap();
    println!("owners {} {:?}", o.len(), t.elapsed());
    let t = Instant::now();
    println!("threads {} {:?}", p.threads().unwrap().len(), t.elapsed());
    let t = Instant::now();
    println!("flows {} {:?}", p.flows().unwrap().len(), t.elapsed());
    for _ in 0..5 {
        let t = Instant::now();
        p.begin_slice().unwrap();
        let a = t.elapsed();
        std::thread::sleep(Duration::from_millis(20));
        let t = Instant::now();
        p.end_slice();
        let b = t.elapsed();
        println!("begin {a:?} end {b:?}");
        p.threads().unwrap();
        p.flows().unwrap();
    }
    p.start_timing();
    let c0 = p.counters();
    let t0 = p.begin_slice().unwrap();
    let t = Instant::now();
    let mut ev = Vec::new();
    while t.elapsed().as_secs() < secs {
        std::thread::sleep(DRAIN);
        p.drain(&mut ev);
    }
    let (ns, n) = p.timed_runs();
    let t1 = p.end_slice();
    println!("runs {n} ns {ns} mean {} events {} stalls {}", ns / n.max(1), p.counters().events - c0.events, ev.len());
    println!("{:?}", p.counters());
    println!("slice {} ms", (t1 - t0) / 1000000);
    for th in p.threads().unwrap() {
        println!(
            "{} {} observed {} on {} runq {} {}",
            th.tid,
            String::from_utf8_lossy(&th.comm),
            th.observed / 1000000,
            th.on_ns / 1000000,
            th.runq_ns / 1000,
            th.runq_count
        );
        for (k, v) in p.off_cells().get(&th.tid).cloned().unwrap_or_default() {
            println!("   off why {} nr {} fd {} ns {} n {}", k.why, k.nr, k.fd, v.ns / 1000, v.count);
        }
        for (k, v) in p.sys_cells().get(&th.tid).cloned().unwrap_or_default() {
            println!("   sys nr {} fd {} {:?}", k.nr, k.fd, v);
        }
    }
    for f in p.flows().unwrap() {
        println!("{:?} obs {} passive {} {:?}", f.addresses(), f.flow.observed / 1000000, f.key.passive, f.calls());
        for c in f.cells() {
            println!("   {:?} {:?} {} us {}", c.state, c.release, c.ns / 1000, c.count);
        }
    }
}
const DRAIN: Duration = Duration::from_millis(50);
