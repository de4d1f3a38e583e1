//! A netlink message of SOCK_DIAG, attributes of any length and order included.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = parshall_sys::inet_diag::parse_entry(bytes);
});
