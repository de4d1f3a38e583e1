//! Functions that an interpreter runs: of a child that has the structures of one in its memory, as they should be and in circles. Needs
//! root.
use std::os::unix::thread::JoinHandleExt;
use std::time::Duration;

use parshall_bpf::diagnose::interpreter::{INTERPRETED_MAX, InterpretedWire, InterpreterWire};
use parshall_bpf::diagnose::{Config, Event, Probes};

use crate::probed::{Talker, alone, end_with_parent, lost_beside_map_iterators, ready};

/// Words from the begin of the child's structures.
const ALONE: usize = 1;
const FIRST_INTERPRETER: usize = 8;
const SECOND_INTERPRETER: usize = 16;
const OTHER_STATE: usize = 24;
const STATE: usize = 32;
const CFRAME: usize = 40;
const INNER: usize = 48;
const OUTER: usize = 56;
const WORDS: usize = 64;

/// Sleeps and computes in turn, in a thread whose state is the second one of the second interpreter. `TALK` is a file for the address
/// of the structures, or `circle FILE`: then the outer frame was called by the inner one.
#[test]
#[ignore = "not a test: the body of the child process"]
fn interprets() {
    let Ok(talk) = std::env::var("TALK") else { return };
    let (circle, file) = talk.strip_prefix("circle ").map_or((false, talk.as_str()), |file| (true, file));
    let worker = std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_millis(3));
            let begun = std::time::Instant::now();
            while begun.elapsed() < Duration::from_millis(3) {}
        }
    });
    let words: &'static mut [u64] = Box::leak(vec![0; WORDS].into_boxed_slice());
    let begin = words.as_ptr() as u64;
    let at = |word: usize| begin + 8 * word as u64;
    words[0] = at(FIRST_INTERPRETER);
    // Another one that is its own next one, without threads.
    words[ALONE] = at(ALONE + 1);
    words[ALONE + 1] = at(ALONE + 1);
    words[FIRST_INTERPRETER] = at(SECOND_INTERPRETER);
    words[SECOND_INTERPRETER + 1] = at(OTHER_STATE);
    words[OTHER_STATE] = at(STATE);
    words[OTHER_STATE + 1] = 4711;
    words[OTHER_STATE + 4] = at(OTHER_STATE);
    words[STATE + 1] = worker.as_pthread_t();
    words[STATE + 2] = at(CFRAME);
    words[CFRAME + 3] = at(INNER);
    words[INNER..INNER + 4].copy_from_slice(&[at(OUTER), 0xc0de1, 0x11, 0xff00 | 7]);
    words[OUTER..OUTER + 4].copy_from_slice(&[if circle { at(INNER) } else { 0 }, 0xc0de2, 0x22, 3]);
    std::fs::write(file, begin.to_string()).unwrap();
    end_with_parent();
    println!("talking");
    drop(worker.join());
}

/// Where the child has what, if its structures begin there.
fn layout(begin: u64) -> InterpreterWire {
    InterpreterWire {
        interpreters: begin,
        next_interpreter: 0,
        first_state: 8,
        next_state: 0,
        state_identity: 8,
        state_frame: 16,
        through_cframe: 1,
        cframe_frame: 24,
        frame_caller: 0,
        frame_code: 8,
        frame_instruction: 16,
        frame_kind: 24,
        pad: 0,
    }
}

/// What is reported of the child, and of how many of its stacks.
fn reported(circle: bool, as_older: bool, change: impl Fn(&mut InterpreterWire)) -> (Vec<InterpretedWire>, usize) {
    let path = std::env::temp_dir().join(format!("parshall-interprets-{}", std::process::id()));
    let talk = format!("{}{}", if circle { "circle " } else { "" }, path.display());
    let child = Talker::start_as("interpreters::interprets", &talk);
    let config = Config { interpreters: true, as_older, ..child.config(64) };
    let mut probes = Probes::load(&config).unwrap();
    let mut wire = layout(std::fs::read_to_string(&path).unwrap().parse().unwrap());
    std::fs::remove_file(&path).unwrap();
    change(&mut wire);
    assert!(probes.add_interpreter(child.pid(), &wire));
    probes.attach_always().unwrap();
    probes.attach_samples(0..std::thread::available_parallelism().unwrap().get() as i32);
    probes.threads().unwrap();
    probes.begin_slice().unwrap();
    let (mut found, mut stacks, mut events) = (Vec::<InterpretedWire>::new(), 0, Vec::new());
    let give_up = std::time::Instant::now() + Duration::from_secs(20);
    let both = |found: &[InterpretedWire]| [true, false].iter().all(|at| found.iter().any(|r| (r.head.at != 0) == *at));
    while std::time::Instant::now() < give_up && (stacks < 100 || !(found.is_empty() || both(&found))) {
        std::thread::sleep(Duration::from_millis(20));
        while probes.drain(&mut events) {}
        for event in events.drain(..) {
            match event {
                Event::Interpreted(record) => found.push(*record),
                Event::UserStack(_) | Event::Sample(_) => stacks += 1,
                _ => {}
            }
        }
    }
    probes.end_slice();
    assert_eq!((probes.counters().lost, lost_beside_map_iterators(&probes)), (0, Vec::new()));
    (found, stacks)
}

fn are_copied(as_older: bool) {
    if !ready("functions of an interpreter") {
        return;
    }
    let _alone = alone();
    let (found, _) = reported(false, as_older, |_| {});
    for record in &found {
        let frames: Vec<(u64, u64, u8)> =
            record.frames().iter().map(|frame| (frame.code, frame.instruction, frame.kind as u8)).collect();
        assert_eq!((frames, record.more), (vec![(0xc0de1, 0x11, 7), (0xc0de2, 0x22, 3)], 0));
    }
    // Of sleeps and, with their time, of samples.
    assert!(
        [true, false].iter().all(|sample| found.iter().any(|record| (record.head.at != 0) == *sample)),
        "{found:?}"
    );
}

#[test]
fn functions_are_copied() {
    are_copied(false);
}

#[test]
fn functions_are_copied_by_the_programs_for_older_kernels() {
    are_copied(true);
}

#[test]
fn frames_in_a_circle_end() {
    if !ready("an interpreter's frames in a circle") {
        return;
    }
    let _alone = alone();
    let (found, _) = reported(true, false, |_| {});
    assert!(!found.is_empty());
    for record in found {
        assert_eq!((record.frames().len(), record.more), (INTERPRETED_MAX, 1));
        assert!(record.frames().chunks(2).all(|pair| (pair[0].code, pair[1].code) == (0xc0de1, 0xc0de2)));
    }
}

#[test]
fn addresses_that_lead_nowhere_give_nothing() {
    if !ready("an interpreter that is none") {
        return;
    }
    let _alone = alone();
    let wrong: [fn(&mut InterpreterWire); 4] = [
        |wire| wire.interpreters = 0x1000,
        |wire| wire.interpreters = u64::MAX - 3,
        |wire| wire.interpreters += 8 * ALONE as u64,
        // The states of the threads are in a circle, and none is this thread's.
        |wire| wire.next_state = 32,
    ];
    for change in wrong {
        let (found, stacks) = reported(false, false, change);
        assert!(found.is_empty() && stacks > 0, "{found:?}");
    }
}
