//! Operations on items to statements.

use std::time::Duration;

use rusqlite::{CachedStatement, OptionalExtension, Row, params};

use super::connection::Connection;
use super::errors::Problem;
use super::promises::GUARANTEES;
use super::schema;
use super::time::{BootClock, millis};
use crate::error::Error;
use crate::name::Keyspace;
use crate::store::{Expiry, Item, Op, Reply, Returns, Stored, Version};

const ADD: &str = "
INSERT INTO items (key, value, number, expires, wall) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (key) DO UPDATE
SET value = excluded.value, number = excluded.number, expires = excluded.expires, wall = excluded.wall
WHERE items.expires <= ?6";
const SET: &str = "
UPDATE items SET value = ?2, number = ?3, expires = ?4, wall = ?5
WHERE key = ?1 AND number = ?7 AND (expires IS NULL OR expires > ?6)";
const SET_VALUE: &str = "
UPDATE items SET value = ?2, number = ?3
WHERE key = ?1 AND number = ?5 AND (expires IS NULL OR expires > ?4)";
const DELETE: &str =
    "DELETE FROM items WHERE key = ?1 AND number = ?2 AND (expires IS NULL OR expires > ?3)";
const GET: &str = "SELECT value, number, expires FROM items
WHERE key = ?1 AND (expires IS NULL OR expires > ?2)";
const IS_THERE: &str = "SELECT 1 FROM items WHERE key = ?1 AND (expires IS NULL OR expires > ?2)";

/// `Add` replaces an expired item. Others, whose keys are not used again, are removed by sweeps,
/// each of which goes on where the last one of any process ended: with the first items that a
/// connection stores, and each time that it has stored so many more. A sweep examines several times
/// as many items as were stored, so that it catches up.
const SWEEP_EVERY: u32 = 256;
const SWEPT_FOR_EACH: u32 = 4;
const SWEPT_AT_LEAST: u32 = 1024;
const SWEEP_TO: &str = "
SELECT CAST(max(key) AS BLOB) FROM (
    SELECT key FROM items
    -- Keys of other programs may be of another type, and all of those come behind.
    WHERE key > (SELECT swept FROM state WHERE id = 1) AND key < x'' ORDER BY key LIMIT ?1
)";
const SWEEP: &str = "
DELETE FROM items
WHERE key > (SELECT swept FROM state WHERE id = 1) AND key <= CAST(?1 AS TEXT) AND expires <= ?2";
const SWEPT: &str = "UPDATE state SET swept = CAST(?1 AS TEXT) WHERE id = 1";

impl Connection {
    /// Carries the operations out, in the transaction that has begun.
    pub(super) fn apply_all(
        &mut self,
        clock: &BootClock,
        keys: &Keyspace,
        ops: &[Op<'_>],
    ) -> std::result::Result<Vec<Reply>, Problem> {
        // Read after the file was locked, so that the time never goes back from batch to batch.
        let exact = clock.now();
        let now = Now { exact, boot: millis(exact), clock, keys };
        let replies = ops.iter().map(|op| self.apply(&now, op)).collect();
        let is_due = self.is_sweep_due || self.stored >= SWEEP_EVERY;
        if is_due && ops.iter().any(Op::changes) {
            self.sweep(now.boot)?;
        }
        replies
    }

    fn apply(&mut self, now: &Now<'_>, op: &Op<'_>) -> std::result::Result<Reply, Problem> {
        let key = op.key().as_str();
        if !op.is_of(self.file.epoch) {
            return Ok(Reply::VersionMismatch);
        }
        match *op {
            Op::Add { value, expiry, returns, .. } => {
                let added = self.add(now, key, value, expiry)?;
                Ok(added.map_or(Reply::Exists, |number| self.stored(number, returns)))
            }
            Op::Get { .. } => Ok(match self.get(now, key)? {
                Some(found) => Reply::Value(Item {
                    version: self.version(found.number),
                    fence: found.number as u64,
                    remaining: found.expires.map(|expires| now.left(expires)),
                    value: found.value,
                }),
                None => Reply::Missing,
            }),
            Op::CompareAndSet { version, value, expiry, returns, .. } => {
                match self.set(now, key, version.number() as i64, value, expiry)? {
                    Some(number) => Ok(self.stored(number, returns)),
                    None => self.mismatch(now, key),
                }
            }
            Op::Delete { version, .. } => {
                let deleted = self.cached(DELETE)?.execute(params![
                    key,
                    version.number() as i64,
                    now.boot
                ])?;
                if deleted == 1 { Ok(Reply::Deleted) } else { self.mismatch(now, key) }
            }
            Op::Append { value, .. } | Op::Prepend { value, .. } => {
                let Some(found) = self.get(now, key)? else { return Ok(Reply::Missing) };
                let whole = match op {
                    Op::Append { .. } => [&found.value, value].concat(),
                    _ => [value, &found.value].concat(),
                };
                self.set(now, key, found.number, &whole, UNCHANGED)?;
                Ok(Reply::Written)
            }
            Op::Increment { by, initial, .. } => self.increment(now, key, by, initial),
        }
    }

    fn increment(
        &mut self,
        now: &Now<'_>,
        key: &str,
        by: u64,
        initial: Option<(u64, Expiry)>,
    ) -> std::result::Result<Reply, Problem> {
        match (self.get(now, key)?, initial) {
            (Some(found), _) => {
                let text = std::str::from_utf8(&found.value).ok().map(str::trim_end);
                let Some(count) = text.and_then(|text| text.parse::<u64>().ok()) else {
                    return Err(Error::protocol(format!(
                        "The item {key} is not a number and cannot be counted."
                    ))
                    .into());
                };
                let count = count.wrapping_add(by);
                let text = count.to_string();
                self.set(now, key, found.number, text.as_bytes(), UNCHANGED)?;
                Ok(Reply::Number(count))
            }
            (None, Some((first, expiry))) => {
                self.add(now, key, first.to_string().as_bytes(), expiry)?;
                Ok(Reply::Number(first))
            }
            (None, None) => Ok(Reply::Missing),
        }
    }

    /// The number of the added item; `None` if the item exists.
    fn add(
        &mut self,
        now: &Now<'_>,
        key: &str,
        value: &[u8],
        expiry: Expiry,
    ) -> rusqlite::Result<Option<i64>> {
        let number = self.next(now)?;
        let (expires, wall) = now.ends(key, expiry);
        let mut add = self.cached(ADD)?;
        let added = add.execute(params![key, value, number, expires, wall, now.boot])?;
        Ok((added == 1).then_some(number))
    }

    /// The new number of the item that had the number `version`; `None` if there is none.
    fn set(
        &mut self,
        now: &Now<'_>,
        key: &str,
        version: i64,
        value: &[u8],
        expiry: Expiry,
    ) -> rusqlite::Result<Option<i64>> {
        let number = self.next(now)?;
        let set = if let Expiry::Unchanged(_) = expiry {
            self.cached(SET_VALUE)?.execute(params![key, value, number, now.boot, version])?
        } else {
            let (expires, wall) = now.ends(key, expiry);
            let mut set = self.cached(SET)?;
            set.execute(params![key, value, number, expires, wall, now.boot, version])?
        };
        Ok((set == 1).then_some(number))
    }

    /// A number for an item that is to be stored now.
    fn next(&mut self, now: &Now<'_>) -> rusqlite::Result<i64> {
        let nanos = i64::try_from(now.exact.as_nanos()).unwrap_or(i64::MAX);
        let number = self.file.base.saturating_add(nanos).max(self.last.saturating_add(1));
        if self.file.is_near_horizon(number) {
            self.is_renewal_due = true;
            if self.file.is_beyond_horizon(number) {
                // The batch is repeated after the renewal.
                return Err(schema::busy());
            }
        }
        (self.last, self.stored) = (number, self.stored.saturating_add(1));
        Ok(number)
    }

    fn get(&self, now: &Now<'_>, key: &str) -> rusqlite::Result<Option<StoredItem>> {
        let found = |row: &Row<'_>| {
            Ok(StoredItem { value: row.get(0)?, number: row.get(1)?, expires: row.get(2)? })
        };
        self.cached(GET)?.query_row(params![key, now.boot], found).optional()
    }

    /// The reply when no item has the requested version.
    fn mismatch(&self, now: &Now<'_>, key: &str) -> std::result::Result<Reply, Problem> {
        let is_there = self.cached(IS_THERE)?.exists(params![key, now.boot])?;
        Ok(if is_there { Reply::VersionMismatch } else { Reply::Missing })
    }

    fn stored(&self, number: i64, returns: Returns) -> Reply {
        match returns {
            Returns::Nothing => Reply::Written,
            Returns::Version | Returns::Fence => {
                let version = self.version(number);
                Reply::Stored(Stored::new(version, version.number()))
            }
        }
    }

    fn sweep(&mut self, now: i64) -> rusqlite::Result<()> {
        let examined = self.stored.saturating_mul(SWEPT_FOR_EACH).max(SWEPT_AT_LEAST);
        // As bytes, since the keys of other programs may not be UTF-8.
        let to: Option<Vec<u8>> = self.cached(SWEEP_TO)?.query_row([examined], |row| row.get(0))?;
        if let Some(to) = &to {
            self.cached(SWEEP)?.execute(params![to, now])?;
        }
        self.cached(SWEPT)?.execute([to.unwrap_or_default()])?;
        (self.stored, self.is_sweep_due) = (0, false);
        Ok(())
    }

    fn version(&self, number: i64) -> Version {
        Version::new(self.file.epoch, number as u64)
    }

    pub(super) fn cached(&self, statement: &str) -> rusqlite::Result<CachedStatement<'_>> {
        self.sql.prepare_cached(statement)
    }
}

struct StoredItem {
    value: Vec<u8>,
    number: i64,
    expires: Option<i64>,
}

/// The item's expiry does not change.
const UNCHANGED: Expiry = Expiry::Unchanged(None);

/// One reading of the clock.
struct Now<'a> {
    exact: Duration,
    /// Milliseconds since the host was started.
    boot: i64,
    clock: &'a BootClock,
    keys: &'a Keyspace,
}

impl Now<'_> {
    /// The expiry of an item that is stored now; and, for an item of a distinct list, its expiry by
    /// the wall clock, which applies after a reboot.
    fn ends(&self, key: &str, expiry: Expiry) -> (Option<i64>, Option<i64>) {
        let end = match expiry {
            Expiry::After(lease) => self.exact + GUARANTEES.covering(lease),
            Expiry::At(end) => end,
            Expiry::Unchanged(Some(left)) => self.exact + left,
            Expiry::Unchanged(None) | Expiry::Never => return (None, None),
        };
        let end = i64::try_from(end.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX);
        let left = end.saturating_sub(self.boot);
        let wall = self.keys.is_list(key).then(|| self.clock.wall_millis().saturating_add(left));
        (Some(end), wall)
    }

    fn left(&self, expires: i64) -> Duration {
        Duration::from_millis(expires.saturating_sub(self.boot).max(0) as u64)
    }
}
