//! rinetd's access patterns as networks.
//!
//! rinetd matches the text of a client's address against a pattern in which `?` is any character and `*` any number of
//! them. Here clients are looked up in networks, so a pattern becomes the networks that contain exactly the addresses that it
//! matches. A pattern that would be too many networks, or that is ambiguous, is refused.
use ipnet::{IpNet, Ipv4Net};

use crate::networks;
use crate::text::quote;
use crate::values::ValueError;

/// The most networks of a pattern.
const MAX_NETWORKS: usize = 256;

/// The networks of a pattern, an address, or (an extension) a network.
pub fn networks(text: &str) -> Result<Vec<IpNet>, ValueError> {
    if text == "*" {
        return networks::networks("all");
    }
    if !text.contains(['*', '?']) {
        return networks::networks(text);
    }
    if text.contains(':') {
        let hint = "write the network instead, as in 2001:db8::/32";
        return Err(ValueError::new(format!("the pattern {} is for IPv6", quote(text)), hint));
    }
    let refused = |why: &str| {
        let what = format!("the pattern {} {why}", quote(text));
        ValueError::new(what, "write it as 10.0.*.* or 10.0.3.1?, or as a network: 10.0.0.0/16")
    };
    // The length is limited because matching recurses once per character.
    if text.len() > 40 || !text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'*' | b'?')) {
        return Err(refused("is not four short groups of digits, `*` and `?`"));
    }
    let octets = octets(text).ok_or_else(|| refused("cannot be written as networks"))?;
    if octets.iter().any(Vec::is_empty) {
        return Err(refused("matches no address"));
    }
    // The last octets are the host part where they may have any value.
    let free = octets.iter().rev().take_while(|values| values.len() == 256).count();
    let fixed = &octets[..4 - free];
    if fixed.iter().map(Vec::len).product::<usize>() > MAX_NETWORKS {
        return Err(refused("takes too many networks"));
    }
    let prefixes = fixed.iter().fold(vec![Vec::new()], |prefixes: Vec<Vec<u8>>, values| {
        prefixes.iter().flat_map(|p| values.iter().map(|v| [&p[..], &[*v]].concat())).collect()
    });
    let network = |prefix: Vec<u8>| {
        let mut bytes = [0; 4];
        bytes[..prefix.len()].copy_from_slice(&prefix);
        IpNet::V4(Ipv4Net::new_assert(bytes.into(), (prefix.len() * 8) as u8))
    };
    Ok(prefixes.into_iter().map(network).collect())
}

/// The values that each of the four octets may have.
fn octets(text: &str) -> Option<[Vec<u8>; 4]> {
    let parts: Vec<&str> = text.split('.').collect();
    let matching =
        |pattern: &str| (0..=255u8).filter(|v| matches(pattern.as_bytes(), v.to_string().as_bytes())).collect();
    let mut octets = std::array::from_fn(|_| (0..=255).collect());
    if parts.len() != 4 {
        // With fewer than three dots a wildcard also matches dots. That is unambiguous only for one `*` at the end: the octets
        // after it may have any value.
        let plain = text.strip_suffix('*').is_some_and(|head| !head.contains(['*', '?']));
        if parts.len() > 4 || !plain {
            return None;
        }
    }
    // With all three dots written, no wildcard matches one.
    for (octet, part) in octets.iter_mut().zip(&parts) {
        *octet = matching(part);
    }
    Some(octets)
}

/// Whether a text matches a pattern of `*`, `?` and other characters.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skip| matches(rest, &text[skip..])),
        Some((b'?', rest)) => !text.is_empty() && matches(rest, &text[1..]),
        Some((c, rest)) => text.first() == Some(c) && matches(rest, &text[1..]),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::*;

    fn holds(text: &str, address: Ipv4Addr) -> bool {
        networks(text).unwrap().iter().any(|network| network.contains(&IpAddr::from(address)))
    }

    #[test]
    fn patterns_as_networks() {
        let text =
            |pattern: &str| networks(pattern).unwrap().iter().map(IpNet::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!(text("192.168.*.*"), "192.168.0.0/16");
        assert_eq!(text("192.168.*"), "192.168.0.0/16");
        assert_eq!(text("10.*"), "10.0.0.0/8");
        assert_eq!(text("*.*.*.*"), "0.0.0.0/0");
        assert_eq!(text("*"), "0.0.0.0/0 ::/0");
        assert_eq!(text("10.0.0.7"), "10.0.0.7/32");
        assert_eq!(text("10.0.0.0/24"), "10.0.0.0/24");
        assert_eq!(text("10.0.0.25?"), (250..=255).map(|i| format!("10.0.0.{i}/32")).collect::<Vec<_>>().join(" "));
        assert_eq!(text("10.9?.*.*").split(' ').count(), 10);
        assert_eq!(text("10.*.0.1").split(' ').count(), 256);
    }

    #[test]
    fn patterns_that_are_refused() {
        for text in [
            "10.*.*.1",
            "1?.1",
            "*.1",
            "10.0.0.9??",
            "10.0.0.0.*",
            "10..*.*",
            "fe80:*",
            "10.0.0.x*",
            "**.",
            "10.0.0.256*",
        ] {
            assert!(networks(text).is_err(), "{text}");
        }
    }

    fn part() -> impl Strategy<Value = String> {
        let number = any::<u8>().prop_map(|n| n.to_string());
        prop_oneof![6 => number, 2 => Just("*".to_owned()), 1 => "[12][?*]", 1 => "[?]{1,3}", 1 => "[0-9]{1,3}"]
    }

    proptest! {
        /// The networks are compared with rinetd's own rule, which matches the text of the address.
        #[test]
        fn the_networks_hold_what_the_pattern_matches(
            parts in prop::array::uniform4(part()),
            bits: u32,
            near: [bool; 4],
        ) {
            let pattern = parts.join(".");
            prop_assume!(networks(&pattern).is_ok());
            let mut bytes = bits.to_be_bytes();
            // A random address hardly ever matches, so some octets are taken from the pattern.
            for ((byte, part), near) in bytes.iter_mut().zip(&parts).zip(near) {
                *byte = part.parse().ok().filter(|_| near).unwrap_or(*byte);
            }
            let address = Ipv4Addr::from(bytes);
            let by_text = matches(pattern.as_bytes(), address.to_string().as_bytes());
            prop_assert_eq!(holds(&pattern, address), by_text, "{} {}", pattern, address);
        }

        #[test]
        fn an_open_end_holds_what_the_pattern_matches(a in 0u8..30, head in "[0-9]{0,2}", bytes: [u8; 4], near: bool) {
            let pattern = format!("{a}.{head}*");
            prop_assume!(networks(&pattern).is_ok());
            let address = Ipv4Addr::from([if near { a } else { bytes[0] }, bytes[1], bytes[2], bytes[3]]);
            let by_text = matches(pattern.as_bytes(), address.to_string().as_bytes());
            prop_assert_eq!(holds(&pattern, address), by_text, "{} {}", pattern, address);
        }
    }
}
