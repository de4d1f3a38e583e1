//! Checks the flags of `parshall tunnel` and turns them into a request.
use parshall_core::text::quote;
use parshall_host::error::UserError;

use super::args::{TunnelArgs, TunnelCommand, UpArgs};
use crate::request::{TunnelRequest, UpRequest};

/// The longest name of an interface, in bytes (IFNAMSIZ without the final zero).
const NAME_MAX: usize = 15;

impl TunnelArgs {
    pub fn validate(self) -> Result<TunnelRequest, UserError> {
        match self.command {
            TunnelCommand::Up(args) => args.validate().map(TunnelRequest::Up),
        }
    }
}

impl UpArgs {
    fn validate(self) -> Result<UpRequest, UserError> {
        let of_file = || self.file.file_stem().map(|name| name.to_string_lossy().into_owned());
        let interface = self.interface.clone().or_else(of_file).unwrap_or_default();
        // As wg-quick has it: what the kernel takes, and nothing that a shell or `ip` reads otherwise.
        let plain = |c: char| c.is_ascii_alphanumeric() || "_=+.-".contains(c);
        let fits = (1..=NAME_MAX).contains(&interface.len()) && interface.chars().all(plain);
        if !fits || interface == "." || interface == ".." || interface.starts_with('-') {
            return Err(UserError::new(
                format!("{} cannot be the name of an interface", quote(&interface)),
                "give one with --interface, such as wg0: at most 15 letters, digits and _=+.-",
            ));
        }
        Ok(UpRequest { file: self.file, interface, clamp_mss: self.clamp_mss })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(file: &str, interface: Option<&str>) -> Result<String, UserError> {
        let args = UpArgs { file: file.into(), interface: interface.map(str::to_owned), clamp_mss: false };
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
}
