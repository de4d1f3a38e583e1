//! How a process says to the one that started it that it is ready, or why not: in one line of JSON.
use std::io::{BufRead, BufReader, Read, Write};

use parshall_host::error::{self, UserError};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
enum Line {
    Ready,
    Failed { what: String, hint: String },
}

/// Reports the outcome of the preparations. Nobody may be waiting any more.
pub fn report<T>(mut to: impl Write, outcome: &anyhow::Result<T>) {
    let line = match outcome {
        Ok(_) => Line::Ready,
        Err(error) => {
            let UserError { what, hint } = error::for_user(error);
            Line::Failed { what, hint }
        }
    };
    let text = serde_json::to_string(&line).expect("strings are JSON") + "\n";
    to.write_all(text.as_bytes()).ok();
}

/// Waits until the process is ready. None if it ended before it said anything.
pub fn wait(from: impl Read) -> Option<Result<(), UserError>> {
    let mut text = String::new();
    BufReader::new(from).read_line(&mut text).ok()?;
    match serde_json::from_str(&text).ok()? {
        Line::Ready => Some(Ok(())),
        Line::Failed { what, hint } => Some(Err(UserError::new(what, hint))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_passes_and_silence_is_none() {
        let mut text = Vec::new();
        report(&mut text, &anyhow::Ok(()));
        assert_eq!(wait(&text[..]), Some(Ok(())));
        text.clear();
        let error = UserError::new("port 1 is taken", "take another");
        report(&mut text, &anyhow::Result::<()>::Err(error.clone().into()));
        assert_eq!(wait(&text[..]), Some(Err(error)));
        assert_eq!(wait(&b""[..]), None);
    }
}
