//! Owner records: the value of a lock's item, which any client of the server can write.

use memlock_core::fuzzing::is_ours;
use memlock_core::{OwnerRecord, Token};

pub fn run(value: &[u8]) {
    as_a_value(value);
    as_fields(value);
    as_a_token(value);
}

/// Whatever can be read is written again as the same record.
fn as_a_value(value: &[u8]) {
    let Some(record) = OwnerRecord::parse(value) else { return };
    assert_eq!(OwnerRecord::parse(record.to_string().as_bytes()).as_ref(), Some(&record));
    assert!(is_ours(value, record.token), "its own token proves it");
    let text = std::str::from_utf8(value).expect("only text is a record");
    assert!(text.contains(&record.token.to_string()), "the token stands there as it is");
    let marked = OwnerRecord::parse(&[value, b" rings"].concat())
        .expect("a waiter's mark leaves it readable");
    assert!(marked.notifies && is_ours(text.as_bytes(), marked.token));
    assert_eq!((marked.host, marked.pid, marked.since), (record.host, record.pid, record.since));
}

/// Whatever a host is called, its record is one line that is read back.
fn as_fields(value: &[u8]) {
    let Some((bits, host)) = value.split_first_chunk::<16>() else { return };
    let Ok(host) = std::str::from_utf8(host) else { return };
    let token = Token::from_bits(u128::from_le_bytes(*bits));
    let text =
        format!("memlock/1 {token} {} {} {}", encoded(host), bits[0], u64::from(bits[1]) << 40);
    let record = OwnerRecord::parse(text.as_bytes()).expect("a record as a process writes it");
    assert_eq!((record.token, record.host.as_str(), record.notifies), (token, host, false));
    assert_eq!(record.to_string(), text);
    assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "one line of visible text");
    let other = Token::from_bits(!u128::from_le_bytes(*bits));
    assert!(!is_ours(text.as_bytes(), other), "no other token does");
}

fn encoded(host: &str) -> String {
    memlock_core::fuzzing::percent_encode(host.as_bytes())
}

/// A token has one text only.
fn as_a_token(value: &[u8]) {
    let Ok(text) = std::str::from_utf8(value) else { return };
    if let Ok(token) = text.parse::<Token>() {
        assert_eq!(token.to_string(), text);
    }
}
