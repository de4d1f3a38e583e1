//! Pictures of a report as SVG documents: every trial, and the curves of a sweep. Static, without scripts and fonts of their own.
use parshall_core::text::printable;
use parshall_core::units;

use super::metric::Better;
use super::report::{Curve, MetricReport, Report, TurnReport};
use super::words;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 48.0;
const PLOT: f64 = 260.0;
const BOTTOM: f64 = 44.0;
const INK: &str = "#111827";
const FAINT: &str = "#e5e7eb";
const GREY: &str = "#6b7280";
const A: &str = "#1d4ed8";
const B: &str = "#c2410c";
const STEPS: f64 = 6.0;

/// The pictures of a report, with their file names.
pub fn pictures(report: &Report) -> Vec<(String, String)> {
    let metrics = report.ab.iter().flat_map(|ab| &ab.metrics).filter(|metric| metric.better != Better::Neither);
    let trials = metrics.map(|metric| (format!("trials-{}.svg", file_name(&metric.name)), trials(report, metric)));
    let curves = report
        .curves
        .iter()
        .map(|curve| (format!("curve-{}.svg", file_name(&curve.metric)), curve_picture(report, curve)));
    trials.chain(curves).collect()
}

fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect()
}

/// All trials in the order in which they ran, with the median of A and of B.
fn trials(report: &Report, metric: &MetricReport) -> String {
    let values = || report.trials.iter().filter_map(|trial| Some((trial, *trial.metrics.get(&metric.name)?)));
    let mut canvas = Canvas::new(&format!("{} by trial", metric.name), values().map(|(_, value)| value), &metric.unit);
    let count = report.trials.len().max(2) as f64;
    for (at, (trial, value)) in values().enumerate() {
        let x = LEFT + (WIDTH - LEFT - RIGHT) * (at as f64 + 0.5) / count;
        let ink = if trial.spoilt.is_some() {
            GREY
        } else if words::variant(trial.role, "") == "B" {
            B
        } else {
            A
        };
        let label = format!("{} {}", words::variant(trial.role, &trial.value), words::value(value, &metric.unit));
        canvas.dot(x, value, ink, trial.spoilt.is_some(), &label);
    }
    for (summary, ink, name, y) in [(metric.a, A, "A", 16.0), (metric.b, B, "B", 32.0)] {
        canvas.level(summary.median, ink);
        canvas.legend(&format!("{name}: median {}", words::value(summary.median, &metric.unit)), ink, y);
    }
    canvas.end("trials in the order in which they ran; grey: spoilt by the host")
}

/// The medians of a sweep with their intervals, and the bands of the knee and the collapse.
fn curve_picture(report: &Report, curve: &Curve) -> String {
    let ends = curve.points.iter().flat_map(|point| [point.low, point.high]);
    let mut canvas = Canvas::new(&format!("{} by {}", curve.metric, report.variable.name), ends, &curve.unit);
    let xs = places(curve);
    let at = |value: &String| curve.points.iter().position(|point| point.value == *value).map_or(LEFT, |i| xs[i]);
    for (turn, ink, name, y) in [(&curve.knee, A, "knee", 16.0), (&curve.collapse, B, "collapse", 32.0)] {
        let Some(TurnReport { at: place, from, to, .. }) = turn else { continue };
        canvas.band(at(from), at(to), ink);
        canvas.legend(&format!("{name} at {place}"), ink, y);
    }
    let line: Vec<String> =
        curve.points.iter().zip(&xs).map(|(point, x)| format!("{x:.1},{:.1}", canvas.y(point.median))).collect();
    canvas.push(&format!(r#"<polyline points="{}" fill="none" stroke="{INK}" stroke-width="1.5"/>"#, line.join(" ")));
    for (point, x) in curve.points.iter().zip(&xs) {
        let (low, high) = (canvas.y(point.low), canvas.y(point.high));
        canvas.push(&format!(r#"<line x1="{x:.1}" y1="{low:.1}" x2="{x:.1}" y2="{high:.1}" stroke="{INK}"/>"#));
        canvas.dot(
            *x,
            point.median,
            INK,
            false,
            &format!("{}: {}", point.value, words::value(point.median, &curve.unit)),
        );
        canvas.label(*x, &point.value);
    }
    canvas.end(&format!("{}; medians of {} passes with 95 % intervals", report.variable.name, curve.passes))
}

/// The positions of the values: by their logarithm where all are numbers above 0, else at equal distances.
fn places(curve: &Curve) -> Vec<f64> {
    let logs: Option<Vec<f64>> =
        curve.points.iter().map(|point| point.number.filter(|n| *n > 0.0).map(f64::ln)).collect();
    let ascending = logs.filter(|logs| logs.is_sorted() && logs.first() != logs.last());
    let last = curve.points.len().max(2) - 1;
    let shares: Vec<f64> = match ascending {
        Some(logs) => logs.iter().map(|log| (log - logs[0]) / (logs[last] - logs[0])).collect(),
        None => (0..curve.points.len()).map(|i| i as f64 / last as f64).collect(),
    };
    shares.iter().map(|share| LEFT + 24.0 + (WIDTH - LEFT - RIGHT - 48.0) * share).collect()
}

/// A plot with its axis of values; the upright axis begins at 0 unless all values lie close together.
struct Canvas {
    out: String,
    low: f64,
    high: f64,
}

impl Canvas {
    fn new(title: &str, values: impl Iterator<Item = f64>, unit: &str) -> Self {
        let (least, most) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let (least, most) = if least <= most { (least, most) } else { (0.0, 1.0) };
        let near = least > 0.0 && least > 0.8 * most;
        let from = if near { least - (most - least).max(most * 0.01) * 0.2 } else { least.min(0.0) };
        let step = round_step((most - from).max(most.abs() * 0.01).max(f64::MIN_POSITIVE) / STEPS);
        let (low, high) = ((from / step).floor() * step, (most / step).ceil() * step);
        let height = TOP + PLOT + BOTTOM;
        let mut canvas = Self { out: String::new(), low, high: if high > low { high } else { low + step } };
        let title = escaped(title);
        canvas.push(&format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="system-ui, sans-serif" font-size="12">"#
        ));
        canvas.push(&format!("<title>{title}</title>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>"));
        canvas
            .push(&format!(r#"<text x="{LEFT}" y="22" font-size="14" font-weight="600" fill="{INK}">{title}</text>"#));
        let mut tick = low;
        while tick <= canvas.high + step / 2.0 {
            let y = canvas.y(tick);
            canvas.push(&format!(
                r#"<line x1="{LEFT}" y1="{y:.1}" x2="{}" y2="{y:.1}" stroke="{FAINT}"/>"#,
                WIDTH - RIGHT
            ));
            let label = escaped(&words::value(if tick.abs() < step / 1e3 { 0.0 } else { tick }, unit));
            canvas.push(&format!(
                r#"<text x="{}" y="{:.1}" text-anchor="end" fill="{GREY}">{label}</text>"#,
                LEFT - 8.0,
                y + 4.0
            ));
            tick += step;
        }
        canvas
    }

    fn push(&mut self, text: &str) {
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn y(&self, value: f64) -> f64 {
        TOP + PLOT * (1.0 - (value - self.low) / (self.high - self.low))
    }

    fn dot(&mut self, x: f64, value: f64, ink: &str, hollow: bool, label: &str) {
        let fill = if hollow { "none" } else { ink };
        let (y, label) = (self.y(value), escaped(label));
        self.push(&format!(
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{fill}" fill-opacity="0.7" stroke="{ink}"><title>{label}</title></circle>"#
        ));
    }

    fn level(&mut self, value: f64, ink: &str) {
        let (y, right) = (self.y(value), WIDTH - RIGHT);
        self.push(&format!(
            r#"<line x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="{ink}" stroke-dasharray="6 4" stroke-opacity="0.6"/>"#
        ));
    }

    fn band(&mut self, from: f64, to: f64, ink: &str) {
        let (x, width) = (from - 6.0, (to - from) + 12.0);
        self.push(&format!(
            r#"<rect x="{x:.1}" y="{TOP}" width="{width:.1}" height="{PLOT}" fill="{ink}" fill-opacity="0.12"/>"#
        ));
    }

    fn label(&mut self, x: f64, text: &str) {
        let y = TOP + PLOT + 16.0;
        self.push(&format!(
            r#"<text x="{x:.1}" y="{y}" text-anchor="middle" font-size="11" fill="{GREY}">{}</text>"#,
            escaped(text)
        ));
    }

    fn legend(&mut self, text: &str, ink: &str, y: f64) {
        let x = WIDTH - RIGHT;
        self.push(&format!(r#"<text x="{x}" y="{y}" text-anchor="end" fill="{ink}">{}</text>"#, escaped(text)));
    }

    fn end(mut self, caption: &str) -> String {
        let (x, y) = (LEFT + (WIDTH - LEFT - RIGHT) / 2.0, TOP + PLOT + BOTTOM - 8.0);
        self.push(&format!(r#"<text x="{x}" y="{y}" text-anchor="middle" fill="{GREY}">{}</text>"#, escaped(caption)));
        self.push("</svg>");
        self.out
    }
}

/// The next of 1, 2, 5, 10, 20, ... that is not smaller.
fn round_step(least: f64) -> f64 {
    let size = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|part| part * size).find(|step| *step >= least * 0.999).unwrap_or(10.0 * size)
}

fn escaped(text: &str) -> String {
    printable(text, ' ').replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The lines that say where the pictures are, for stderr.
pub fn written(count: usize, directory: &std::path::Path) -> String {
    format!("{} in {}", units::plural(count as u64, "picture", "pictures"), directory.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        for (least, step) in [(0.9, 1.0), (1.0, 1.0), (1.1, 2.0), (3.0, 5.0), (0.03, 0.05), (700.0, 1000.0)] {
            assert!((round_step(least) / step - 1.0).abs() < 1e-9, "{least}: {}", round_step(least));
        }
    }

    #[test]
    fn an_axis_holds_all_values_and_text_cannot_leave_its_element() {
        for values in [vec![0.0, 0.0], vec![5.0], vec![98.0, 101.0], vec![-3.0, 7.0], vec![]] {
            let canvas = Canvas::new("a<b & \"c\"", values.iter().copied(), "s");
            assert!(values.iter().all(|v| (TOP - 0.1..=TOP + PLOT + 0.1).contains(&canvas.y(*v))), "{values:?}");
            let svg = canvas.end("x</svg>");
            assert!(svg.contains("a&lt;b &amp; &quot;c&quot;") && svg.matches("</svg>").count() == 1);
        }
    }
}
