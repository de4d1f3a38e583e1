//! What a process does, said of several: the texts of a chain are of one, and a row names all that went the same way.

/// Verbs at the begin of a clause.
const VERBS: [(&str, &str); 9] = [
    ("accepts", "accept"),
    ("does", "do"),
    ("has", "have"),
    ("is", "are"),
    ("lets", "let"),
    ("runs", "run"),
    ("serves", "serve"),
    ("sleeps", "sleep"),
    ("waits", "wait"),
];
/// Words further on in a text, and with several processes.
const FURTHER: [(&str, &str); 5] = [
    (", waits", ", wait"),
    (", and waits", ", and wait"),
    (", and has sent nothing on its connection", ", and have sent nothing on their connection"),
    (": its client", ": their client"),
    (" who wait for it:", " who wait for them:"),
];

/// `does not read yet: it waits for a lock` as `do not read yet: they wait for a lock`.
pub(super) fn of_several(does: &str) -> String {
    let does = match does.split_once(" yet: it ") {
        Some((before, behind)) => format!("{} yet: they {}", verb(before), verb(behind)),
        None => verb(does),
    };
    FURTHER.iter().fold(does, |text, (one, several)| text.replacen(one, several, 1))
}

/// The text with its first word in the plural, where that is a verb.
fn verb(text: &str) -> String {
    let word = text.split([' ', ':']).next().unwrap_or_default();
    match VERBS.iter().find(|(one, _)| *one == word) {
        Some((one, many)) => format!("{many}{}", &text[one.len()..]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_said_of_several() {
        for (one, several) in [
            ("runs on a CPU", "run on a CPU"),
            ("is stopped by kill 812", "are stopped by kill 812"),
            ("does not read yet: it waits in futex for a lock", "do not read yet: they wait in futex for a lock"),
            ("does not accept yet: it is out of CPU quota", "do not accept yet: they are out of CPU quota"),
            ("has taken it in, and waits for events", "have taken it in, and wait for events"),
            (
                "has taken it in, waits in epoll_wait for events, and has sent nothing on its connection to a:1",
                "have taken it in, wait in epoll_wait for events, and have sent nothing on their connection to a:1",
            ),
            ("sleeps: its client 10.0.0.2:5 sends nothing", "sleep: their client 10.0.0.2:5 sends nothing"),
            ("waits for those who wait for it: a deadlock", "wait for those who wait for them: a deadlock"),
            ("waits for a lock, with a timer in futex", "wait for a lock, with a timer in futex"),
            ("serves other requests first, one at a time", "serve other requests first, one at a time"),
            ("lets the request wait for its turn to ask db", "let the request wait for its turn to ask db"),
            ("waits for the disk in read: /tmp/is it, has", "wait for the disk in read: /tmp/is it, has"),
        ] {
            assert_eq!(of_several(one), several);
        }
    }
}
