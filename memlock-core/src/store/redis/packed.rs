//! The commands of each acquisition and release, written by hand, and the replies to them.
//!
//! The `redis` crate's commands and its parser allocate and clear memory for each of them: 39,000
//! instructions of the client for a pair, and 14,000 without. Tests compare with what the crate does.

use redis::Value;

use crate::name::{push_hex, push_number};

/// Begins a command of so many words.
pub(super) fn begin(count: u64, out: &mut Vec<u8>) {
    out.push(b'*');
    push_number(count, out);
    out.extend_from_slice(b"\r\n");
}

/// A word of these parts.
pub(super) fn word<const N: usize>(parts: [&[u8]; N], out: &mut Vec<u8>) {
    out.push(b'$');
    push_number(parts.iter().map(|part| part.len() as u64).sum(), out);
    out.extend_from_slice(b"\r\n");
    for part in parts {
        out.extend_from_slice(part);
    }
    out.extend_from_slice(b"\r\n");
}

/// A number as a word.
pub(super) fn number(number: u64, out: &mut Vec<u8>) {
    let mut digits = Vec::with_capacity(20);
    push_number(number, &mut digits);
    word([&digits], out);
}

/// A version as it is stored.
pub(super) fn hex(version: u64) -> [u8; 16] {
    let mut digits = Vec::with_capacity(16);
    push_hex(&version.to_be_bytes(), &mut digits);
    // There are two digits for each of the eight bytes.
    digits.try_into().unwrap_or([b'0'; 16])
}

/// The value of a reply, if it is one of those to an acquisition or a release: `OK`, a number, or
/// nothing.
pub(super) fn value(reply: &[u8]) -> Option<Value> {
    let line = reply.strip_suffix(b"\r\n")?;
    match line {
        b"+OK" => Some(Value::Okay),
        b"$-1" => Some(Value::Nil),
        [b':', digits @ ..] => std::str::from_utf8(digits).ok()?.parse().ok().map(Value::Int),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use redis::cmd;

    use super::*;

    #[test]
    fn words_are_written_as_the_crate_writes_them() {
        let mut out = Vec::new();
        begin(4, &mut out);
        word([b"SET"], &mut out);
        word([&hex(0xa7), b" ", b"a\r\nb"], &mut out);
        word([], &mut out);
        number(1234567890, &mut out);
        let mut set = cmd("SET");
        set.arg("00000000000000a7 a\r\nb").arg("").arg(1234567890);
        assert_eq!(out, set.get_packed_command());
    }

    #[test]
    fn a_reply_has_the_value_that_the_crate_reads() {
        for reply in ["+OK\r\n", "$-1\r\n", ":0\r\n", ":-1\r\n", ":9223372036854775807\r\n"] {
            let read = redis::parse_redis_value(reply.as_bytes()).unwrap();
            assert_eq!(value(reply.as_bytes()), Some(read), "{reply:?}");
        }
        for other in
            ["+PONG\r\n", "-ERR no\r\n", ":x\r\n", ":\r\n", "$2\r\nOK\r\n", "*0\r\n", "+OK"]
        {
            assert_eq!(value(other.as_bytes()), None, "{other:?}");
        }
    }
}
