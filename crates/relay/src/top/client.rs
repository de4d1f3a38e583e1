//! A client of a relay's control socket.
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use crate::control::snapshot::{SCHEMA, Snapshot};
use crate::control::socket::Ask;
use crate::control::socket_path;
use parshall_host::control_client::{ControlClient, Limits};
use parshall_host::error::UserError;

/// A relay that has not replied in full within this time is stopped or hangs. A snapshot has some 700 bytes a listener, so the
/// longest is that of 45,000 listeners.
const LIMITS: Limits = Limits { time: Duration::from_secs(5), bytes: 32 << 20 };

/// Paths in the error for several relays.
const LISTED_MAX: usize = 20;

#[derive(Debug)]
pub struct Client {
    stream: ControlClient,
    path: PathBuf,
}

impl Client {
    /// Connects to the control socket at this path, or to that of the only relay of this user.
    pub fn connect(control: Option<PathBuf>) -> anyhow::Result<Self> {
        let path = match control {
            Some(path) => path,
            None => only(socket_path::alive(&socket_path::searched()))?,
        };
        let stream = ControlClient::connect(&path, LIMITS).map_err(|e| refusal(&path, &e))?;
        Ok(Self { stream, path })
    }

    pub fn snapshot(&mut self) -> anyhow::Result<Snapshot> {
        let mut request = serde_json::to_string(&Ask::Snapshot)?;
        request.push('\n');
        let gone = || UserError::new(format!("the relay at {} has ended", self.path.display()), "start it again");
        let reply = match self.stream.ask(request.as_bytes()) {
            Ok(reply) if reply.is_empty() => return Err(gone().into()),
            Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                return Err(gone().into());
            }
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                let what = format!("the relay at {} does not answer", self.path.display());
                return Err(UserError::new(what, "it may be stopped: `ps` says so").into());
            }
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                let what = format!("what answers at {} is no relay: {e}", self.path.display());
                return Err(UserError::new(what, "`ss -xlp` names the program that listens there").into());
            }
            reply => reply.with_context(|| format!("asking the relay at {}", self.path.display()))?,
        };
        let unknown = || format!("what answers at {} is no relay of this version", self.path.display());
        let snapshot: Snapshot = serde_json::from_str(&reply).with_context(unknown)?;
        anyhow::ensure!(snapshot.schema == SCHEMA, unknown());
        Ok(snapshot)
    }
}

fn only(paths: Vec<PathBuf>) -> Result<PathBuf, UserError> {
    let name = "name one with --control PATH";
    match &paths[..] {
        [one] => Ok(one.clone()),
        [] => {
            let searched: Vec<String> = socket_path::searched().iter().map(|d| d.display().to_string()).collect();
            let what = format!("no relay of this user runs: none answers in {}", searched.join(", "));
            Err(UserError::new(
                what,
                format!("start one with `parshall relay`; one with another `control` path: {name}"),
            ))
        }
        several => {
            let mut list: Vec<String> = several.iter().take(LISTED_MAX).map(|p| p.display().to_string()).collect();
            if several.len() > LISTED_MAX {
                list.push("...".to_owned());
            }
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
        io::ErrorKind::WouldBlock => "it accepts no connection and may be stopped: `ps` says so",
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
