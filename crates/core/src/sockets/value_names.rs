//! Names for the values of fields that are enumerations, the same in every text format.
use parshall_evidence::socket::selection::STATES;

/// The names for the values of one field.
#[derive(Debug, Clone, Copy)]
pub struct ValueNames {
    names: &'static [(u64, &'static str)],
}

const FAMILY: &[(u64, &str)] = &[(1, "unix"), (2, "ipv4"), (10, "ipv6")];
const CA_STATE: &[(u64, &str)] = &[(0, "open"), (1, "disorder"), (2, "cwr"), (3, "recovery"), (4, "loss")];
const TIMER: &[(u64, &str)] =
    &[(0, "none"), (1, "retransmit"), (2, "keepalive"), (3, "time-wait"), (4, "zero-window-probe")];
const ULP: &[(u64, &str)] = &[(0, "none"), (1, "tls"), (2, "mptcp"), (3, "espintcp"), (4, "smc"), (255, "other")];
const TYPE: &[(u64, &str)] = &[(1, "stream"), (2, "dgram"), (3, "raw"), (5, "seqpacket")];
const STATE: &[(u64, &str)] = &[
    (1, STATES[0]),
    (2, STATES[1]),
    (3, STATES[2]),
    (4, STATES[3]),
    (5, STATES[4]),
    (6, STATES[5]),
    (7, STATES[6]),
    (8, STATES[7]),
    (9, STATES[8]),
    (10, STATES[9]),
    (11, STATES[10]),
    (12, STATES[11]),
    (13, STATES[12]),
];

/// The names for the values of the field with this number; `None` for a field that is not an enumeration.
pub const fn of(number: u32) -> Option<ValueNames> {
    let names = match number {
        130 => TYPE,
        140 => FAMILY,
        141 => STATE,
        142 => CA_STATE,
        154 => TIMER,
        160 => ULP,
        _ => return None,
    };
    Some(ValueNames { names })
}

impl ValueNames {
    /// The name of a value; `None` for one that a newer kernel has introduced.
    pub fn name(self, value: u64) -> Option<&'static str> {
        self.names.iter().find(|(number, _)| *number == value).map(|(_, name)| *name)
    }

    /// Every value that has a name, with it.
    pub fn all(self) -> &'static [(u64, &'static str)] {
        self.names
    }
}

#[cfg(test)]
mod tests {
    use parshall_evidence::socket::FIELDS;

    use super::*;

    #[test]
    fn names_belong_to_the_fields_that_they_were_written_for() {
        let with_names: Vec<&str> = FIELDS.iter().filter(|f| of(f.number).is_some()).map(|f| f.name).collect();
        assert_eq!(with_names, ["sock_type", "family", "state", "ca_state", "timer", "ulp"]);
        assert_eq!(of(141).unwrap().name(10), Some("listen"));
        assert_eq!(of(141).unwrap().name(77), None);
    }
}
