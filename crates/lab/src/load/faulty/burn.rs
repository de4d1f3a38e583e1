//! User CPU time on demand: a fixed amount of hashing, so that a throttled or preempted thread does not do less of it.
use std::hint::black_box;
use std::time::{Duration, Instant};

/// A calibrated amount of work.
#[derive(Debug, Clone, Copy)]
pub struct Burn {
    rounds: u64,
}

impl Burn {
    /// The work that takes `time` on an undisturbed CPU.
    pub fn calibrate(time: Duration) -> Self {
        if time.is_zero() {
            return Self { rounds: 0 };
        }
        const PROBE: u64 = 200_000;
        // The fastest of several runs was disturbed least.
        let fastest = (0..8)
            .map(|_| {
                let begin = Instant::now();
                parshall_burn_user_cpu(PROBE);
                begin.elapsed()
            })
            .min()
            .unwrap_or(Duration::from_millis(1));
        Self { rounds: (time.as_secs_f64() / fastest.as_secs_f64().max(1e-9) * PROBE as f64) as u64 }
    }

    /// Does the work.
    pub fn run(self) {
        if self.rounds > 0 {
            parshall_burn_user_cpu(self.rounds);
        }
    }
}

/// The function that a profile of a CPU-bound service should show.
#[inline(never)]
fn parshall_burn_user_cpu(rounds: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for round in 0..rounds {
        hash = (hash ^ black_box(round)).wrapping_mul(0x0100_0000_01b3);
    }
    black_box(hash)
}
