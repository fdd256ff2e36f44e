//! Texts of servers in messages.
//!
//! A server, or what answers in its place, may quote what it was sent: the password, too. So the text of a
//! reply gets into a message only as [`Said`], which is made with the secret of the login.

use std::collections::HashSet;
use std::fmt;
use std::ops::RangeInclusive;

use super::url::Secret;

/// What a message has in place of a text that quotes a secret.
const LEFT_OUT: &str = "its text is not shown, because it quotes the login";

/// So many bytes of a longer secret, anywhere in it, count as a quotation of it: a server may cut what
/// it quotes.
const TELLING: usize = 8;

/// A shorter secret is quoted only where no letter or digit stands beside it: it is a part of many
/// words by chance.
const SHORTEST_PART: usize = 4;

/// The most characters by which a server writes [`TELLING`] bytes.
const LONGEST_QUOTATION: usize = 10 * TELLING;

/// A text of a server. It is displayed only if it does not quote the secret.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::store) struct Said {
    text: String,
    is_shown: bool,
}

#[allow(dead_code, reason = "not every store needs all of it")]
impl Said {
    /// The first characters of a text. `secret`: what the server was sent, or will be.
    pub(in crate::store) fn new(text: &str, longest: usize, secret: Option<&Secret>) -> Said {
        let first = |count| text.chars().take(count).collect::<String>();
        // What is cut off may tell whether the end is a quotation.
        let is_shown =
            secret.is_none_or(|secret| !quotes(&first(longest + LONGEST_QUOTATION), &secret.0));
        Said { text: first(longest), is_shown }
    }

    /// The same, written in another way.
    pub(in crate::store) fn map(self, write: impl FnOnce(&str) -> String) -> Said {
        Said { text: write(&self.text), ..self }
    }

    /// The text, to see what happened. It may have a secret in it.
    pub(in crate::store) fn unchecked(&self) -> &str {
        &self.text
    }

    /// The text for a message.
    pub(in crate::store) fn shown(&self) -> &str {
        if self.is_shown { &self.text } else { LEFT_OUT }
    }

    /// Whether the text is in the message.
    pub(in crate::store) fn is_shown(&self) -> bool {
        self.is_shown
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.shown())
    }
}

impl fmt::Debug for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.shown(), f)
    }
}

/// Whether the text has the secret in it: as it is, or escaped with backslashes or percent signs.
fn quotes(text: &str, secret: &str) -> bool {
    let secret = secret.to_ascii_lowercase();
    let plain = text.as_bytes().to_vec();
    let without_backslashes = unescaped(&plain, b'\\');
    let texts = [
        unescaped(&plain, b'%'),
        unescaped(&without_backslashes, b'%'),
        without_backslashes,
        plain,
    ];
    texts.into_iter().any(|text| contains(&text.to_ascii_lowercase(), secret.as_bytes()))
}

fn contains(text: &[u8], secret: &[u8]) -> bool {
    let length = secret.len().min(TELLING);
    if length == 0 {
        return false;
    }
    let pieces: HashSet<&[u8]> = secret.windows(length).collect();
    let is_word = |place: Option<usize>| {
        place.and_then(|place| text.get(place)).is_some_and(u8::is_ascii_alphanumeric)
    };
    text.windows(length).enumerate().any(|(start, piece)| {
        let is_part = || is_word(start.checked_sub(1)) || is_word(Some(start + length));
        pieces.contains(piece) && (length >= SHORTEST_PART || !is_part())
    })
}

/// The text without its escapes, such as `\"`, `\n`, `\x0a`, `\012`, `\u{a}` and `%0A`.
fn unescaped(text: &[u8], escape: u8) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, behind)) = rest.split_first() {
        let read = match byte == escape {
            true if escape == b'%' => byte_of(behind, 16, 2..=2),
            true => after_backslash(behind),
            false => None,
        };
        rest = match read {
            Some((what, behind)) => {
                bytes.extend(what);
                behind
            }
            None => {
                bytes.push(byte);
                behind
            }
        };
    }
    bytes
}

/// What the characters behind a backslash stand for, and what is behind them.
fn after_backslash(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let (&kind, behind) = text.split_first()?;
    let byte = match kind {
        b'a' => 7,
        b'b' => 8,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 11,
        b'x' => return byte_of(behind, 16, 2..=2),
        b'0'..=b'7' => return byte_of(text, 8, 1..=3),
        b'u' => return letter_of(behind),
        other => other,
    };
    Some((vec![byte], behind))
}

fn byte_of(text: &[u8], radix: u32, digits: RangeInclusive<usize>) -> Option<(Vec<u8>, &[u8])> {
    let (value, behind) = number(text, radix, digits)?;
    Some((vec![u8::try_from(value).ok()?], behind))
}

/// `{a}` or `000a`.
fn letter_of(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let (value, behind) = match text.strip_prefix(b"{") {
        Some(text) => {
            let (value, behind) = number(text, 16, 1..=6)?;
            (value, behind.strip_prefix(b"}")?)
        }
        None => number(text, 16, 4..=4)?,
    };
    Some((char::from_u32(value)?.to_string().into_bytes(), behind))
}

/// A number at the start of the text, and what is behind it.
fn number(text: &[u8], radix: u32, digits: RangeInclusive<usize>) -> Option<(u32, &[u8])> {
    let is_digit = |byte: &&u8| char::from(**byte).is_digit(radix);
    let length = text.iter().take(*digits.end()).take_while(is_digit).count();
    let (number, behind) = text.split_at_checked(length).filter(|_| digits.contains(&length))?;
    let value = u32::from_str_radix(std::str::from_utf8(number).ok()?, radix).ok()?;
    Some((value, behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn said(text: &str, secret: &str) -> String {
        Said::new(text, 200, Some(&Secret(secret.to_owned()))).to_string()
    }

    #[test]
    fn a_text_that_quotes_the_secret_is_left_out() {
        for (secret, text) in [
            ("hunter2", "unknown command 'AUTH', with args beginning with: 'hunter2'"),
            ("hunter2", "HUNTER2 is wrong"),
            ("hunter2", "xhunter2x"),
            ("a\"b\\c", "wrong: \"a\\\"b\\\\c\""),
            ("a b&c", "wrong: a%20b%26c"),
            ("a b&c", "wrong: a%20b&c"),
            ("p\u{f6}\u{1}z", "wrong: p\\xc3\\xb6\\x01z"),
            ("p\u{f6}\n\u{1}z", "wrong: p\u{f6}\\n\\u{1}z"),
            ("\u{20ac}uro", "wrong: \\u20acuro"),
            ("tab\tz", "wrong: tab\\011z"),
            ("\"50%25", "wrong: \\\"50%25"),
            ("e", "wrong: 'e'"),
            ("12", "wrong: 12"),
            ("!", "wrong: !"),
        ] {
            assert_eq!(said(text, secret), LEFT_OUT, "{text}");
            let said = Said::new(text, 200, Some(&Secret(secret.to_owned())));
            assert!(format!("{said:?}").contains(LEFT_OUT) && said.unchecked() == text);
        }
    }

    /// Nothing is replaced within a text, and the words of most texts have each letter in them.
    #[test]
    fn other_texts_are_shown() {
        for (secret, text) in [
            ("", "Access denied"),
            ("e", "Access denied"),
            ("1", "Host 10.0.0.11 is blocked"),
            ("den", "Access denied"),
            ("hunter2", "unknown command 'AUTH', with args beginning with: 'hunter'"),
            ("%", "100%2"),
        ] {
            assert_eq!(said(text, secret), text, "{secret}");
        }
        assert_eq!(Said::new("no", 1, None).to_string(), "n");
    }

    #[test]
    fn a_secret_that_was_cut_is_found() {
        let secret = "correct horse battery staple";
        for text in ["args: 'correct horse", "args: '...ery staple'", "AUTH corr%65ct%20horse b"] {
            assert_eq!(said(text, secret), LEFT_OUT, "{text}");
        }
        // The end of what is shown is the beginning of the quotation.
        for secret in ["hunter2", secret] {
            let text = format!("{} {secret}", "x".repeat(195));
            assert_eq!(said(&text, secret), LEFT_OUT);
        }
    }

    #[test]
    fn a_long_text_of_a_long_secret_takes_no_time() {
        let secret = Secret("a".repeat(64 * 1024));
        let text = format!("{}b", "a".repeat(7)).repeat(1024 * 1024);
        assert!(Said::new(&text, 300, Some(&secret)).is_shown());
    }

    /// As servers and proxies write it.
    fn written(secret: &str, how: usize) -> String {
        let of_bytes = |write: &dyn Fn(u8) -> String| secret.bytes().map(write).collect::<String>();
        match how {
            0 => secret.to_owned(),
            1 => secret.escape_debug().to_string(),
            2 => secret.escape_default().to_string(),
            3 => secret.escape_unicode().to_string(),
            4 => of_bytes(&|byte| format!("%{byte:02x}")),
            5 => of_bytes(&|byte| std::ascii::escape_default(byte).to_string()),
            6 => of_bytes(&|byte| format!("\\{byte:03o}")),
            _ => secret.to_ascii_uppercase(),
        }
    }

    proptest! {
        #[test]
        fn a_quotation_is_never_shown(
            secret in ".{1,40}", how in 0_usize..8, before in "[ -~]{0,220} ", after in "( .{0,20})?",
        ) {
            let quoted = written(&secret, how);
            let text = format!("{before}{quoted}{after}");
            let said = Said::new(&text, 200, Some(&Secret(secret.clone())));
            // Unless the quotation itself is behind what is shown.
            prop_assert!(!said.is_shown() || before.chars().count() >= 200, "{text:?}");
        }

        #[test]
        fn no_text_breaks_the_search(text in "(\\\\|%|\\PC){0,40}", secret in ".{0,20}", bytes: Vec<u8>) {
            let _ = quotes(&text, &secret);
            let _ = (unescaped(&bytes, b'\\'), unescaped(&bytes, b'%'));
        }
    }
}
