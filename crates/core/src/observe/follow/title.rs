//! The title that a process has given itself (setproctitle), as far as it may be kept in a saved case.

/// Characters of a title that are kept.
const TITLE_MAX: usize = 96;

/// The title in the bytes of /proc/PID/cmdline; None when they are arguments, or when nothing is sure to hold no secret.
///
/// Databases and servers write there what they do: `postgres: shop web [local] idle in transaction`, `nginx: worker process`.
/// That is one string in the form `program: text`, where arguments are one string each. Some programs put their arguments
/// into it; so it ends before the first word that is an option, an assignment or a URL.
pub fn title(cmdline: &[u8]) -> Option<String> {
    let end = cmdline.iter().position(|&byte| byte == 0).unwrap_or(cmdline.len());
    let (text, rest) = cmdline.split_at(end);
    // Programs fill what is left of their arguments with zeros or spaces.
    if rest.iter().any(|&byte| byte != 0 && byte != b' ') {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    let (program, words) = text.trim_end().split_once(": ")?;
    let named = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if program.is_empty() || !program.chars().all(named) {
        return None;
    }
    let secret = |word: &&str| {
        let bare = word.trim_start_matches(['(', '[', '{', '"', '\'']);
        bare.starts_with('-') || bare.contains('=') || bare.contains("://") || bare.chars().any(char::is_control)
    };
    let kept: Vec<&str> = words.split_whitespace().take_while(|word| !secret(word)).collect();
    let kept = format!("{program}: {}", kept.join(" "));
    (kept.len() > program.len() + 2).then(|| kept.chars().take(TITLE_MAX).collect())
}

/// The activity of a session of PostgreSQL by its title, as far as it concerns other sessions of its database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity<'a> {
    /// It waits for a lock that another session holds.
    WaitsForLock {
        /// Its database.
        database: &'a str,
    },
    /// Its transaction is open, and its client sends nothing.
    IdleInTransaction {
        /// Its database.
        database: &'a str,
    },
}

/// The activity in a title such as `postgres: 15/main: shop web 127.0.0.1(51234) UPDATE waiting`.
pub fn activity(title: &str) -> Option<Activity<'_>> {
    let mut words = title.strip_prefix("postgres: ")?.split_whitespace().peekable();
    // With a cluster_name, that comes first.
    words.next_if(|word| word.ends_with(':'));
    let (_user, database) = (words.next()?, words.next()?);
    if title.ends_with(" waiting") {
        Some(Activity::WaitsForLock { database })
    } else {
        title.contains(" idle in transaction").then_some(Activity::IdleInTransaction { database })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_say_of_themselves_is_kept() {
        for text in [
            "postgres: shop web 127.0.0.1(51234) idle in transaction",
            "nginx: worker process",
            "php-fpm: pool www",
            "gunicorn: worker [shop.wsgi]",
        ] {
            assert_eq!(title(text.as_bytes()).as_deref(), Some(text));
            assert_eq!(title(format!("{text}     ").as_bytes()).as_deref(), Some(text));
            assert_eq!(title(format!("{text}\0\0\0").as_bytes()).as_deref(), Some(text));
        }
    }

    #[test]
    fn a_session_says_whether_it_waits_or_holds_others_up() {
        let waits = activity("postgres: 15/main: shop web 127.0.0.1(51234) UPDATE waiting");
        assert_eq!(waits, Some(Activity::WaitsForLock { database: "web" }));
        for title in
            ["postgres: shop web [local] idle in transaction", "postgres: a web [local] idle in transaction (aborted)"]
        {
            assert_eq!(activity(title), Some(Activity::IdleInTransaction { database: "web" }));
        }
        for title in ["postgres: shop web [local] idle", "postgres: walwriter", "nginx: worker process is waiting"] {
            assert_eq!(activity(title), None, "{title}");
        }
    }

    #[test]
    fn arguments_are_not() {
        for bytes in [
            &b"psql\0-W\0secret\0"[..],
            b"sh\0-c\0curl: x --token abc\0",
            b"/usr/bin/python3\0",
            b"/opt/my app: x/run\0",
            b"worker: --password=x",
            b": x",
            b"a: \xff",
            b"",
        ] {
            assert_eq!(title(bytes), None, "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn a_title_ends_before_what_may_be_a_secret() {
        let cut = |text: &str| title(text.as_bytes());
        assert_eq!(cut("celeryd: -active- (worker)"), None);
        assert_eq!(cut("worker: busy (amqp://user:password@host)").as_deref(), Some("worker: busy"));
        assert_eq!(cut("worker: busy [--key abc] x").as_deref(), Some("worker: busy"));
        assert_eq!(cut("worker: busy TOKEN=abc").as_deref(), Some("worker: busy"));
        assert_eq!(cut(&format!("a: {}", "x".repeat(500))).map(|kept| kept.len()), Some(TITLE_MAX));
    }
}
