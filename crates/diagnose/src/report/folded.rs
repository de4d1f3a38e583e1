//! Folded stacks: a line for each, frames from the outermost to the innermost one with `;` between them, and its weight. The first frame
//! says what the weight is: CPU samples, or microseconds off the CPU.
use std::fmt::Write;

use parshall_core::flame::{Flames, Stacks};
use parshall_evidence::Capture;
use parshall_host::output::clean;

/// The first frames.
const ON_CPU: &str = "on-cpu";
const OFF_CPU: &str = "off-cpu";

/// The file.
pub fn folded(capture: &Capture) -> String {
    let flames = Flames::new(capture);
    let mut out = String::new();
    lines(ON_CPU, &flames.on_cpu, &mut out);
    lines(OFF_CPU, &flames.off_cpu, &mut out);
    out
}

fn lines(first: &str, stacks: &Stacks, out: &mut String) {
    for (frames, weight) in stacks {
        out.push_str(first);
        for frame in frames {
            out.push(';');
            // `;` ends a frame. Spaces may stay: the weight is behind the last one.
            out.push_str(&clean(&frame.name).replace(';', ":"));
        }
        writeln!(out, " {weight}").expect("a string takes any text");
    }
}
