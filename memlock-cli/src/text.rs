//! Names, keys and server text, made safe to print: nothing that is printed moves the cursor,
//! reorders the text around it or is invisible.
//!
//! What is printable is the standard library's decision: `char::escape_debug` escapes the general
//! categories Cc, Cf, Cs, Co, Cn, Zl, Zp and Zs but for the space. The other invisible characters
//! are those with the property Default_Ignorable_Code_Point (Unicode Character Database,
//! DerivedCoreProperties.txt) in other categories.

use std::fmt::Write;

/// Whether a character is shown as it is.
pub(crate) fn is_printable(c: char) -> bool {
    // Behind another character, since combining characters are escaped at the start of a string.
    let mut text = [b' '; 5];
    let length = 1 + c.encode_utf8(&mut text[1..]).len();
    let is_plain =
        std::str::from_utf8(&text[..length]).is_ok_and(|text| text.escape_debug().skip(1).eq([c]));
    (is_plain || matches!(c, '"' | '\'' | '\\')) && !is_ignorable(c)
}

/// Default_Ignorable_Code_Point outside the categories Cf and Cn: fillers, joiners, and variation
/// selectors. And the empty pattern of Braille, which looks like a space.
fn is_ignorable(c: char) -> bool {
    matches!(c, '\u{34f}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}')
        || matches!(c, '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}')
}

/// A text whose characters are all printable: the others are escaped. To be used for whole
/// sentences and cells, whatever was put into them.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        push(c, &mut shown);
    }
    shown
}

/// A name for people: as it is if it can be shown, and quoted with escapes if not.
pub(crate) fn shown(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) if is_clear(text) => text.to_owned(),
        _ => quoted(name),
    }
}

fn is_clear(text: &str) -> bool {
    // A quote at the start would make it look like a quoted name, and a combining character there
    // would join what stands before it.
    let begins_well = |c: char| c.escape_debug().eq([c]) || matches!(c, '\'' | '\\');
    text.starts_with(begins_well)
        && text.trim_matches(' ') == text
        && text.chars().all(|c| c != '\u{fffd}' && is_printable(c))
}

/// A name between quotes, for sentences. Quotes, backslashes and what cannot be shown are escaped.
pub(crate) fn quoted(name: &[u8]) -> String {
    let mut shown = String::from("\"");
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' => shown.extend(['\\', c]),
                _ => push(c, &mut shown),
            }
        }
        shown.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    shown.push('"');
    shown
}

fn push(c: char, to: &mut String) {
    match c {
        _ if is_printable(c) => to.push(c),
        '\n' => to.push_str("\\n"),
        '\r' => to.push_str("\\r"),
        '\t' => to.push_str("\\t"),
        // Writing to a string cannot fail.
        _ if c.is_ascii() => drop(write!(to, "\\x{:02x}", u32::from(c))),
        _ => drop(write!(to, "\\u{{{:x}}}", u32::from(c))),
    }
}

/// One line of JSON. What is not printable stands only in strings, where `\uXXXX` means the same
/// character.
pub(crate) fn json_line(value: &serde_json::Value) -> String {
    let json = value.to_string();
    let mut line = String::with_capacity(json.len());
    for c in json.chars() {
        if is_printable(c) {
            line.push(c);
        } else {
            let mut units = [0; 2];
            line.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use unicode_general_category::{GeneralCategory, get_general_category};

    use super::*;

    #[test]
    fn no_control_format_separator_private_or_unassigned_character_is_printed() {
        use GeneralCategory::*;
        let mut seen = 0;
        for c in '\0'..=char::MAX {
            match get_general_category(c) {
                Control | Format | LineSeparator | ParagraphSeparator => {
                    assert!(!is_printable(c), "U+{:04X}", u32::from(c));
                    is_escaped_everywhere(c);
                    seen += 1;
                }
                PrivateUse => assert!(!is_printable(c), "U+{:04X}", u32::from(c)),
                // The standard library may know a newer Unicode, in which it is a letter.
                _ => {}
            }
        }
        assert!(seen > 200, "{seen}");
        for unassigned in ['\u{378}', '\u{2065}', '\u{e0000}', '\u{e0fff}', '\u{fffff}'] {
            is_escaped_everywhere(unassigned);
        }
    }

    fn is_escaped_everywhere(c: char) {
        let name = format!("a{c}b");
        for text in [shown(name.as_bytes()), quoted(name.as_bytes()), printable(&name)] {
            assert!(!text.contains(c) && text.contains('\\'), "U+{:04X}: {text:?}", u32::from(c));
        }
        let json = json_line(&serde_json::Value::from(name.clone()));
        assert!(json.is_ascii(), "U+{:04X}: {json:?}", u32::from(c));
        assert_eq!(serde_json::from_str::<String>(&json).ok(), Some(name));
    }

    #[test]
    fn characters_that_are_invisible_are_escaped() {
        for c in [
            '\u{202e}',
            '\u{2066}',
            '\u{200b}',
            '\u{2028}',
            '\u{ad}',
            '\u{feff}',
            '\u{e0041}',
            '\u{34f}',
            '\u{2800}',
            '\u{3164}',
            '\u{fe0f}',
        ] {
            assert_eq!(
                shown(format!("a{c}").as_bytes()),
                format!("\"a\\u{{{:x}}}\"", u32::from(c))
            );
        }
        assert_eq!(shown("a\u{a0}b".as_bytes()), r#""a\u{a0}b""#, "a space that is none");
    }

    #[test]
    fn names_that_can_be_read_are_shown_as_they_are() {
        for name in
            ["backup db", "größe", "e\u{301}te\u{301}", "日本", "שלום", "😀", r"a\b", "it's"]
        {
            assert_eq!(shown(name.as_bytes()), name);
            assert_eq!(printable(name), name);
        }
        assert_eq!(quoted("it's größe".as_bytes()), "\"it's größe\"");
    }

    #[test]
    fn names_that_would_spoil_a_terminal_or_look_like_others_are_escaped() {
        for (name, text) in [
            (&b"a\x1b[31m"[..], r#""a\x1b[31m""#),
            (b"a\n\x7f", r#""a\n\x7f""#),
            (b"\xff", r#""\xff""#),
            (b"a\xffb\xe2\x80\xae", r#""a\xffb\u{202e}""#),
            (b"", r#""""#),
            (b"\"a\"", r#""\"a\"""#),
            (b" a", r#"" a""#),
            ("\u{301}a".as_bytes(), "\"\u{301}a\""),
        ] {
            assert_eq!(shown(name), text);
        }
        assert_eq!(quoted(br#"a"\"#), r#""a\"\\""#);
    }
}
