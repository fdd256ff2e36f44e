//! Replies: where each one ends, and its value by the parser of the `redis` crate.

use redis::{Parser, Value};

use super::packed;
use crate::error::{Error, Result};
use crate::store::remote::{Patience, Socket};

/// The longest reply: a value, and a little more.
const LONGEST: usize = 1024 * 1024 + 4096;
/// The longest line that begins a reply.
const LONGEST_LINE: usize = 2048;
/// The most levels of nested arrays in a reply.
const DEEPEST: usize = 3;

/// Waits for the next reply.
pub(super) fn next(
    socket: &mut Socket,
    parser: &mut Parser,
    patience: &mut Patience,
) -> Result<Value> {
    let length = loop {
        if let Some(length) = length(socket.unread(), DEEPEST)? {
            break length;
        }
        if socket.unread().len() > LONGEST {
            return Err(too_long());
        }
        socket.read_more(patience)?;
    };
    let reply = &socket.unread()[..length];
    let parsed = match packed::value(reply) {
        Some(value) => Ok(value),
        None => parser.parse_value(reply).map_err(|_| nonsense()),
    };
    socket.consume(length);
    parsed
}

/// The length of the reply at the start of these bytes; `None` if a part of it is missing. The bytes
/// behind it belong to the next reply, so the parser must not see them.
fn length(bytes: &[u8], levels: usize) -> Result<Option<usize>> {
    let Some(end) = bytes.windows(2).take(LONGEST_LINE).position(|two| two == b"\r\n") else {
        return if bytes.len() > LONGEST_LINE { Err(nonsense()) } else { Ok(None) };
    };
    let after = end + 2;
    let number = || {
        let text = bytes.get(1..end).and_then(|text| std::str::from_utf8(text).ok());
        text.and_then(|text| text.parse::<i64>().ok()).ok_or_else(nonsense)
    };
    match bytes.first() {
        Some(b'+' | b'-' | b':') => Ok(Some(after)),
        Some(b'$') => match number()? {
            -1 => Ok(Some(after)),
            size => {
                let size = usize::try_from(size).map_err(|_| nonsense())?;
                if size > LONGEST {
                    return Err(too_long());
                }
                Ok(Some(after + size + 2).filter(|&whole| whole <= bytes.len()))
            }
        },
        Some(b'*') if levels > 0 => {
            let mut whole = after;
            for _ in 0..number()?.max(0) {
                match length(&bytes[whole..], levels - 1)? {
                    Some(part) => whole += part,
                    None => return Ok(None),
                }
            }
            Ok(Some(whole))
        }
        _ => Err(nonsense()),
    }
}

fn nonsense() -> Error {
    Error::protocol("The server's reply is not that of a Redis.")
}

fn too_long() -> Error {
    Error::protocol(
        "The server sent a reply of more than 1 MiB, which is longer than any that was asked for.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_reply_ends_where_it_ends() {
        for text in [
            "+OK\r\n",
            "-ERR no\r\n",
            ":7\r\n",
            "$-1\r\n",
            "$0\r\n\r\n",
            "$5\r\na\r\nbc\r\n",
            "*-1\r\n",
            "*0\r\n",
            "*3\r\n$2\r\nxy\r\n:-1\r\n*1\r\n+a\r\n",
        ] {
            let bytes = [text.as_bytes(), b"+next\r\n"].concat();
            assert_eq!(length(&bytes, DEEPEST), Ok(Some(text.len())), "{text:?}");
            for cut in 0..text.len() {
                assert_eq!(length(&bytes[..cut], DEEPEST), Ok(None), "{text:?} up to {cut}");
            }
            assert!(redis::parse_redis_value(text.as_bytes()).is_ok(), "{text:?}");
        }
        for text in ["x\r\n", "$x\r\n", "$99999999999\r\n", "*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n"] {
            assert!(length(text.as_bytes(), DEEPEST).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_have_an_end_or_none(bytes: Vec<u8>, text in "[+:$*-][0-9]{0,3}\r\n[ -~]{0,9}(\r\n)?") {
            for bytes in [&bytes[..], text.as_bytes()] {
                if let Ok(Some(length)) = length(bytes, DEEPEST) {
                    prop_assert!(length <= bytes.len());
                }
            }
        }
    }
}
