//! A client of a relay's control socket.
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use crate::control::snapshot::{SCHEMA, Snapshot};
use crate::control::socket::Ask;
use crate::control::socket_path;
use parshall_host::error::UserError;

/// A relay that does not reply within this time is stopped or hangs.
const IO_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    path: PathBuf,
}

impl Client {
    /// Connects to the control socket at this path, or to that of the only relay of this user.
    pub fn connect(control: Option<PathBuf>) -> anyhow::Result<Self> {
        let path = match control {
            Some(path) => path,
            None => only(socket_path::alive(&socket_path::searched()))?,
        };
        let stream = UnixStream::connect(&path).map_err(|e| refusal(&path, &e))?;
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        stream.set_write_timeout(Some(IO_TIMEOUT))?;
        Ok(Self { stream: BufReader::new(stream), path })
    }

    pub fn snapshot(&mut self) -> anyhow::Result<Snapshot> {
        let mut request = serde_json::to_string(&Ask::Snapshot)?;
        request.push('\n');
        let mut reply = String::new();
        let asked = self.stream.get_mut().write_all(request.as_bytes());
        let read = asked.and_then(|()| self.stream.read_line(&mut reply));
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
