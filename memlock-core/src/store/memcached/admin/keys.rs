//! Keys as a server lists them: with escapes, and possibly with bytes that cannot be sent in a
//! request.

/// memcached accepts no longer keys.
const LONGEST_KEY: usize = 250;

/// Whether a key can be sent in a request. Other protocols can store other keys, even with whole
/// commands in them.
pub(super) fn can_be_asked_for(key: &str) -> bool {
    (1..=LONGEST_KEY).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The key that metadump encoded.
pub(super) fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == b'%' {
            let (code, tail) = rest.split_at_checked(2)?;
            rest = tail;
            bytes.push(u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_decoded() {
        assert_eq!(decoded("lock%3Aa%2520b").as_deref(), Some("lock:a%20b"));
        assert_eq!((decoded("%4"), decoded("%zz")), (None, None));
    }

    #[test]
    fn a_key_with_a_command_in_it_is_not_asked_for() {
        assert!(can_be_asked_for("lock:%sha256-0") && can_be_asked_for(&"x".repeat(250)));
        for key in ["", "lock:a\r\nflush_all", "lock:a b", "lock:\u{e9}", &"x".repeat(251)] {
            assert!(!can_be_asked_for(key), "{key:?}");
        }
    }
}
