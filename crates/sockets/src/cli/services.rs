//! Ports of services by their names in /etc/services.
use std::fs;

/// The most used names, for hosts without that file, such as small containers.
const USUAL: [(&str, u16); 12] = [
    ("ftp", 21),
    ("ssh", 22),
    ("smtp", 25),
    ("domain", 53),
    ("http", 80),
    ("ntp", 123),
    ("snmp", 161),
    ("ldap", 389),
    ("https", 443),
    ("imaps", 993),
    ("mysql", 3306),
    ("postgresql", 5432),
];

/// The port of a service, for any protocol.
pub(super) fn port(name: &str) -> Option<u16> {
    let table = fs::read_to_string("/etc/services").unwrap_or_default();
    in_table(&table, name).or_else(|| USUAL.iter().find(|(usual, _)| *usual == name).map(|(_, port)| *port))
}

/// Each line has a name, `PORT/PROTOCOL` and other names; `#` begins a comment.
fn in_table(table: &str, name: &str) -> Option<u16> {
    table.lines().find_map(|line| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let (first, place) = (words.next()?, words.next()?);
        let is_it = first == name || words.any(|other| other == name);
        is_it.then(|| place.split('/').next()?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_found_by_each_of_their_names() {
        let table = "# comment\nhttp\t80/tcp\twww # World\nbroken\nssh 22/tcp\nodd x/tcp\n";
        let found = ["http", "www", "ssh", "World", "broken", "odd"].map(|name| in_table(table, name));
        assert_eq!(found, [Some(80), Some(80), Some(22), None, None, None]);
        assert_eq!((port("ssh"), port("no-such-service")), (Some(22), None));
    }
}
