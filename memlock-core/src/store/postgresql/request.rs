//! Operations to the parameters of the functions, and their replies back.

use std::borrow::Cow;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend;

use super::promises;
use super::wire::{nullable, unwritable};
use crate::error::{Error, Result};
use crate::name::Key;
use crate::store::{Epoch, Expiry, Failure, Item, Op, Reply, Returns, Stored, Version};

/// The numbers of operations, as in `functions.sql`.
const ADD: i32 = 1;
const GET: i32 = 2;
const COMPARE_AND_SET: i32 = 3;
const DELETE: i32 = 4;
const APPEND: i32 = 5;
const PREPEND: i32 = 6;
const INCREMENT: i32 = 7;
const SWEEP: i32 = 8;

/// The code of a reply when the life of the items is another one.
pub(super) const ANOTHER_LIFE: i32 = 10;

/// The types of parameters.
const INTEGER: u32 = 23;
pub(super) const TEXT: u32 = 25;
pub(super) const BYTEA: u32 = 17;
pub(super) const BIGINT: u32 = 20;
const INTERVAL: u32 = 1186;
pub(super) const TIMESTAMPTZ: u32 = 1184;

/// Microseconds from 1970 to 2000, where PostgreSQL's time begins.
pub(super) const YEAR_2000: i64 = 946_684_800_000_000;
/// The farthest time that is asked for; later ones are for ever.
const FARTHEST: i64 = 100_000_000_000_000_000;

/// One operation, as the functions take it.
#[derive(Debug)]
pub(super) struct Request<'a> {
    op: i32,
    key: &'a str,
    content: Option<Cow<'a, [u8]>>,
    known: Option<i64>,
    /// In microseconds.
    lease: Option<i64>,
    /// In microseconds since 2000.
    until: Option<i64>,
}

/// How the functions are to run.
#[derive(Clone, Debug, Default)]
pub(super) struct Terms {
    /// For how many milliseconds a row may be locked by others.
    pub(super) patience: Option<i32>,
    pub(super) commits: Option<&'static str>,
    pub(super) life: Option<i64>,
}

/// One row of a reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) code: i32,
    number: Option<i64>,
    body: Option<Vec<u8>>,
    ends: Option<i64>,
    clock: i64,
}

impl Answer {
    /// Whether it says that the operation has changed something.
    pub(super) fn changed(&self) -> bool {
        matches!(self.code, 1 | 7 | 8)
    }
}

impl<'a> Request<'a> {
    pub(super) fn of(op: &Op<'a>) -> Request<'a> {
        let request = Request {
            op: GET,
            key: op.key().as_str(),
            content: None,
            known: None,
            lease: None,
            until: None,
        };
        match *op {
            Op::Add { value, expiry, .. } => {
                Request { op: ADD, content: Some(value.into()), ..request }.ending(expiry)
            }
            Op::Get { .. } => request,
            Op::CompareAndSet { version, value, expiry, .. } => {
                // What the row has is left as it is.
                let expiry = match expiry {
                    Expiry::Unchanged(_) => Expiry::Unchanged(None),
                    other => other,
                };
                Request {
                    op: COMPARE_AND_SET,
                    content: Some(value.into()),
                    known: Some(version.number() as i64),
                    ..request
                }
                .ending(expiry)
            }
            Op::Delete { version, .. } => {
                Request { op: DELETE, known: Some(version.number() as i64), ..request }
            }
            Op::Append { value, .. } => {
                Request { op: APPEND, content: Some(value.into()), ..request }
            }
            Op::Prepend { value, .. } => {
                Request { op: PREPEND, content: Some(value.into()), ..request }
            }
            Op::Increment { by, initial, .. } => {
                let request = Request { op: INCREMENT, known: Some(by as i64), ..request };
                match initial {
                    None => request,
                    Some((first, expiry)) => {
                        let content = first.to_string().into_bytes();
                        Request { content: Some(content.into()), ..request }.ending(expiry)
                    }
                }
            }
        }
    }

    /// Deletes rows of items that ended, among the next `examined` ones.
    pub(super) fn sweep(examined: i64) -> Request<'static> {
        Request {
            op: SWEEP,
            key: "",
            content: None,
            known: Some(examined),
            lease: None,
            until: None,
        }
    }

    /// Whether it may change something.
    pub(super) fn changes(&self) -> bool {
        self.op != GET
    }

    /// The bytes that the request needs, about.
    pub(super) fn size(&self) -> usize {
        300 + self.content.as_ref().map_or(0, |content| content.len())
    }

    fn ending(self, expiry: Expiry) -> Request<'a> {
        let (lease, until) = match expiry {
            Expiry::After(lease) => (Some(micros(promises::covering(lease))), None),
            Expiry::Unchanged(Some(left)) => (Some(micros(left)), None),
            Expiry::At(time) => (None, Some(micros(time).saturating_sub(YEAR_2000))),
            Expiry::Unchanged(None) => (None, None),
            Expiry::Never => (None, Some(i64::MAX)),
        };
        Request { lease, until, ..self }
    }
}

/// Rounded up.
fn micros(duration: Duration) -> i64 {
    let micros = duration.as_nanos().div_ceil(1000);
    i64::try_from(micros).unwrap_or(FARTHEST).min(FARTHEST)
}

/// The text of the statement for one operation, and its parameters' types.
pub(super) fn apply(schema: &str) -> (String, Vec<u32>) {
    let text = format!("SELECT {schema}.apply_1($1, $2, $3, $4, $5, $6, $7, $8, $9)");
    let types = [INTEGER, TEXT, BYTEA, BIGINT, INTERVAL, TIMESTAMPTZ, INTEGER, TEXT, BIGINT];
    (text, types.to_vec())
}

type Written = std::result::Result<IsNull, Box<dyn std::error::Error + Sync + Send>>;

fn put(value: Option<&[u8]>, out: &mut BytesMut) -> IsNull {
    match value {
        None => IsNull::Yes,
        Some(value) => {
            out.put_slice(value);
            IsNull::No
        }
    }
}

/// Writes one parameter, by its place.
fn put_parameter(request: &Request<'_>, terms: &Terms, place: usize, out: &mut BytesMut) -> IsNull {
    let number = |value: Option<i64>, out: &mut BytesMut| {
        put(value.map(i64::to_be_bytes).as_ref().map(<[u8; 8]>::as_slice), out)
    };
    match place {
        0 => put(Some(&request.op.to_be_bytes()), out),
        1 => put(Some(request.key.as_bytes()), out),
        2 => put(request.content.as_deref(), out),
        3 => number(request.known, out),
        4 => match request.lease {
            None => IsNull::Yes,
            // Microseconds, days, months.
            Some(lease) => {
                out.put_i64(lease);
                out.put_i64(0);
                IsNull::No
            }
        },
        5 => number(request.until, out),
        6 => put(terms.patience.map(i32::to_be_bytes).as_ref().map(<[u8; 4]>::as_slice), out),
        7 => put(terms.commits.map(str::as_bytes), out),
        _ => number(terms.life, out),
    }
}

/// Writes the call of the statement.
pub(super) fn bind(
    statement: &str,
    request: &Request<'_>,
    terms: &Terms,
    out: &mut BytesMut,
) -> Result<()> {
    let value = |place: usize, out: &mut BytesMut| -> Written {
        Ok(put_parameter(request, terms, place, out))
    };
    frontend::bind("", statement, [1], 0..9, value, [1], out).map_err(|_| unwritable())?;
    frontend::execute("", 0, out).map_err(|_| unwritable())
}

/// The answer in the reply to [`apply`]: a record, each column behind its type.
pub(super) fn record(columns: &[Option<&[u8]>]) -> Option<Answer> {
    let [Some(record)] = columns else { return None };
    let (count, mut rest) = record.split_first_chunk::<4>()?;
    if i32::from_be_bytes(*count) != 5 {
        return None;
    }
    let mut next = || {
        rest = rest.get(4..)?;
        nullable(&mut rest)
    };
    answer([next()?, next()?, next()?, next()?, next()?])
}

fn answer([code, number, body, ends, clock]: [Option<&[u8]>; 5]) -> Option<Answer> {
    let long = |bytes: &[u8]| bytes.try_into().ok().map(i64::from_be_bytes);
    Some(Answer {
        code: i32::from_be_bytes(code?.try_into().ok()?),
        number: number.map(long).map_or(Some(None), |number| number.map(Some))?,
        body: body.map(<[u8]>::to_vec),
        ends: ends.map(long).map_or(Some(None), |ends| ends.map(Some))?,
        clock: long(clock?)?,
    })
}

/// What an answer to the operation means. One that the operation cannot have belongs to another one,
/// and does not tell whether this one was carried out.
pub(super) fn decode(
    op: &Op<'_>,
    answer: Answer,
    epoch: Epoch,
) -> std::result::Result<Reply, Failure> {
    let refused = |error| Failure { error, sent: false };
    let unexpected = || Failure {
        error: Error::protocol(
            "A reply does not belong to its request: the connection is out of step.",
        ),
        sent: op.changes(),
    };
    let version = answer.number.map(|number| Version::new(epoch, number as u64));
    Ok(match (op, answer.code) {
        (Op::Add { returns, .. } | Op::CompareAndSet { returns, .. }, 1) => match returns {
            Returns::Nothing => Reply::Written,
            Returns::Version | Returns::Fence => {
                let version = version.ok_or_else(unexpected)?;
                Reply::Stored(Stored { version, fence: version.number() })
            }
        },
        (Op::Append { .. } | Op::Prepend { .. }, 1) => Reply::Written,
        (Op::Add { .. }, 2) => Reply::Exists,
        (Op::Get { .. }, 3) => item(answer, version).ok_or_else(unexpected)?,
        (Op::Add { .. }, 4) => return Err(unexpected()),
        (_, 4) => Reply::Missing,
        (Op::Get { .. } | Op::Append { .. } | Op::Prepend { .. }, 5) => {
            return Err(refused(too_large(op.key())));
        }
        (Op::CompareAndSet { .. } | Op::Delete { .. }, 6) => Reply::VersionMismatch,
        (Op::Delete { .. }, 7) => Reply::Deleted,
        (Op::Increment { .. }, 8) => {
            Reply::Number(answer.body.and_then(number).ok_or_else(unexpected)?)
        }
        (Op::Increment { .. }, 9) => {
            return Err(refused(Error::protocol(format!(
                "The item {} is not a number and cannot be counted.",
                op.key()
            ))));
        }
        _ => return Err(unexpected()),
    })
}

fn item(answer: Answer, version: Option<Version>) -> Option<Reply> {
    let (version, value, ends) = (version?, answer.body?, answer.ends?);
    let left = u64::try_from(ends.saturating_sub(answer.clock)).unwrap_or(0);
    let remaining = (ends != i64::MAX).then(|| Duration::from_micros(left));
    Some(Reply::Value(Item { value, version, remaining, fence: version.number() }))
}

fn number(digits: Vec<u8>) -> Option<u64> {
    String::from_utf8(digits).ok()?.parse().ok()
}

fn too_large(key: &Key) -> Error {
    Error::protocol(format!(
        "The item {key} has a value of more than 1 MiB, or would have it: memlock writes no larger ones. Use \
         another name, or delete its row."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_can_be_read(bytes: Vec<u8>, head in 0_u8..3) {
            let bytes = [&[0, 0, 0, head][..], &bytes].concat();
            let _ = record(&[Some(bytes.as_slice())]);
        }
    }

    /// As the table in `functions.sql` has them. Another answer leaves open whether anything was changed.
    #[test]
    fn an_operation_has_no_answer_of_another_one() {
        let key = &crate::name::Keyspace::default().lock(b"x");
        let (version, value) = (Version::new(Epoch::new(1, 1), 7), &b"1"[..]);
        let (expiry, returns) = (Expiry::Never, Returns::Fence);
        let decoded = |op: &Op<'_>, code, number| {
            let body = Some(b"1".to_vec());
            let answer = Answer { code, number, body, ends: Some(1), clock: 0 };
            decode(op, answer, Epoch::new(1, 1))
        };
        let (missing, too_large) = ("Missing", "more than 1 MiB");
        for (op, answers) in [
            (Op::add(key, value, expiry, returns), &[(1, "Stored"), (2, "Exists")][..]),
            (Op::get(key), &[(3, "Value"), (4, missing), (5, too_large)]),
            (
                Op::CompareAndSet { key, version, value, expiry, returns },
                &[(1, "Stored"), (4, missing), (6, "VersionMismatch")],
            ),
            (Op::Delete { key, version }, &[(4, missing), (6, "VersionMismatch"), (7, "Deleted")]),
            (Op::Append { key, value }, &[(1, "Written"), (4, missing), (5, too_large)]),
            (Op::Prepend { key, value }, &[(1, "Written"), (4, missing), (5, too_large)]),
            (
                Op::Increment { key, by: 1, initial: None },
                &[(4, missing), (8, "Number"), (9, "not a number")],
            ),
        ] {
            for code in -1..=11 {
                let expected = answers.iter().find(|(its, _)| *its == code);
                let expected = expected.map_or("out of step", |(_, said)| said);
                let answer = decoded(&op, code, Some(7));
                let said = format!("{answer:?}");
                assert!(said.contains(expected), "{op:?}, {code}: {said}");
                if let Err(failure) = answer {
                    let is_refused = answers.iter().any(|(its, _)| *its == code);
                    assert_eq!(failure.sent, op.changes() && !is_refused, "{op:?}, {code}");
                }
            }
        }
        let unnumbered = Op::add(key, value, expiry, returns);
        assert!(decoded(&unnumbered, 1, None).is_err());
    }

    #[test]
    fn what_ends_far_ahead_is_asked_for_all_the_same() {
        let key = crate::name::Keyspace::default().lock(b"x");
        let add = |expiry| {
            let op = Op::add(&key, b"v", expiry, Returns::Fence);
            let request = Request::of(&op);
            (request.lease, request.until)
        };
        assert_eq!(add(Expiry::Never), (None, Some(i64::MAX)));
        assert_eq!(add(Expiry::After(Duration::MAX)), (Some(FARTHEST), None));
        assert_eq!(add(Expiry::At(Duration::from_secs(946_684_801))), (None, Some(1_000_000)));
    }
}
