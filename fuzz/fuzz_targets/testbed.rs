//! A testbed of the lab: whatever is let pass can be made and printed, and errors lie within the text.
#![no_main]
use libfuzzer_sys::fuzz_target;
use parshall_core::testbed::{Testbed, shell};

fuzz_target!(|text: &str| {
    match text.parse::<Testbed>() {
        Ok(testbed) => {
            for link in &testbed.links {
                assert!(link.ends.iter().all(|end| end.namespace < testbed.namespaces.len() && !end.addresses.is_empty()));
            }
            // Only the lines of the script itself: nothing of the file begins one of its own.
            let words = ["#", "set ", "ip ", "tc "];
            assert!(shell(&testbed).lines().all(|line| words.iter().any(|word| line.starts_with(word))));
        }
        Err(error) => assert!(!error.what.is_empty() && !error.hint.is_empty()),
    }
});
