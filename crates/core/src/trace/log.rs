//! Lanes of log lines: one for each process and where its lines went.
use std::collections::BTreeMap;

use parshall_evidence::{Capture, LogLine};

use super::lane::{Draft, Of, Span, Texts};
use super::state::State;
use crate::sorting::StableSort as _;
use crate::units::or;

/// By process.
pub fn lanes(capture: &Capture, texts: &mut Texts) -> Vec<Draft> {
    let mut by_lane: BTreeMap<(u32, &str), Vec<&LogLine>> = BTreeMap::new();
    for line in capture.log.iter().flat_map(|log| &log.lines) {
        by_lane.entry((line.pid, &line.to)).or_default().push(line);
    }
    let lane = |((pid, to), mut lines): ((u32, &str), Vec<&LogLine>)| {
        // A case that was changed by hand may have any order.
        lines.stable_sort_by_key(|line| line.at_ns);
        let process = lines.first().map_or("", |line| line.process.as_str());
        Draft {
            of: Of::Log(pid),
            group: format!("{} {pid}", or(process, "process")),
            name: to.to_owned(),
            spans: lines.into_iter().map(|line| (span(line, texts), 0)).collect(),
        }
    };
    by_lane.into_iter().map(lane).collect()
}

/// A moment. That a line was longer is said behind it.
fn span(line: &LogLine, texts: &mut Texts) -> Span {
    let text = if line.cut { format!("{}…", line.text) } else { line.text.clone() };
    let state = State::LogLine;
    Span { begin_ns: line.at_ns, end_ns: line.at_ns, state, text: texts.id(text), ended_by: None, stack: None }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::Log;

    use super::*;
    use crate::testkit::empty_capture;

    #[test]
    fn lines_are_moments_in_the_lane_of_where_they_went() {
        let line = |at_ns, to: &str, text: &str, cut| LogLine {
            at_ns,
            pid: 7,
            process: "app".to_owned(),
            to: to.to_owned(),
            text: text.to_owned(),
            cut,
            ..LogLine::default()
        };
        let lines =
            vec![line(9, "stderr", "late", false), line(3, "stderr", "long", true), line(4, "stdout", "x", false)];
        let capture = Capture { log: Some(Log { lines, left_out: 0 }), ..empty_capture() };
        let mut texts = Texts::new();
        let lanes = lanes(&capture, &mut texts);
        let shown: Vec<_> = lanes
            .iter()
            .flat_map(|lane| {
                lane.spans.iter().map(|(span, _)| (lane.name.as_str(), span.begin_ns, span.ns(), span.text))
            })
            .map(|(name, at, ns, text)| (name, at, ns, texts.all[text as usize].as_str()))
            .collect();
        assert_eq!(shown, [("stderr", 3, 0, "long…"), ("stderr", 9, 0, "late"), ("stdout", 4, 0, "x")]);
        assert_eq!(lanes[0].group, "app 7");
    }
}
