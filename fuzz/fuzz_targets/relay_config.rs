//! A configuration of the relay in either language: whatever is let pass can be used without checking again, and errors
//! lie within the text.
#![no_main]
use libfuzzer_sys::fuzz_target;
use parshall_core::relay::config::{parse, parse_rinetd, parse_toml};

fuzz_target!(|text: &str| {
    let lines = text.split('\n').count();
    for result in [parse(text), parse_toml(text), parse_rinetd(text)] {
        match result {
            Ok(config) => {
                assert!(!config.listeners.is_empty());
                for listener in &config.listeners {
                    assert!(!listener.targets.is_empty() && !listener.name.is_empty());
                    assert!(listener.access.iter().all(|r| r.network == r.network.trunc()));
                }
            }
            Err(errors) => {
                assert!(!errors.is_empty());
                assert!(errors.iter().all(|m| m.line as usize <= lines && m.column > 0 && !m.hint.is_empty()));
            }
        }
    }
});
