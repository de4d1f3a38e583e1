//! Reads the keys `allow`, `deny` and `access`, which become one access list.
use super::super::at::{At, Places};
use super::super::draft::check_access;
use super::super::model::AccessRule;
use super::super::read::{Entry, Reader, named};
use super::super::setting::Setting;
use crate::networks::networks;
use crate::text::quote;
use crate::values::ValueError;

/// The rules read so far.
#[derive(Debug, Default)]
pub struct AccessKeys {
    allow: Places<AccessRule>,
    deny: Places<AccessRule>,
    access: Places<AccessRule>,
    /// The byte offset of the first of the three keys.
    at: usize,
    /// The keys that were used.
    used: Vec<&'static str>,
}

/// Reads one of the three keys.
pub fn read(reader: &mut Reader<'_, '_>, entry: &Entry<'_, '_>, keys: &mut AccessKeys) {
    if keys.used.is_empty() {
        keys.at = entry.at;
    }
    let (key, list, example) = match entry.key {
        "allow" => ("allow", &mut keys.allow, "allow = [\"10.0.0.0/8\", \"192.0.2.7\"]"),
        "deny" => ("deny", &mut keys.deny, "deny = [\"10.0.0.0/8\", \"192.0.2.7\"]"),
        _ => ("access", &mut keys.access, "access = [\"allow 10.0.0.0/8\", \"deny all\"]"),
    };
    keys.used.push(key);
    for At { value: text, at } in reader.strings(entry, example) {
        let (allow, network) = match key {
            "access" => match rule(&text) {
                Ok(rule) => rule,
                Err(wrong) => {
                    reader.errors.add(at, wrong);
                    continue;
                }
            },
            _ => (key == "allow", text.as_str()),
        };
        let networks = reader.errors.keep(at, networks(network).map_err(|wrong| named(entry, wrong)));
        list.extend(networks.into_iter().flatten().map(|network| At::new(AccessRule { allow, network }, at)));
    }
}

/// The setting, once all keys were read.
pub fn finish(reader: &mut Reader<'_, '_>, keys: AccessKeys) -> Option<At<Setting>> {
    let AccessKeys { allow, mut deny, access, at, used } = keys;
    if used.is_empty() {
        return None;
    }
    if used.contains(&"access") && used.len() > 1 {
        let what = format!(
            "`access` and `{}` cannot be used together",
            used.iter().find(|k| **k != "access").unwrap_or(&"allow")
        );
        reader
            .errors
            .add(at, ValueError::new(what, "write all rules into `access`, as \"allow 10.0.0.0/8\" and \"deny all\""));
        return None;
    }
    if used.contains(&"access") {
        check_access(&access, "the first rule that matches decides: put the narrower rule first", reader.errors);
        deny = access;
    } else {
        deny.extend(allow);
        let hint =
            "deny goes before allow; to have the order yours, write access = [\"allow 10.0.0.0/8\", \"deny all\"]";
        check_access(&deny, hint, reader.errors);
    }
    let rules: Vec<AccessRule> = deny.into_iter().map(|rule| rule.value).collect();
    Some(At::new(Setting::new("access", move |l| l.access.clone_from(&rules)), at))
}

fn rule(text: &str) -> Result<(bool, &str), ValueError> {
    match text.split_once(' ').map(|(word, network)| (word, network.trim())) {
        Some(("allow", network)) => Ok((true, network)),
        Some(("deny", network)) => Ok((false, network)),
        _ => Err(ValueError::new(
            format!("{} is not a rule", quote(text)),
            "write \"allow 10.0.0.0/8\", \"deny 192.0.2.7\" or \"deny all\"",
        )),
    }
}
