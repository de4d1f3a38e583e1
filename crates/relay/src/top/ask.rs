//! Asking a relay at its control socket.
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use crate::control::place;
use crate::control::snapshot::{SCHEMA, Snapshot};
use crate::control::socket::Ask;
use parshall_host::error::UserError;

/// A relay that does not answer for so long will not.
const PATIENCE: Duration = Duration::from_secs(5);

/// A conversation with a relay.
#[derive(Debug)]
pub struct Line {
    stream: BufReader<UnixStream>,
    path: PathBuf,
}

impl Line {
    /// Connects to the relay at this path, or to the only one of this user.
    pub fn open(control: Option<PathBuf>) -> anyhow::Result<Self> {
        let path = match control {
            Some(path) => path,
            None => only(place::alive(&place::searched()))?,
        };
        let stream = UnixStream::connect(&path).map_err(|e| refusal(&path, &e))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), path })
    }

    /// Everything that is counted, now.
    pub fn snapshot(&mut self) -> anyhow::Result<Snapshot> {
        let mut question = serde_json::to_string(&Ask::Snapshot)?;
        question.push('\n');
        let mut answer = String::new();
        let asked = self.stream.get_mut().write_all(question.as_bytes());
        let read = asked.and_then(|()| self.stream.read_line(&mut answer));
        let gone = || UserError::new(format!("the relay at {} has ended", self.path.display()), "start it again");
        match read {
            Ok(0) => return Err(gone().into()),
            Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                return Err(gone().into());
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                let what = format!("the relay at {} does not answer", self.path.display());
                return Err(UserError::new(what, "it may be stopped: `ps` says so").into());
            }
            result => result?,
        };
        let strange = || format!("what answers at {} is no relay of this version", self.path.display());
        let snapshot: Snapshot = serde_json::from_str(&answer).with_context(strange)?;
        anyhow::ensure!(snapshot.schema == SCHEMA, strange());
        Ok(snapshot)
    }
}

fn only(paths: Vec<PathBuf>) -> Result<PathBuf, UserError> {
    let name = "name one with --control PATH";
    match &paths[..] {
        [one] => Ok(one.clone()),
        [] => {
            let searched: Vec<String> = place::searched().iter().map(|d| d.display().to_string()).collect();
            let what = format!("no relay of this user runs: none answers in {}", searched.join(", "));
            Err(UserError::new(
                what,
                format!("start one with `parshall relay`; one with another `control` path: {name}"),
            ))
        }
        several => {
            let list: Vec<String> = several.iter().map(|p| p.display().to_string()).collect();
            Err(UserError::new(format!("{} relays run: {}", several.len(), list.join(", ")), name))
        }
    }
}

fn refusal(path: &Path, error: &io::Error) -> UserError {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "the socket is for the user that started the relay: become that user, or root"
        }
        io::ErrorKind::ConnectionRefused => "the relay that made it has ended: start it again",
        _ => "check the path: it is `control` in the relay's configuration",
    };
    UserError::new(format!("no relay answers at {}: {error}", path.display()), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_must_be_named() {
        let paths = vec![PathBuf::from("/run/a"), PathBuf::from("/run/b")];
        assert_eq!(only(paths[..1].to_vec()).expect("one"), paths[0]);
        assert!(only(paths).expect_err("two").what.contains("2 relays run: /run/a, /run/b"));
        assert!(only(Vec::new()).expect_err("none").hint.contains("parshall relay"));
    }
}
