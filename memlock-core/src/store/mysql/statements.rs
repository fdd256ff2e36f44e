//! Operations to statements, one each, and what the replies to them mean.
//!
//! A statement commits itself, so each operation is atomic. Its reply tells exactly what happened:
//! how many rows it changed, and a number that it passes on by `LAST_INSERT_ID(…)`.
//!
//! The time is `SYSDATE(6)`, which is read again for each row, once the row is locked. `NOW(6)` is the
//! time at which the statement began, which may have waited for the row since. A decision that depends
//! on the time is made once: by `WHERE`, or by setting `expires` to 0 for a row that is over. The other
//! columns then depend on that, since a column that was set shows its new value.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use super::packets::{Answer, Row, out_of_step};
use super::promises::guarantees;
use super::schema::{Engine, TABLE};
use crate::error::{Error, Result};
use crate::name::Key;
use crate::store::{Epoch, Expiry, Item, Op, Reply, Returns, Stored, Version};

/// Microseconds since 1970 by UTC, whatever the session's time zone.
pub(super) const NOW: &str = "CAST(UNIX_TIMESTAMP(SYSDATE(6))*1000000 AS UNSIGNED)";
/// The end of an item that never ends.
pub(super) const NEVER: u64 = u64::MAX;
/// No lease is as long, in microseconds.
const LONGEST: u64 = 1 << 60;
/// A longer value is dropped with the release of its item, rather than by a sweep.
const SHORT_VALUE: usize = 512;
/// Numbers are counted modulo this.
const MODULUS: &str = "18446744073709551616";

/// Writes the statement that carries out an operation.
pub(super) fn encode(op: &Op<'_>, engine: Engine, out: &mut Vec<u8>) {
    let key = Hex(op.key().as_str().as_bytes());
    match *op {
        Op::Add { value, expiry, .. } => {
            let ends = ends(expiry, engine).unwrap_or_else(|| NEVER.to_string());
            write(out, format_args!("{}", Add { key, value: Hex(value), ends }));
        }
        Op::Get { .. } => write(
            out,
            format_args!(
                // Otherwise, on a MEMORY table, no one reads while others write all the time.
                "SELECT HIGH_PRIORITY IF(LENGTH(value)>{longest},NULL,value),number,expires,{NOW},LENGTH(value) \
                 FROM {TABLE} WHERE name={key}",
                longest = Engine::InnoDb.longest_value()
            ),
        ),
        Op::CompareAndSet { version, value, expiry, .. } => {
            let (ends, value, number) = (ends(expiry, engine), Hex(value), version.number());
            write(out, format_args!("{}", Set { key, value, ends, number }));
        }
        Op::Delete { version, .. } => {
            write(out, format_args!("{}", Delete { key, number: version.number() }));
        }
        Op::Append { value, .. } => extend(key, format_args!("value,{}", Hex(value)), out),
        Op::Prepend { value, .. } => extend(key, format_args!("{},value", Hex(value)), out),
        Op::Increment { by, initial, .. } => increment(key, by, initial, engine, out),
    }
}

fn write(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to memory does not fail.
    let _ = std::io::Write::write_fmt(out, text);
}

/// The statement that adds an item. `ends` occurs twice.
pub(super) struct Add<K, V, E> {
    pub(super) key: K,
    pub(super) value: V,
    pub(super) ends: E,
}

impl<K: Display, V: Display, E: Display> Display for Add<K, V, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Add { key, value, ends } = self;
        write!(
            f,
            "INSERT INTO {TABLE} (name,value,number,expires) \
             VALUES ({key},{value},LAST_INSERT_ID({NOW}),{ends}) ON DUPLICATE KEY UPDATE \
             expires=IF(expires<={NOW},0,expires),value=IF(expires=0,VALUES(value),value),\
             number=IF(expires=0,LAST_INSERT_ID(GREATEST(number+1,{NOW})),number),\
             expires=IF(expires=0,{ends},expires)"
        )
    }
}

/// The statement that stores an item which has this number.
pub(super) struct Set<K, V, E, N> {
    pub(super) value: V,
    pub(super) ends: Option<E>,
    pub(super) key: K,
    pub(super) number: N,
}

impl<K: Display, V: Display, E: Display, N: Display> Display for Set<K, V, E, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Set { value, ends, key, number } = self;
        write!(f, "UPDATE {TABLE} SET value={value},")?;
        write!(f, "number=LAST_INSERT_ID(GREATEST(number+1,{NOW}))")?;
        if let Some(ends) = ends {
            write!(f, ",expires={ends}")?;
        }
        write!(f, " WHERE {}", Numbered(key, number))
    }
}

/// The statement that removes an item which has this number.
pub(super) struct Delete<K, N> {
    pub(super) key: K,
    pub(super) number: N,
}

impl<K: Display, N: Display> Display for Delete<K, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Delete { key, number } = self;
        write!(
            f,
            "UPDATE {TABLE} SET value=IF(LENGTH(value)>{SHORT_VALUE},'',value),expires=0 WHERE {}",
            Numbered(key, number)
        )
    }
}

/// Selects an item if it has this number. If it has another one, `LAST_INSERT_ID` tells it.
struct Numbered<K, N>(K, N);

impl<K: Display, N: Display> Display for Numbered<K, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Numbered(key, number) = self;
        write!(
            f,
            "name={key} AND expires>{NOW} AND (number={number} OR LAST_INSERT_ID(number)<>number)"
        )
    }
}

fn extend(key: Hex<'_>, parts: std::fmt::Arguments<'_>, out: &mut Vec<u8>) {
    write(
        out,
        format_args!(
            "UPDATE {TABLE} SET value=CONCAT({parts}),number=GREATEST(number+1,{NOW}) \
             WHERE name={key} AND expires>{NOW}"
        ),
    );
}

fn increment(
    key: Hex<'_>,
    by: u64,
    initial: Option<(u64, Expiry)>,
    engine: Engine,
    out: &mut Vec<u8>,
) {
    const IS_NUMBER: &str = "CONVERT(value USING latin1) REGEXP _latin1'^[0-9]{1,20} *$'";
    // As the value was set before, this is the new number.
    let counted = format!("GREATEST(number+1,{NOW})+0*LAST_INSERT_ID(CAST(value AS UNSIGNED))");
    let sum = format!(
        "CAST((CAST(RTRIM(CONVERT(value USING latin1)) AS DECIMAL(30,0))+{by})%{MODULUS} AS CHAR)"
    );
    let Some((first, expiry)) = initial else {
        return write(
            out,
            format_args!(
                "UPDATE {TABLE} SET value={sum},number={counted} WHERE name={key} AND expires>{NOW} \
                 AND ({IS_NUMBER} OR LAST_INSERT_ID(number)<>number)"
            ),
        );
    };
    let ends = ends(expiry, engine).unwrap_or_else(|| NEVER.to_string());
    write(
        out,
        format_args!(
            "INSERT INTO {TABLE} (name,value,number,expires) VALUES ({key},'{first}',{NOW},{ends}) \
             ON DUPLICATE KEY UPDATE expires=IF(expires<={NOW},0,expires),\
             value=IF(expires=0,'{first}',IF({IS_NUMBER},{sum},value)),\
             number=IF({IS_NUMBER},{counted},number),expires=IF(expires=0,{ends},expires)"
        ),
    );
}

/// The lifetime that is requested for a lease, in microseconds.
pub(super) fn lifetime(lease: Duration, engine: Engine) -> u64 {
    micros(guarantees(engine).covering(lease))
}

/// The end of an item; `None` if it does not change.
fn ends(expiry: Expiry, engine: Engine) -> Option<String> {
    Some(match expiry {
        Expiry::After(lease) => format!("{NOW}+{}", lifetime(lease, engine)),
        Expiry::At(time) => micros(time).to_string(),
        Expiry::Unchanged(_) => return None,
        Expiry::Never => NEVER.to_string(),
    })
}

/// The statement that removes an item whose value begins so, in a session of the caller's with any
/// settings. Others wait for the row until the caller's transaction ends, so an end of the lease in
/// between frees nothing; and statements with the time at which they began can be replicated in every
/// format. It is not taken from the local time, which occurs twice where daylight saving time ends.
pub(super) fn removal(database: &str, key: &Key, start: &[u8]) -> String {
    format!(
        "UPDATE `{database}`.{TABLE} SET expires=0 WHERE name={key} \
         AND expires>TIMESTAMPDIFF(MICROSECOND,19700101,UTC_TIMESTAMP(6)) AND LEFT(value,{length})={start}",
        database = database.replace('`', "``"),
        key = Hex(key.as_str().as_bytes()),
        length = start.len(),
        start = Hex(start),
    )
}

/// Whole microseconds, rounded up.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(LONGEST).min(LONGEST)
}

/// What the reply to the operation's statement means.
pub(super) fn decode(op: &Op<'_>, answer: Answer, epoch: Epoch) -> Result<Reply> {
    let (changed, id) = match answer {
        Answer::Done { changed, id } => (changed, id),
        Answer::Rows(rows) if matches!(op, Op::Get { .. }) => return item(rows, op.key(), epoch),
        Answer::Rows(_) | Answer::Refused(_) => return Err(out_of_step()),
    };
    let is_stored = changed > 0;
    let written = |returns| match returns {
        Returns::Nothing => Ok(Reply::Written),
        Returns::Version | Returns::Fence if id == 0 => Err(hidden()),
        Returns::Version | Returns::Fence => {
            Ok(Reply::Stored(Stored { version: Version::new(epoch, id), fence: id }))
        }
    };
    Ok(match *op {
        Op::Add { returns, .. } if is_stored => written(returns)?,
        Op::Add { .. } => Reply::Exists,
        Op::CompareAndSet { returns, .. } if is_stored => written(returns)?,
        Op::Delete { .. } if is_stored => Reply::Deleted,
        Op::CompareAndSet { .. } | Op::Delete { .. } if id != 0 => Reply::VersionMismatch,
        Op::Append { .. } | Op::Prepend { .. } if is_stored => Reply::Written,
        // A row that was inserted has the first number.
        Op::Increment { initial: Some((first, _)), .. } if changed == 1 => Reply::Number(first),
        Op::Increment { .. } if is_stored => Reply::Number(id),
        Op::Increment { initial: Some(_), .. } => return Err(not_a_number(op.key())),
        Op::Increment { .. } if id != 0 => return Err(not_a_number(op.key())),
        Op::CompareAndSet { .. }
        | Op::Delete { .. }
        | Op::Append { .. }
        | Op::Prepend { .. }
        | Op::Increment { .. } => Reply::Missing,
        Op::Get { .. } => return Err(out_of_step()),
    })
}

fn item(rows: Vec<Row>, key: &Key, epoch: Epoch) -> Result<Reply> {
    let Some(row) = rows.into_iter().next() else { return Ok(Reply::Missing) };
    let [value, number, expires, now, length] =
        <[Option<Vec<u8>>; 5]>::try_from(row).map_err(|_| out_of_step())?;
    let number_of = |field| parse(field).ok_or_else(out_of_step);
    let (number, expires, now) = (number_of(number)?, number_of(expires)?, number_of(now)?);
    let left = expires.saturating_sub(now);
    if left == 0 {
        return Ok(Reply::Missing);
    }
    let Some(value) = value else {
        return Err(Error::protocol(format!(
            "The item {key} has a value of {} bytes, and memlock reads no more than 1 MiB: it is not \
             memlock's. Use another name, or delete the item.",
            parse(length).unwrap_or(0)
        )));
    };
    let remaining = (expires != NEVER).then(|| Duration::from_micros(left));
    Ok(Reply::Value(Item { value, version: Version::new(epoch, number), remaining, fence: number }))
}

/// A number as text.
pub(super) fn parse(field: Option<Vec<u8>>) -> Option<u64> {
    String::from_utf8(field?).ok()?.parse().ok()
}

fn not_a_number(key: &Key) -> Error {
    Error::protocol(format!("The item {key} is not a number and cannot be counted."))
}

/// A trigger hides the number that a statement returns by `LAST_INSERT_ID(…)`. The caller then reads
/// the item, as after a lost reply.
fn hidden() -> Error {
    Error::config(format!(
        "The server does not tell the number that it has stored: drop the triggers of the table {TABLE}."
    ))
}

/// Bytes as a literal that means the same in every character set and mode.
#[derive(Clone, Copy)]
pub(super) struct Hex<'a>(pub(super) &'a [u8]);

impl Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const DIGITS: [u8; 16] = *b"0123456789abcdef";
        f.write_str("x'")?;
        let mut text = [0; 256];
        for some in self.0.chunks(text.len() / 2) {
            for (place, byte) in some.iter().enumerate() {
                text[2 * place] = DIGITS[usize::from(byte >> 4)];
                text[2 * place + 1] = DIGITS[usize::from(byte & 15)];
            }
            let text = &text[..2 * some.len()];
            f.write_str(std::str::from_utf8(text).map_err(|_| std::fmt::Error)?)?;
        }
        f.write_char('\'')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_in_hexadecimal() {
        assert_eq!(Hex(b"").to_string(), "x''");
        assert_eq!(Hex(b"\x00a'\xff").to_string(), "x'006127ff'");
        assert_eq!(Hex(&[0xab; 300]).to_string(), format!("x'{}'", "ab".repeat(300)));
    }

    #[test]
    fn an_item_lives_no_shorter_than_its_lease() {
        let ends = |expiry| ends(expiry, Engine::InnoDb);
        let lease = Duration::from_nanos(1_000_000_001);
        assert_eq!(ends(Expiry::After(lease)), Some(format!("{NOW}+1002000")));
        assert_eq!(ends(Expiry::At(Duration::from_nanos(1001))), Some("2".to_owned()));
        assert_eq!(ends(Expiry::Unchanged(None)), None);
        assert_eq!(ends(Expiry::Never), Some(u64::MAX.to_string()));
    }
}
