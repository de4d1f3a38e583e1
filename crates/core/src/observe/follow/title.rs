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
