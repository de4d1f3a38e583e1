//! Pseudonyms: the same for the same name, whatever it is the name of.
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::judge::telling;
use crate::sorting::IntoOrdered as _;
use crate::text::without_numbers;

/// Shorter names are too likely to be a part of a word of a sentence.
const IN_SENTENCES_MIN: usize = 3;
/// The longest extension of a file that is kept: `.log` says what a file is for.
const EXTENSION_MAX: usize = 4;
/// Devices that every host has.
const DEVICES: [&str; 8] =
    ["/dev/tty", "/dev/pts/", "/dev/console", "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// A directory whose files are logs, whatever their names are.
const LOGS: &str = "/var/log/";
/// Path components of a file below `/proc/PID` or of one of the kernel's own there.
const PROC_PARTS_MAX: usize = 3;

/// The names that are known, and what stands for them.
#[derive(Default)]
pub struct Names {
    known: HashMap<String, String>,
    /// The same without their numbers.
    forms: HashMap<String, String>,
    /// How many there are of a kind.
    counts: HashMap<&'static str, u32>,
    ips: HashMap<IpAddr, IpAddr>,
    below: u32,
    above: u32,
    v6: u32,
}

/// a, b, … z, aa, ab, …
fn letters(count: u32) -> String {
    let (mut left, mut out) = (count, Vec::new());
    while left > 0 {
        left -= 1;
        out.push(b'a' + (left % 26) as u8);
        left /= 26;
    }
    out.iter().rev().map(|&b| char::from(b)).collect()
}

impl Names {
    /// `process-a` for the first one of its kind, and so on. Numbers stay: `worker-3` and `worker-12` do the same.
    pub fn pseudonym(&mut self, kind: &'static str, name: &str) -> String {
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        let form = without_numbers(name);
        let made = match self.forms.get(&form) {
            Some(made) => made.clone(),
            None => {
                let count = self.counts.entry(kind).or_default();
                *count += 1;
                let made = format!("{kind}-{}", letters(*count));
                self.forms.insert(form, made.clone());
                made
            }
        };
        let numbers: Vec<&str> = name.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty()).collect();
        // Code that concludes from the number at the end of a name finds one there only if the name had one.
        let end = if numbers.is_empty() || name.ends_with(|c: char| c.is_ascii_digit()) { "" } else { "x" };
        let made = format!("{made}{}{end}", numbers.join("-"));
        self.known.insert(name.to_owned(), made.clone());
        made
    }

    /// A name of a process or thread. The part of it by which causes decide stays: it tells what the program is, and not whose.
    pub fn program(&mut self, kind: &'static str, name: &mut String) {
        if name.is_empty() {
            return;
        }
        let kept = telling(name).unwrap_or("").to_owned();
        if kept.len() < name.len() {
            let made = self.pseudonym(kind, name);
            *name = if kept.is_empty() { made } else { format!("{kept}-{made}") };
        }
    }

    /// The object in which a function lies. Libraries keep their names.
    pub fn object(&mut self, module: &mut String) {
        let name = module.rsplit('/').next().unwrap_or_default().to_owned();
        let is_library = name.starts_with("lib") && name.contains(".so");
        if is_library || name.is_empty() || name.starts_with('[') {
            *module = name;
        } else {
            *module = name;
            self.program("object", module);
        }
    }

    /// The object behind a descriptor: a path, the name of a UNIX socket, or `pipe:[81]` and the like, which tell nothing.
    pub fn path(&mut self, path: &mut String) {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let anonymous = |path: &str| {
            let inode = path.split_once(":[").and_then(|(_, rest)| rest.strip_suffix(']'));
            inode.is_some_and(is_number) || path.starts_with("anon_inode:")
        };
        let is_kernels = DEVICES.iter().any(|device| path.starts_with(device))
            || path.starts_with("/proc/") && path.split('/').skip(1).count() <= PROC_PARTS_MAX;
        if path.is_empty() || path == "/" || anonymous(path) || is_kernels {
            return;
        }
        if let Some(name) = path.strip_prefix('@') {
            *path = format!("@{}", self.pseudonym("socket", name));
            return;
        }
        let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
        let keeps =
            (1..=EXTENSION_MAX).contains(&extension.len()) && extension.chars().all(|c| c.is_ascii_alphabetic());
        let extension = if keeps { format!(".{extension}") } else { String::new() };
        let directory = if path.starts_with(LOGS) { LOGS } else { "/" };
        *path = format!("{directory}{}{extension}", self.pseudonym("path", path));
    }

    /// The addresses of a capture, before any is replaced: what stands for them has the same order.
    pub fn addresses(&mut self, all: impl IntoIterator<Item = IpAddr>) {
        let all: BTreeSet<IpAddr> = all.into_iter().map(|ip| ip.to_canonical()).into_set();
        all.into_iter().for_each(|ip| {
            self.ip(ip);
        });
    }

    fn ip(&mut self, ip: IpAddr) -> IpAddr {
        let plain = ip.to_canonical();
        if plain.is_loopback() || plain.is_unspecified() {
            return ip;
        }
        let made = match self.ips.get(&plain) {
            Some(made) => *made,
            None => {
                // Addresses that are set apart for carriers (RFC 6598), for benchmarks (RFC 2544) and for documentation (RFC 3849):
                // those below the loopback addresses stay below them.
                let made = match plain {
                    IpAddr::V4(v4) if v4 < Ipv4Addr::LOCALHOST => {
                        self.below += 1;
                        IpAddr::V4(Ipv4Addr::from(u32::from(Ipv4Addr::new(100, 64, 0, 0)) + self.below % (1 << 22)))
                    }
                    IpAddr::V4(_) => {
                        self.above += 1;
                        IpAddr::V4(Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + self.above % (1 << 17)))
                    }
                    IpAddr::V6(_) => {
                        self.v6 += 1;
                        IpAddr::V6(Ipv6Addr::from((0x2001_0db8_u128 << 96) + u128::from(self.v6)))
                    }
                };
                self.ips.insert(plain, made);
                made
            }
        };
        match (ip, made) {
            (IpAddr::V6(_), IpAddr::V4(mapped)) => IpAddr::V6(mapped.to_ipv6_mapped()),
            _ => made,
        }
    }

    /// Replaces an address and keeps its port. Loopback and wildcard addresses stay.
    pub fn address(&mut self, address: &mut SocketAddr) {
        address.set_ip(self.ip(address.ip()));
        if let SocketAddr::V6(address) = address {
            address.set_scope_id(0);
        }
    }

    /// The object of a wait in words: an address, a path, or a sentence.
    pub fn target(&mut self, target: &mut String) {
        if let Ok(mut address) = target.parse::<SocketAddr>() {
            self.address(&mut address);
            *target = address.to_string();
        } else if target.starts_with(['/', '@']) || target.contains(":[") {
            self.path(target);
        } else {
            self.sentence(target);
        }
    }

    /// Replaces what is known by now where it is a whole word, and addresses and paths.
    pub fn sentence(&mut self, text: &mut String) {
        let mut known: Vec<(String, String)> = self.known.iter().map(|(a, b)| (a.clone(), b.clone())).collect();
        known.retain(|(name, made)| name.len() >= IN_SENTENCES_MIN && name != made);
        // One may be a part of another: the longest comes first.
        known.sort_unstable_by(|a, b| (std::cmp::Reverse(a.0.len()), &a.0).cmp(&(std::cmp::Reverse(b.0.len()), &b.0)));
        let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let mut out = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(first) = rest.chars().next() {
            let begins = !is_word(out.chars().last());
            let found = known
                .iter()
                .find(|(name, _)| rest.starts_with(name.as_str()) && !is_word(rest[name.len()..].chars().next()))
                .filter(|_| begins);
            let (length, made) = match found {
                Some((name, made)) => (name.len(), made.clone()),
                None if begins => self.spelled(rest).unwrap_or((first.len_utf8(), first.to_string())),
                None => (first.len_utf8(), first.to_string()),
            };
            out.push_str(&made);
            rest = &rest[length..];
        }
        *text = out;
    }

    /// An address or a path at the begin of a text: its length, and what stands for it.
    fn spelled(&mut self, text: &str) -> Option<(usize, String)> {
        let end = text.find(|c: char| c.is_whitespace() || "(),;\"'`<>".contains(c)).unwrap_or(text.len());
        let token = text[..end].trim_end_matches(['.', ':', '?', '!']);
        if let Ok(mut address) = token.parse::<SocketAddr>() {
            self.address(&mut address);
            return Some((token.len(), address.to_string()));
        }
        if let Ok(ip) = token.parse::<IpAddr>() {
            return Some((token.len(), self.ip(ip).to_string()));
        }
        // One of `/proc/sys` is a setting. A slash alone, or one between two words, is none.
        let is_path = token.starts_with('/') && token.len() > 1 && !token.starts_with("/proc/sys/");
        is_path.then(|| {
            let mut path = token.to_owned();
            self.path(&mut path);
            (token.len(), path)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(of: &str) -> String {
        let mut path = of.to_owned();
        Names::default().path(&mut path);
        path
    }

    #[test]
    fn there_are_as_many_letters_as_names() {
        assert_eq!([1, 26, 27, 52, 53, 702, 703].map(letters), ["a", "z", "aa", "az", "ba", "zz", "aaa"]);
    }

    #[test]
    fn paths_keep_what_tells_what_they_are() {
        for kept in ["pipe:[81]", "anon_inode:[eventpoll]", "/dev/pts/3", "/dev/null", "/proc/12/stat", "/", ""] {
            assert_eq!(path(kept), kept);
        }
        assert_eq!(path("/srv/billing/smith.log"), "/path-a.log");
        assert_eq!(path("/var/log/smith/today"), "/var/log/path-a");
        assert_eq!(path("/dev/shm/smith"), "/path-a");
        assert_eq!(path("/proc/12/root/srv/smith"), "/path-a12x");
        assert_eq!(path("@smith"), "@socket-a");
    }

    #[test]
    fn names_that_decide_keep_only_that_part() {
        let named = |name: &str| {
            let mut name = name.to_owned();
            Names::default().program("process", &mut name);
            name
        };
        assert_eq!(named("ksoftirqd/1"), "ksoftirqd/1");
        assert_eq!(named("postgres-smith"), "postgres-process-a");
        assert_eq!((named("smith3"), named("smith-3-y")), ("process-a3".to_owned(), "process-a3x".to_owned()));
    }

    #[test]
    fn addresses_keep_their_order_and_their_form() {
        let mut names = Names::default();
        let all = ["10.9.0.1", "10.1.0.1", "::ffff:10.1.0.1", "fd00::7", "127.0.0.1", "::", "192.168.0.1"];
        names.addresses(all.map(|ip| ip.parse().unwrap()));
        let mut made = all.map(|ip| SocketAddr::new(ip.parse().unwrap(), 80));
        made.iter_mut().for_each(|address| names.address(address));
        let made = made.map(|address| address.ip().to_string());
        let want = ["100.64.0.2", "100.64.0.1", "::ffff:100.64.0.1", "2001:db8::1", "127.0.0.1", "::", "198.18.0.1"];
        assert_eq!(made, want);
    }

    #[test]
    fn sentences_lose_addresses_and_paths_that_nobody_has_named() {
        let mut names = Names::default();
        let mut name = "web".to_owned();
        names.program("process", &mut name);
        let mut text =
            "web (/srv/web) asks 10.1.2.3:80, [fd00::1]:53 and 10.1.2.3. Websites/web-x of 1.5 ms.".to_owned();
        names.sentence(&mut text);
        assert_eq!(
            text,
            "process-a (/path-a) asks 100.64.0.1:80, [2001:db8::1]:53 and 100.64.0.1. Websites/process-a-x of 1.5 ms."
        );
    }
}
