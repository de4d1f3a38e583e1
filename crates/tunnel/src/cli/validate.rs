//! Checks the flags of `parshall tunnel` and turns them into a request.
use std::path::{Path, PathBuf};

use parshall_core::text::quote;
use parshall_host::error::UserError;
use parshall_sys::privileges;

use super::args::{ProcessArgs, RunArgs, TunnelArgs, TunnelCommand, UpArgs};
use crate::request::{DIRECTORY, Place, ShowRequest, TunnelRequest, UpRequest, UserIds, WorkRequest};

/// The longest name of an interface, in bytes (IFNAMSIZ without the final zero).
const NAME_MAX: usize = 15;

impl TunnelArgs {
    pub fn validate(self) -> Result<TunnelRequest, UserError> {
        match self.command {
            TunnelCommand::Up(args) => args.validate().map(TunnelRequest::Up),
            TunnelCommand::Run(args) => args.validate().map(TunnelRequest::Up),
            TunnelCommand::Down(args) => interface(args.interface).map(TunnelRequest::Down),
            TunnelCommand::Show(args) => {
                let interface = args.interface.map(interface).transpose()?;
                Ok(TunnelRequest::Show(ShowRequest { interface, output: args.print.output() }))
            }
            TunnelCommand::Work(args) => Ok(TunnelRequest::Work(WorkRequest {
                interface: args.interface,
                mtu: args.mtu,
                engine: args.engine.validate()?,
                user: args.uid.zip(args.gid).map(|(uid, gid)| UserIds { uid, gid }),
            })),
        }
    }
}

impl UpArgs {
    fn validate(self) -> Result<UpRequest, UserError> {
        let (file, fail_open) = (named(self.file), self.fail_open);
        let of_file = || file.file_stem().map(|name| name.to_string_lossy().into_owned());
        let name = interface(self.interface.or_else(of_file).unwrap_or_default())?;
        self.process.validate(name).map(|request| UpRequest { file: Some(file), fail_open, ..request })
    }
}

/// As wg-quick has it: `wg0` is /etc/wireguard/wg0.conf, and a path or a name with .conf is a file.
fn named(file: PathBuf) -> PathBuf {
    match file.to_str() {
        Some(name) if !name.contains('/') && !name.ends_with(".conf") && interface(name.to_owned()).is_ok() => {
            Path::new(DIRECTORY).join(format!("{name}.conf"))
        }
        _ => file,
    }
}

impl RunArgs {
    fn validate(self) -> Result<UpRequest, UserError> {
        self.process.validate(interface(self.interface)?)
    }
}

impl ProcessArgs {
    fn validate(self, interface: String) -> Result<UpRequest, UserError> {
        let place = match (self.daemon, self.detached) {
            (true, _) => Place::Daemon,
            (_, true) => Place::Detached,
            _ if self.log.is_some() => {
                let what = "--log is for a daemon: in the foreground, the log goes to stderr";
                return Err(UserError::new(what, "add --daemon, or leave out --log and write `2> FILE`"));
            }
            _ => Place::Foreground,
        };
        let user = self.user.as_deref().map(user).transpose()?;
        Ok(UpRequest {
            file: None,
            interface,
            engine: self.engine.validate()?,
            place,
            log: self.log,
            listen: self.listen,
            user,
            fail_open: false,
        })
    }
}

fn user(name: &str) -> Result<UserIds, UserError> {
    match privileges::lookup(name, None) {
        Some(user) => Ok(UserIds { uid: user.uid, gid: user.gid }),
        None => {
            let what = format!("--user: there is no user {}", quote(name));
            Err(UserError::new(what, "`getent passwd` lists the users"))
        }
    }
}

/// As wg-quick has it: what the kernel takes, and nothing that a shell or `ip` reads otherwise.
fn interface(name: String) -> Result<String, UserError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_=+.-".contains(c);
    let fits = (1..=NAME_MAX).contains(&name.len()) && name.chars().all(plain);
    if !fits || name == "." || name == ".." || name.starts_with('-') {
        return Err(UserError::new(
            format!("{} cannot be the name of an interface", quote(&name)),
            "give one such as wg0: at most 15 letters, digits and _=+.-; `up` takes it with --interface",
        ));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::engine::EngineArgs;

    fn process() -> ProcessArgs {
        ProcessArgs {
            daemon: false,
            detached: false,
            log: None,
            engine: EngineArgs::of("").unwrap(),
            listen: None,
            user: Some("root".to_owned()),
        }
    }

    fn interface(file: &str, interface: Option<&str>) -> Result<String, UserError> {
        let interface = interface.map(str::to_owned);
        let args = UpArgs { file: file.into(), interface, fail_open: false, process: process() };
        args.validate().map(|request| request.interface)
    }

    #[test]
    fn the_interface_is_named_after_the_file() {
        assert_eq!(interface("/etc/wireguard/wg0.conf", None).as_deref(), Ok("wg0"));
        assert_eq!(interface("wg0.conf", Some("office-1")).as_deref(), Ok("office-1"));
        for file in ["a name with blanks.conf", "a-name-of-16-byte.conf", "-x.conf", "..", "/"] {
            assert!(interface(file, None).is_err(), "{file}");
        }
        let error = interface("a/b c.conf", None).unwrap_err();
        assert_eq!(error.what, "`b c` cannot be the name of an interface");
    }

    #[test]
    fn a_bare_name_is_in_the_directory_of_wg_quick() {
        for (given, file) in [
            ("wg0", "/etc/wireguard/wg0.conf"),
            ("wg0.conf", "wg0.conf"),
            ("./wg0", "./wg0"),
            ("a/wg0", "a/wg0"),
            ("/etc/office", "/etc/office"),
        ] {
            assert_eq!(named(given.into()), Path::new(file), "{given}");
        }
        assert_eq!(interface("wg0", None).as_deref(), Ok("wg0"));
        assert_eq!(interface("office.1", None).as_deref(), Ok("office.1"));
    }

    #[test]
    fn a_log_needs_a_daemon_and_a_user_must_exist() {
        let log = || Some("/tmp/log".into());
        assert!(ProcessArgs { log: log(), ..process() }.validate("wg0".to_owned()).is_err());
        let daemon = ProcessArgs { log: log(), daemon: true, ..process() }.validate("wg0".to_owned()).unwrap();
        assert_eq!((daemon.place, daemon.user.map(|user| user.uid)), (Place::Daemon, Some(0)));
        let own = ProcessArgs { user: None, ..process() }.validate("wg0".to_owned()).unwrap();
        assert_eq!(own.user, None);
        let error =
            ProcessArgs { user: Some("no such user".to_owned()), ..process() }.validate("wg0".to_owned()).unwrap_err();
        assert_eq!(error.what, "--user: there is no user `no such user`");
    }
}
