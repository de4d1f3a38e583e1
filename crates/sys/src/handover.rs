//! Listening sockets that pass from one process to the next, by the convention of systemd: descriptors from 3 on, and
//! `LISTEN_FDS`, `LISTEN_PID` and `LISTEN_FDNAMES` in the environment (sd_listen_fds(3)).
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// The first descriptor handed over.
const FIRST: RawFd = 3;
/// The name of the pipe on which a successor says that it is ready.
const READY: &str = "parshall-ready";
/// Descriptors that are inherited at most: a number in the environment is not trusted.
const MAX: usize = 65_536;
/// Variables of the convention.
const VARIABLES: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// Descriptors that were handed over to this process.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Sockets, close-on-exec and non-blocking now.
    pub sockets: Vec<OwnedFd>,
    /// The pipe on which a predecessor waits until this process is ready.
    pub ready: Option<File>,
    /// How many of the descriptors of `LISTEN_FDS` are not open.
    pub missing: usize,
}

/// Descriptors that [`claim`] has taken.
static CLAIMED: Mutex<Option<Inherited>> = Mutex::new(None);

/// Takes what was handed over to this very process, for [`inherited`]. To be called first in `main`, before anything is
/// opened: the convention is a range of descriptors, and one that is longer than what was handed over would reach
/// descriptors of our own. It does nothing unless `LISTEN_PID` is this process.
pub fn claim() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.trim().parse::<u32>().ok());
    let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
    if number("LISTEN_PID") == Some(std::process::id()) && claimed.is_none() {
        let count = number("LISTEN_FDS").map_or(0, |n| n as usize).min(MAX);
        *claimed = Some(take(count, &std::env::var("LISTEN_FDNAMES").unwrap_or_default()));
    }
}

/// Descriptors that were handed over to this process and taken by [`claim`]. The second call gets none.
pub fn inherited() -> Inherited {
    let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
    claimed.as_mut().map(std::mem::take).unwrap_or_default()
}

fn take(count: usize, names: &str) -> Inherited {
    let mut inherited = Inherited::default();
    let mut names = names.split(':');
    for fd in FIRST..FIRST + count as RawFd {
        let name = names.next().unwrap_or_default();
        // SAFETY: fcntl with these commands takes no pointers; on a descriptor that is not open it fails.
        let open = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } == 0;
        if !open {
            inherited.missing += 1;
            continue;
        }
        // SAFETY: it is open, the convention gives it to this process, this process has opened nothing yet, and `CLAIMED`
        // lets this happen once.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        if name == READY {
            inherited.ready = Some(File::from(owned));
            continue;
        }
        if let Ok(flags) = fcntl_getfl(&owned) {
            fcntl_setfl(&owned, flags | OFlags::NONBLOCK).ok();
        }
        inherited.sockets.push(owned);
    }
    inherited
}

/// The path that this process was started by, as it was given to execve(2): symbolic links are not resolved. None where the
/// kernel does not pass it.
pub fn started_by() -> Option<std::path::PathBuf> {
    let path = rustix::param::linux_execfn().to_bytes();
    (!path.is_empty()).then(|| OsString::from_vec(path.to_vec()).into())
}

/// A process that was started to take over.
#[derive(Debug)]
pub struct Successor {
    pid: Pid,
    /// The reading end of the pipe on which it says that it is ready; end of file without data means that it failed.
    pub ready: File,
}

impl Successor {
    #[allow(missing_docs)]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_pid() as u32
    }

    /// Waits for its end. Some is its exit code, or 128 and the signal that ended it.
    pub fn wait(&self) -> io::Result<i32> {
        let status = loop {
            match waitpid(Some(self.pid), WaitOptions::empty()) {
                Ok(Some((_, status))) => break status,
                Ok(None) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        Ok(status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0)))
    }

    /// Kills it. It is our child and has not been waited for, so the pid is still its own.
    pub fn kill(&self) {
        kill_process(self.pid, Signal::KILL).ok();
    }
}

/// Starts `program` with these sockets. It inherits our environment, apart from the variables of the convention.
pub fn spawn(program: &Path, arguments: &[OsString], sockets: &[BorrowedFd<'_>]) -> io::Result<Successor> {
    let (read, write) = io::pipe()?;
    // Copies above the range in which the child puts them, so that none is overwritten before it is moved.
    let floor = FIRST + sockets.len() as RawFd + 1;
    let copies = sockets.iter().copied().chain([write.as_fd()]).map(|fd| fcntl_dupfd_cloexec(fd, floor));
    let copies = copies.collect::<Result<Vec<OwnedFd>, Errno>>()?;
    drop(write);
    let mut image = Image::new(program, arguments, sockets.len())?;
    let (argv, envp) = (pointers(&image.argv), pointers(&image.envp));
    let pid_digits = image.pid.as_mut_ptr();
    let mut envp = envp;
    envp.insert(0, pid_digits.cast::<libc::c_char>().cast_const());
    // SAFETY: the child calls only what is safe after fork() in a process with threads (getpid, dup2, execve, _exit)
    // and touches only memory made before; fork takes no pointers.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above; the arrays end with null, the strings with zero, and the digits' place is in range.
        unsafe {
            write_digits(pid_digits, libc::getpid() as u32);
            for (to, from) in copies.iter().enumerate() {
                // The copy in its place is not close-on-exec.
                if libc::dup2(from.as_raw_fd(), FIRST + to as RawFd) < 0 {
                    libc::_exit(126);
                }
            }
            libc::execve(image.program.as_ptr(), argv.as_ptr(), envp.as_ptr());
            libc::_exit(127);
        }
    }
    let pid = Pid::from_raw(pid.max(0)).ok_or_else(io::Error::last_os_error)?;
    Ok(Successor { pid, ready: File::from(OwnedFd::from(read)) })
}

/// Everything that execve() needs, made before fork().
struct Image {
    program: CString,
    argv: Vec<CString>,
    envp: Vec<CString>,
    /// `LISTEN_PID=` and ten digits, which only the child knows.
    pid: Vec<u8>,
}

const PID_DIGITS: usize = 10;
const PID_KEY: &[u8] = b"LISTEN_PID=";

impl Image {
    fn new(program: &Path, arguments: &[OsString], sockets: usize) -> io::Result<Self> {
        let text = |bytes: Vec<u8>| CString::new(bytes).map_err(io::Error::other);
        let program = text(program.as_os_str().to_owned().into_vec())?;
        let mut argv = vec![program.clone()];
        for argument in arguments {
            argv.push(text(argument.clone().into_vec())?);
        }
        let mut envp = vec![
            text(format!("LISTEN_FDS={}", sockets + 1).into_bytes())?,
            text(format!("LISTEN_FDNAMES={}{READY}", "socket:".repeat(sockets)).into_bytes())?,
        ];
        for (key, value) in std::env::vars_os() {
            if !VARIABLES.iter().any(|v| key == *v) {
                envp.push(text([key.into_vec(), b"=".to_vec(), value.into_vec()].concat())?);
            }
        }
        let pid = [PID_KEY, &[b'0'; PID_DIGITS], &[0]].concat();
        Ok(Self { program, argv, envp, pid })
    }
}

fn pointers(texts: &[CString]) -> Vec<*const libc::c_char> {
    texts.iter().map(|t| t.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Writes a number over the ten digits after the key.
///
/// # Safety
/// `text` points to the bytes of [`Image::pid`].
unsafe fn write_digits(text: *mut u8, mut number: u32) {
    for place in (0..PID_DIGITS).rev() {
        // SAFETY: the caller guarantees that the key and ten digits are there.
        unsafe { *text.add(PID_KEY.len() + place) = b'0' + (number % 10) as u8 };
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    fn shell(script: &str, sockets: &[BorrowedFd<'_>]) -> Successor {
        spawn(Path::new("/bin/sh"), &["-c".into(), script.into()], sockets).expect("a shell")
    }

    #[test]
    fn a_successor_inherits_the_sockets_and_the_pipe() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let inode = std::fs::read_link(format!("/proc/self/fd/{}", listener.as_raw_fd())).expect("open");
        let script = "exec >&4; test $LISTEN_PID -eq $$ && echo $LISTEN_FDS $LISTEN_FDNAMES; readlink /proc/self/fd/3";
        let mut successor = shell(script, &[listener.as_fd()]);
        let mut said = String::new();
        successor.ready.read_to_string(&mut said).expect("readable");
        assert_eq!(said, format!("2 socket:parshall-ready\n{}\n", inode.display()));
        assert_eq!(successor.wait().expect("our child"), 0);
    }

    #[test]
    fn a_failed_successor_closes_the_pipe_and_has_an_exit_code() {
        let mut successor = shell("exit 3", &[]);
        let mut said = String::new();
        successor.ready.read_to_string(&mut said).expect("readable");
        assert_eq!((said.as_str(), successor.wait().expect("our child")), ("", 3));
        let nowhere = spawn(Path::new("/nonexistent"), &[], &[]).expect("forked");
        assert_eq!(nowhere.wait().expect("our child"), 127);
    }

    #[test]
    fn without_the_variables_nothing_is_inherited() {
        claim();
        assert!(inherited().sockets.is_empty());
    }

    #[test]
    fn a_process_knows_by_which_path_it_was_started() {
        let path = started_by().expect("Linux passes it");
        assert_eq!(std::fs::canonicalize(path).expect("there"), std::env::current_exe().expect("there"));
    }
}
