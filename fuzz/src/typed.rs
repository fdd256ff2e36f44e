//! What a user of the command gives it: durations, names, a list's keys on standard input, and
//! whole command lines.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use memlock_cli::fuzzing::{brief, command_line, date, duration, keys, shown};

const LONGEST_KEY: usize = 64 * 1024;

pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % 4 {
        0 => as_a_duration(&String::from_utf8_lossy(rest)),
        1 => as_keys(rest, if kind & 4 == 0 { b'\n' } else { 0 }),
        2 => as_a_name_and_a_moment(rest),
        _ => as_a_command_line(rest),
    }
}

/// Digits, perhaps a point, perhaps a unit; and it can be written again.
fn as_a_duration(text: &str) {
    let Some(read) = duration(text) else { return };
    let number = text.trim_end_matches(|c: char| c.is_ascii_lowercase());
    assert!(number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'), "{text:?}");
    assert!(
        ["", "us", "ms", "s", "m", "min", "h", "d"].contains(&&text[number.len()..]),
        "{text:?}"
    );
    assert_eq!(
        read.is_zero(),
        number.parse::<f64>().expect("a number") * scale(text) < 0.5e-9,
        "{text:?}"
    );
    assert!(brief(read).len() < 40);
}

/// How many seconds its unit has.
fn scale(text: &str) -> f64 {
    if text.ends_with("us") {
        1e-6
    } else if text.ends_with("ms") {
        1e-3
    } else {
        1.0
    }
}

/// The keys are the lines, or there is one that is too long.
fn as_keys(input: &[u8], end: u8) {
    let mut lines: Vec<&[u8]> = input.split(|&byte| byte == end).collect();
    if lines.last().is_some_and(|last| last.is_empty()) {
        lines.pop();
    }
    match keys(input, end) {
        Ok(keys) => {
            assert!(keys.iter().map(|(key, _)| &key[..]).eq(lines));
            assert_eq!(keys.iter().map(|(_, read)| read).sum::<u64>(), input.len() as u64);
        }
        Err(said) => {
            assert!(lines.iter().any(|line| line.len() > LONGEST_KEY), "{said}");
            assert!(said.ends_with('.') && said.chars().all(|c| !c.is_control()), "{said:?}");
        }
    }
}

fn as_a_name_and_a_moment(bytes: &[u8]) {
    assert!(shown(bytes).chars().all(|c| !c.is_control()));
    let seconds = bytes.iter().take(8).fold(0, |number, &byte| number << 8 | u64::from(byte));
    let (now, then) = (date(seconds), date(seconds.saturating_add(1)));
    assert!(now.ends_with('Z') && now.len() >= 20);
    assert!(
        now.len() < then.len() || now.len() == then.len() && now <= then,
        "{now} before {then}"
    );
    assert!(!brief(Duration::new(seconds, 999_999_999)).is_empty());
}

/// Words that end with NUL, as the system gives them.
fn as_a_command_line(bytes: &[u8]) {
    let words = bytes.split(|&byte| byte == 0).map(|word| OsString::from_vec(word.to_vec()));
    let words: Vec<OsString> = std::iter::once("memlock".into()).chain(words).collect();
    if let Some(until) = command_line(&words) {
        assert!(until == 0 || until > 1_000_000_000, "later than now");
    }
}
