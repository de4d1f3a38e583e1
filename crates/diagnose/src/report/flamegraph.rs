//! Flame graphs as one SVG: CPU samples below each other, and times off the CPU. It needs no script: each frame has its figures as a
//! title, and its colour is one of the viewer's scheme.
use std::collections::BTreeMap;

use maud::{Markup, PreEscaped, html};
use parshall_core::flame::{Flames, Frame, Of, Stacks, WOKEN_BY};
use parshall_core::units::{duration, percent_fixed, plural};
use parshall_evidence::Capture;
use parshall_host::output::clean;

/// Units of the picture; a viewer scales them.
const WIDTH: f64 = 1200.0;
const ROW: f64 = 18.0;
const MARGIN: f64 = 10.0;
/// The title of a part, and the line below it.
const HEAD: f64 = 44.0;
/// A character of the labels.
const CHAR: f64 = 7.25;
/// Narrower frames are not drawn: nobody sees them, and a file would have any number of them.
const WIDTH_MIN: f64 = 0.3;
/// Frames above the first ones are not drawn: stacks have at most 127 frames in the kernel and as many in programs, twice with a waker.
const DEPTH_MAX: usize = 512;
/// A shorter label says nothing.
const LABEL_MIN: usize = 3;

const STYLE: &str = "\
text { font: 12px ui-monospace, monospace; fill: #1b1f24 }
.head { font-weight: bold; font-size: 15px }
.page { fill: #ffffff }
.frame { stroke: #ffffff; stroke-width: 0.5 }
.thread { fill: #c8ccd2 }
.user { fill: #f4b183 }
.kernel { fill: #9cc3e6 }
.waker { fill: #b9d99b }
.all { fill: #dfe2e6 }
g:hover > .frame { stroke: #1b1f24; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
text { fill: #e6e8eb }
.page { fill: #16191d }
.frame { stroke: #16191d }
.thread { fill: #464c55 }
.user { fill: #8a4b1f }
.kernel { fill: #2b5c8a }
.waker { fill: #47702a }
.all { fill: #343a42 }
g:hover > .frame { stroke: #e6e8eb }
}
";

/// A frame with what was seen in it, and the frames above it.
#[derive(Default)]
struct Node<'s> {
    weight: u64,
    above: BTreeMap<&'s Frame, Node<'s>>,
}

impl<'s> Node<'s> {
    fn of(stacks: &'s Stacks) -> Node<'s> {
        let mut root = Node::default();
        for (frames, weight) in stacks {
            root.weight = root.weight.saturating_add(*weight);
            let mut node = &mut root;
            for frame in frames.iter().take(DEPTH_MAX) {
                node = node.above.entry(frame).or_default();
                node.weight = node.weight.saturating_add(*weight);
            }
        }
        root
    }

    /// Rows of this node and of those above it that are wide enough.
    fn rows(&self, scale: f64) -> usize {
        let wide = self.above.values().filter(|node| node.weight as f64 * scale >= WIDTH_MIN);
        1 + wide.map(|node| node.rows(scale)).max().unwrap_or(0)
    }
}

/// The unit of a part.
#[derive(Clone, Copy)]
enum Unit {
    Samples,
    Microseconds,
}

impl Unit {
    fn say(self, weight: u64) -> String {
        match self {
            Unit::Samples => plural(weight, "sample", "samples"),
            Unit::Microseconds => duration(weight as f64 * 1_000.0),
        }
    }
}

/// The file.
pub fn flamegraph(capture: &Capture) -> String {
    let flames = Flames::new(capture);
    let parts = [
        ("On CPU", "CPU samples of the window", Unit::Samples, Node::of(&flames.on_cpu)),
        (
            "Off CPU",
            "time off the CPU in the observed time; above a sleeper who ended its sleep, innermost frame first",
            Unit::Microseconds,
            Node::of(&flames.off_cpu),
        ),
    ];
    let mut top = MARGIN;
    let mut drawn: Vec<Markup> = Vec::new();
    for (title, what, unit, root) in &parts {
        let scale = (WIDTH - 2.0 * MARGIN) / (root.weight.max(1) as f64);
        let rows = if root.weight == 0 { 0 } else { root.rows(scale) };
        let bottom = top + HEAD + rows as f64 * ROW;
        let note =
            if root.weight == 0 { "nothing was seen".to_owned() } else { format!("{}: {what}", unit.say(root.weight)) };
        let mut frames: Vec<Markup> = Vec::new();
        if root.weight > 0 {
            let place = Place { x: MARGIN, bottom, scale, unit: *unit, all: root.weight };
            let all = Frame { name: "all".to_owned(), of: Of::Thread };
            place.frame(&all, "all", root, &mut frames);
        }
        drawn.push(html! {
            g role="group" aria-label=(title) {
                text.head x=(MARGIN) y=(figure(top + 16.0)) { (title) }
                text x=(MARGIN) y=(figure(top + 34.0)) { (note) }
                @for frame in &frames { (frame) }
            }
        });
        top = bottom + 2.0 * MARGIN;
    }
    let picture = html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(WIDTH) height=(figure(top)) viewBox=(format!("0 0 {WIDTH} {}", figure(top))) {
            style { (PreEscaped(STYLE)) }
            title { "parshall: where threads spent their time" }
            rect.page width="100%" height="100%" {}
            @for part in &drawn { (part) }
        }
    };
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n", picture.into_string())
}

/// The position of a drawn frame.
#[derive(Clone, Copy)]
struct Place {
    x: f64,
    bottom: f64,
    scale: f64,
    unit: Unit,
    all: u64,
}

impl Place {
    /// A frame, and those above it from left to right.
    fn frame(self, frame: &Frame, class: &str, node: &Node<'_>, out: &mut Vec<Markup>) {
        let width = node.weight as f64 * self.scale;
        if width < WIDTH_MIN {
            return;
        }
        let y = self.bottom - ROW;
        let name = clean(&frame.name);
        let share = node.weight as f64 / self.all.max(1) as f64;
        let title = format!("{name}: {}, {}", self.unit.say(node.weight), percent_fixed(share));
        let label = fitted(&name, width);
        out.push(html! {
            g {
                title { (title) }
                rect class=(format!("frame {class}")) x=(figure(self.x)) y=(figure(y)) width=(figure(width)) height=(ROW) {}
                @if !label.is_empty() { text x=(figure(self.x + 3.0)) y=(figure(y + 13.0)) { (label) } }
            }
        });
        let mut x = self.x;
        for (above, found) in &node.above {
            Place { x, bottom: y, ..self }.frame(above, class_of(above), found, out);
            x += found.weight as f64 * self.scale;
        }
    }
}

fn class_of(frame: &Frame) -> &'static str {
    match frame.of {
        Of::Thread => "thread",
        Of::User => "user",
        Of::Kernel => "kernel",
        Of::Waker if frame.name == WOKEN_BY => "all",
        Of::Waker => "waker",
    }
}

/// As much of a name as its frame has space for.
fn fitted(name: &str, width: f64) -> String {
    let chars = ((width - 6.0) / CHAR).max(0.0) as usize;
    if name.chars().count() <= chars {
        return name.to_owned();
    }
    if chars < LABEL_MIN {
        return String::new();
    }
    name.chars().take(chars - 1).chain(['…']).collect()
}

fn figure(value: f64) -> String {
    format!("{value:.2}")
}
