//! The uses of the requests' time, in words that read behind "requests" and behind "of the requests' time".

/// `in page faults` for the name `page faults`. Most names read well as they are.
pub(super) fn spent(name: &str) -> &str {
    match name {
        "run queue" => "waiting for a CPU",
        "CPU quota" => "out of CPU quota",
        "kernel at work" => "computing in the kernel",
        "page faults" => "in page faults",
        "process stopped" => "with the process stopped",
        name => name,
    }
}

/// A text that ends with the name of a use of time: `requests page faults`. Other texts stay as they are.
pub(super) fn within(text: &str) -> String {
    const BEFORE: [&str; 2] = ["requests ", "of the requests' time "];
    let read = |before: &&str| text.strip_prefix(*before).map(|name| format!("{before}{}", spent(name)));
    BEFORE.iter().find_map(read).unwrap_or_else(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_of_time_reads_as_a_part_of_a_sentence() {
        for (text, words) in [
            ("requests page faults", "requests in page faults"),
            ("requests process stopped", "requests with the process stopped"),
            ("requests waiting for the disk", "requests waiting for the disk"),
            ("of the requests' time run queue", "of the requests' time waiting for a CPU"),
            ("page faults", "page faults"),
        ] {
            assert_eq!(within(text), words);
        }
    }
}
