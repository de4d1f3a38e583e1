//! How a running relay was started, as far as a verdict about it needs to know: read from its command line, leniently, for
//! it was accepted by the parser of the command line once already.

/// What the command line of a relay says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Started<'a> {
    /// Its configuration file (`-c`, `--config`): then everything else stands there.
    pub file: Option<&'a str>,
    /// `--engine`, as written.
    pub engine: Option<&'a str>,
    /// `--buffer`, as written.
    pub buffer: Option<&'a str>,
}

impl<'a> Started<'a> {
    /// Reads a command line, the program's own name first. None when it starts no relay.
    pub fn of(words: &'a [String]) -> Option<Self> {
        let [_, command, rest @ ..] = words else { return None };
        if command != "relay" || rest.first().is_some_and(|word| word == "check" || word == "top") {
            return None;
        }
        let mut started = Self::default();
        let mut rest = rest.iter().map(String::as_str);
        while let Some(word) = rest.next() {
            let (flag, value) = match (word.split_once('='), word.strip_prefix("-c")) {
                (Some((flag, value)), _) => (flag, Some(value)),
                // `-cFILE` is one word too.
                (None, Some(file)) if !file.is_empty() => ("-c", Some(file)),
                _ => (word, None),
            };
            let slot = match flag {
                "-c" | "--config" => &mut started.file,
                "--engine" => &mut started.engine,
                "--buffer" => &mut started.buffer,
                _ => continue,
            };
            *slot = value.or_else(|| rest.next());
        }
        Some(started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn flags_are_read_in_every_form() {
        let given = Started { file: None, engine: Some("copy"), buffer: Some("8KiB") };
        for line in [
            "parshall relay :1 :2 --engine copy --buffer 8KiB",
            "/usr/bin/parshall relay --buffer=8KiB --engine=copy :1 :2",
        ] {
            assert_eq!(Started::of(&words(line)), Some(given), "{line}");
        }
        for line in ["p relay -c r.toml", "p relay -cr.toml", "p relay -c=r.toml", "p relay --config=r.toml"] {
            assert_eq!(
                Started::of(&words(line)),
                Some(Started { file: Some("r.toml"), ..Started::default() }),
                "{line}"
            );
        }
        assert_eq!(Started::of(&words("p relay :1 :2 --buffer")), Some(Started::default()));
    }

    #[test]
    fn other_commands_start_no_relay() {
        for line in ["parshall", "parshall attach --pid 1", "parshall relay check r.toml", "parshall relay top"] {
            assert_eq!(Started::of(&words(line)), None, "{line}");
        }
    }
}
