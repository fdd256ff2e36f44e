//! Operations to commands, and their replies back.

use std::borrow::Cow;
use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::errors;
use super::packed;
use super::promises::GUARANTEES;
use crate::error::{Error, Result};
use crate::name::Key;
use crate::store::url::Secret;
use crate::store::{Epoch, Expiry, Item, Op, Reply, Returns, Stored, Version};

/// The text of the script.
pub(super) const SCRIPT: &str = include_str!("script.lua");

/// The script's reply to an operation on an item that is too large to be memlock's.
const TOO_LARGE: &str = "TOOLARGE";

/// A script's reply if another program stores something where only memlock does.
pub(super) const FOREIGN: &str = "FOREIGN";

/// The end of a queue's key.
const QUEUE: &str = "%wait";

/// The key as the server knows it. A queue has the hash tag of its lock, so that all items of a lock
/// are in one slot: the lock's key, unless that has braces itself.
pub(super) fn wire_key(key: &str) -> Cow<'_, str> {
    match key.strip_suffix(QUEUE) {
        Some(lock) if !lock.contains(['{', '}']) => Cow::Owned(format!("{{{lock}}}{QUEUE}")),
        _ => Cow::Borrowed(key),
    }
}

/// The key that the server knows as `wire`.
#[cfg(feature = "admin")]
pub(super) fn key_of(wire: &str) -> Cow<'_, str> {
    let lock = wire
        .strip_suffix(QUEUE)
        .and_then(|tag| tag.strip_prefix('{'))
        .and_then(|tag| tag.strip_suffix('}'))
        .filter(|lock| !lock.contains(['{', '}']));
    match lock {
        Some(lock) => Cow::Owned(format!("{lock}{QUEUE}")),
        None => Cow::Borrowed(wire),
    }
}

/// Appends the command of one operation to `out`. `version`: of the value that it stores, if it
/// stores one. `script`: the hash of the script; without it the command contains the script.
pub(super) fn encode(op: &Op<'_>, version: u64, script: Option<&str>, out: &mut Vec<u8>) {
    let key = wire_key(op.key().as_str());
    match *op {
        Op::Add { value, expiry: Expiry::After(lease), .. } => {
            packed::begin(6, out);
            packed::word([b"SET"], out);
            packed::word([key.as_bytes()], out);
            if op.key().is_shared() {
                packed::word([value], out);
            } else {
                packed::word([&packed::hex(version), b" ", value], out);
            }
            packed::word([b"NX"], out);
            packed::word([b"PX"], out);
            packed::number(millis(GUARANTEES.covering(lease)), out);
        }
        Op::Add { value, expiry, .. } => {
            let mut add = cmd("SET");
            add.arg(&*key).arg(stored(op.key(), version, value)).arg("NX");
            let left = match expiry {
                // There is no item whose lifetime could be kept.
                Expiry::Unchanged(Some(left)) => Some(left),
                _ => None,
            };
            match left {
                Some(left) => add.arg("PX").arg(millis(left)),
                None => words_of(&mut add, expiry),
            };
            add.write_packed_command(out);
        }
        Op::Get { .. } => call(script, &key, "get").write_packed_command(out),
        Op::CompareAndSet { version: old, value, expiry, .. } => {
            let mut set = call(script, &key, "set");
            set.arg(&packed::hex(old.number())[..]).arg(stored(op.key(), version, value));
            words_of(&mut set, expiry).write_packed_command(out);
        }
        Op::Delete { version, .. } => {
            packed::begin(6, out);
            let (name, text) = named(script);
            for word in [name, text, "1", &*key, "delete"] {
                packed::word([word.as_bytes()], out);
            }
            packed::word([&packed::hex(version.number())], out);
        }
        Op::Append { value, .. } => {
            let mut append = call(script, &key, extension(op.key()));
            append.arg(&packed::hex(version)[..]).arg("").arg(value).write_packed_command(out);
        }
        Op::Prepend { value, .. } => {
            let mut prepend = call(script, &key, extension(op.key()));
            prepend.arg(&packed::hex(version)[..]).arg(value).arg("").write_packed_command(out);
        }
        Op::Increment { by, initial, .. } => {
            let mut increment = call(script, &key, "increment");
            let is_shared = op.key().is_shared();
            increment.arg(by).arg(if is_shared {
                Vec::new()
            } else {
                packed::hex(version).to_vec()
            });
            if let Some((first, expiry)) = initial {
                words_of(increment.arg(first), expiry);
            }
            increment.write_packed_command(out);
        }
    }
}

/// The reply to an operation. `version`: as for [`encode`].
pub(super) fn decode(op: &Op<'_>, version: u64, reply: Value, epoch: Epoch) -> Result<Reply> {
    let written = |number: u64| match op {
        Op::Add { returns, .. } | Op::CompareAndSet { returns, .. }
            if *returns != Returns::Nothing =>
        {
            Reply::Stored(Stored { version: Version::new(epoch, number), fence: 0 })
        }
        _ => Reply::Written,
    };
    Ok(match (op, reply) {
        (Op::Add { .. }, Value::Okay) => written(version),
        (Op::Add { .. }, Value::Nil) => Reply::Exists,
        (Op::CompareAndSet { .. }, Value::BulkString(text)) => {
            written(version_of(&text).ok_or_else(unexpected)?)
        }
        (_, Value::Nil) => Reply::Missing,
        (Op::CompareAndSet { .. } | Op::Delete { .. }, Value::Int(0)) => Reply::VersionMismatch,
        (Op::Delete { .. }, Value::Int(1)) => Reply::Deleted,
        (Op::Append { .. } | Op::Prepend { .. }, Value::Int(1)) => Reply::Written,
        (Op::Increment { .. }, Value::BulkString(text)) => {
            let number = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
            Reply::Number(number.ok_or_else(|| not_a_number(op.key()))?)
        }
        (Op::Get { .. }, Value::Array(parts)) => item(parts, epoch).ok_or_else(unexpected)?,
        _ => return Err(unexpected()),
    })
}

fn item(parts: Vec<Value>, epoch: Epoch) -> Option<Reply> {
    let [version, value, left] = <[Value; 3]>::try_from(parts).ok()?;
    let (Value::BulkString(version), Value::BulkString(value), Value::Int(left)) =
        (version, value, left)
    else {
        return None;
    };
    let version = Version::new(epoch, version_of(&version)?);
    // -1 if the item never expires.
    let remaining = u64::try_from(left).ok().map(Duration::from_millis);
    Some(Reply::Value(Item { value, version, remaining, fence: 0 }))
}

/// The error of an operation that the server refused with an error reply. It was not carried out.
pub(super) fn refused(op: &Op<'_>, code: &str, text: &str, password: Option<&Secret>) -> Error {
    let key = wire_key(op.key().as_str());
    let is = |reply: &str| code == reply || text.contains(reply);
    if text.contains("not an integer") || text.contains("overflow") {
        return not_a_number(op.key());
    }
    if is(TOO_LARGE) {
        return Error::protocol(format!(
            "The item {key} has a value of more than 1 MiB: it is not memlock's. Use another name, or delete the \
             item."
        ));
    }
    if is(FOREIGN) {
        return foreign(&key);
    }
    if is("WRONGTYPE") {
        return Error::protocol(format!(
            "The item {key} is not a string: another program stores something there. Use another name."
        ));
    }
    errors::of_reply(code, text, password)
}

/// The error of an item that another program stores where only memlock does.
pub(super) fn foreign(key: &str) -> Error {
    Error::protocol(format!(
        "The item {key} is not memlock's: another program stores something there. Delete it, or choose another \
         prefix."
    ))
}

fn not_a_number(key: &Key) -> Error {
    Error::protocol(format!("The item {key} is not a number and cannot be counted."))
}

fn unexpected() -> Error {
    Error::protocol("A reply does not belong to its request: the connection is out of step.")
}

/// The script's name for adding to an item.
fn extension(key: &Key) -> &'static str {
    if key.is_queue() { "enter" } else { "extend" }
}

fn call(script: Option<&str>, key: &str, op: &str) -> Cmd {
    let (name, text) = named(script);
    let mut call = cmd(name);
    call.arg(text).arg(1).arg(key).arg(op);
    call
}

/// The command that calls the script, and how it names it.
fn named(script: Option<&str>) -> (&'static str, &str) {
    match script {
        Some(hash) => ("EVALSHA", hash),
        None => ("EVAL", SCRIPT),
    }
}

/// Appends the command that draws a fence from this counter.
pub(super) fn draw(counter: &Key, out: &mut Vec<u8>) {
    packed::begin(2, out);
    packed::word([b"INCR"], out);
    packed::word([counter.as_str().as_bytes()], out);
}

/// The content of an item: the version and the value, or the value alone if other programs share the
/// item.
fn stored(key: &Key, version: u64, value: &[u8]) -> Vec<u8> {
    if key.is_shared() {
        return value.to_vec();
    }
    let mut stored = Vec::with_capacity(17 + value.len());
    stored.extend_from_slice(&packed::hex(version));
    stored.push(b' ');
    stored.extend_from_slice(value);
    stored
}

/// The value of an item with this content.
pub(super) fn value_of(stored: &[u8]) -> &[u8] {
    match stored.split_at_checked(16) {
        Some((version, rest))
            if version.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) =>
        {
            rest.strip_prefix(b" ").unwrap_or(stored)
        }
        _ => stored,
    }
}

fn version_of(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    u64::from_str_radix(text, 16).ok()
}

fn words_of(command: &mut Cmd, expiry: Expiry) -> &mut Cmd {
    match expiry {
        Expiry::After(lease) => command.arg("PX").arg(millis(GUARANTEES.covering(lease))),
        Expiry::At(time) => command.arg("PXAT").arg(millis(time)),
        Expiry::Unchanged(_) => command.arg("KEEPTTL"),
        Expiry::Never => command,
    }
}

/// In whole milliseconds, rounded up; at least one, since Redis refuses a time to live of 0.
fn millis(duration: Duration) -> u64 {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX).clamp(1, i64::MAX as u64 / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Keyspace;

    #[cfg(feature = "admin")]
    #[test]
    fn a_queue_has_its_lock_as_its_hash_tag() {
        for (key, wire) in [
            ("lock:x", "lock:x"),
            ("lock:x%wait", "{lock:x}%wait"),
            ("p:semaphore:x%wait", "{p:semaphore:x}%wait"),
            ("lock:a{b}c%wait", "lock:a{b}c%wait"),
        ] {
            assert_eq!(wire_key(key), wire);
            assert_eq!(key_of(wire), key);
        }
        assert_eq!(key_of("%wait"), "%wait");
    }

    #[test]
    fn an_item_that_other_programs_share_has_no_version() {
        let keys = Keyspace::default();
        assert_eq!(stored(&keys.exact(b"slots").unwrap(), 7, b"12"), b"12");
        assert_eq!(stored(&keys.lock(b"slots"), 7, b"12"), b"0000000000000007 12");
    }

    #[test]
    fn an_item_that_was_added_lives_no_shorter_than_its_lease() {
        let key = Keyspace::default().lock(b"x");
        let expiry = Expiry::After(Duration::from_nanos(1_000_000_001));
        let add = Op::add(&key, b"v", expiry, Returns::Fence);
        let mut out = Vec::new();
        encode(&add, 7, None, &mut out);
        let words = "*6\r\n$3\r\nSET\r\n$6\r\nlock:x\r\n$18\r\n0000000000000007 v\r\n$2\r\nNX\r\n$2\r\nPX\r\n$4\r\n1003\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), words);
    }
}
