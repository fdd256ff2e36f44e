//! One connection: operations to statements.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{CachedStatement, OpenFlags, OptionalExtension, Row, params};

use super::errors::{Problem, Stop, why, why_not_opened};
use super::file::{self, Files, Found, Location};
use super::promises::GUARANTEES;
use super::schema::{self, File};
use super::time::{BootClock, millis};
use crate::error::Error;
use crate::name::Keyspace;
use crate::store::{Expiry, Failure, Item, Op, Reply, Returns, Stored, Version};

/// How often the file and its log are checked: other files may have taken their places.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How many items are stored between two sweeps, and how many keys a sweep examines. `Add` replaces
/// an expired item; a sweep removes expired items whose keys are not used again.
const SWEEP_EVERY: u32 = 512;
const SWEPT_AT_ONCE: u32 = 256;

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
const SWEEP_TO: &str =
    "SELECT max(key) FROM (SELECT key FROM items WHERE key > ?1 ORDER BY key LIMIT ?2)";
const SWEEP: &str = "DELETE FROM items WHERE key > ?1 AND key <= ?2 AND expires <= ?3";

/// The bounds of the number of pages at which the write-ahead log is copied into the file (the
/// upper bound is SQLite's own default, 4 MB), and the share of the free disk space at which it is
/// copied: one in this many. On a full disk, copying may find no room either.
const LOG_PAGES: (u64, u64) = (16, 1000);
const SHARE_OF_LOG: u64 = 8;
const PAGE: u64 = 4096;

/// The most bytes that a row may have. Other programs may write more than memlock does, which would
/// be read at each look at the item.
const LONGEST: i32 = 2 * 1024 * 1024;

/// A log that is so many times as long is truncated, even if other processes have to be waited for;
/// and how often it is tried to find a moment between their transactions.
const LONGEST_LOG: u64 = 2;
const TRUNCATE_TRIES: i32 = 2000;

/// How often a batch that finds no room is retried after the log was truncated: other processes may
/// fill the disk at the same time.
const MAKES_ROOM: usize = 2;

/// A connection to an open file.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) sql: rusqlite::Connection,
    files: Files,
    /// The files that are open. A process that finds other files in their places does not see what
    /// is written here.
    found: Found,
    /// When the files were last found in their places.
    seen: Duration,
    /// The size of the log above which it is truncated.
    longest_log: u64,
    file: File,
    /// Whether the base is to be read, and the horizon to be moved, before the next write.
    is_renewal_due: bool,
    /// The last number that this connection gave to an item.
    last: i64,
    stored: u32,
    /// The last key that a sweep examined.
    swept: String,
}

/// Runs a batch. A connection is opened if there is none, or if its files are no longer in their
/// places.
pub(super) fn run(
    connection: &mut Option<Connection>,
    place: &Location,
    clock: &BootClock,
    keys: &Keyspace,
    ops: &[Op<'_>],
) -> std::result::Result<Vec<Reply>, Stop> {
    if let Some(open) = connection {
        let now = clock.now();
        if now.saturating_sub(open.seen) > LOOK_EVERY {
            open.seen = now;
            let found = open.files.find();
            if found.ids != open.found.ids {
                *connection = None;
            } else if found.log_size > open.longest_log {
                open.truncate_log();
            }
        }
    }
    let open = match connection {
        Some(open) => open,
        None => connection.insert(Connection::open(place, clock).map_err(|stop| match stop {
            Stop::Busy => Stop::BusyOpening,
            stop => stop,
        })?),
    };
    let mut ran = open.run(clock, keys, ops);
    for _ in 0..MAKES_ROOM {
        if !(matches!(ran, Err(Stop::Full(_))) && open.truncate_log()) {
            break;
        }
        ran = open.run(clock, keys, ops);
    }
    if let Err(Stop::Full(_) | Stop::Failed(_)) = ran {
        // The state of the connection may be part of the problem.
        *connection = None;
    }
    ran
}

/// Copies a log that a killed process has left into the file, where there is no room for the index
/// of the log. An exclusive connection needs none, and fails if other processes use the file.
fn remove_log(database: &Path, flags: OpenFlags) -> rusqlite::Result<()> {
    let sql = rusqlite::Connection::open_with_flags(database, flags)?;
    sql.busy_timeout(Duration::ZERO)?;
    sql.query_row("PRAGMA locking_mode = EXCLUSIVE", [], |_| Ok(()))?;
    sql.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.found.ids != self.files.find().ids {
            // Closing must not copy the log of this connection over later writes of other
            // processes.
            let _ = self.sql.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        }
    }
}

impl Connection {
    fn open(place: &Location, clock: &BootClock) -> std::result::Result<Connection, Stop> {
        let unopened = |problem: Problem| why_not_opened(problem, &place.path);
        place.prepare().map_err(|error| unopened(error.into()))?;
        let files = Files::of(&place.path).map_err(|error| unopened(error.into()))?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let set_up = || {
            let mut sql = rusqlite::Connection::open_with_flags(&files.database, flags)
                .map_err(|error| unopened(error.into()))?;
            match Connection::set_up(&mut sql, place, clock) {
                Ok((file, log_pages)) => Ok((sql, file, log_pages)),
                Err(problem) => Err(why(problem, &sql)),
            }
        };
        let (sql, file, log_pages) = match set_up() {
            Err(Stop::Full(_)) if remove_log(&files.database, flags).is_ok() => set_up()?,
            done => done?,
        };
        // That was a transaction, so that all three files are open.
        let (found, seen) = (files.find(), clock.now());
        let longest_log = log_pages * PAGE * LONGEST_LOG;
        let (last, stored, swept) = (0, 0, String::new());
        let is_renewal_due = false;
        let open = Connection {
            sql,
            files,
            found,
            seen,
            longest_log,
            file,
            is_renewal_due,
            last,
            stored,
            swept,
        };
        if !file::are_open_here(&open.found.ids) {
            return Err(unopened(Problem::Replaced));
        }
        Ok(open)
    }

    /// Sets up the connection, and the tables of a new file. The second: the number of pages at
    /// which the log is copied into the file.
    fn set_up(
        sql: &mut rusqlite::Connection,
        place: &Location,
        clock: &BootClock,
    ) -> std::result::Result<(File, u64), Problem> {
        sql.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST)?;
        sql.busy_timeout(Duration::ZERO)?;
        sql.set_prepared_statement_cache_capacity(32);
        let mode: String = sql.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
        if mode != "wal" {
            return Err(Error::protocol(format!(
                "Its file system does not let processes share memory (journal mode {mode}): name a file on a local disk."
            ))
            .into());
        }
        let pages = file::room_at(&place.path).unwrap_or(u64::MAX) / PAGE / SHARE_OF_LOG;
        let pages = pages.clamp(LOG_PAGES.0, LOG_PAGES.1);
        sql.execute_batch(&format!(
            "PRAGMA synchronous = NORMAL; PRAGMA trusted_schema = OFF;
             PRAGMA wal_autocheckpoint = {pages};"
        ))?;
        Ok((schema::prepare(sql, clock)?, pages))
    }

    fn run(
        &mut self,
        clock: &BootClock,
        keys: &Keyspace,
        ops: &[Op<'_>],
    ) -> std::result::Result<Vec<Reply>, Stop> {
        let writes = ops.iter().any(Op::changes);
        if writes && self.is_renewal_due {
            self.renew(clock)?;
        }
        if !writes && ops.len() == 1 {
            return self.apply_all(clock, keys, ops).map_err(|problem| why(problem, &self.sql));
        }
        let begin = if writes { "BEGIN IMMEDIATE" } else { "BEGIN" };
        self.execute(begin).map_err(|problem| why(problem, &self.sql))?;
        let ran = self.apply_all(clock, keys, ops);
        let replies = match ran {
            Ok(replies) => replies,
            Err(problem) => {
                let is_of_old_base = schema::is_of_old_base(&problem);
                let stop = why(problem, &self.sql);
                self.roll_back();
                if is_of_old_base {
                    self.is_renewal_due = true;
                    return Err(Stop::Busy);
                }
                return Err(stop);
            }
        };
        if let Err(problem) = self.execute("COMMIT") {
            let stop = why(problem, &self.sql);
            self.roll_back();
            return Err(match stop {
                // Whether the end of the transaction was written is unknown.
                Stop::Failed(Failure { error, .. }) => {
                    Stop::Failed(Failure { error, sent: writes })
                }
                stop => stop,
            });
        }
        Ok(replies)
    }

    /// Reads the base, and moves the horizon. If that fails, the batch can be run nevertheless while
    /// the horizon is not reached.
    fn renew(&mut self, clock: &BootClock) -> std::result::Result<(), Stop> {
        match schema::renew(&mut self.sql, &mut self.file, clock) {
            Ok(()) => self.is_renewal_due = false,
            Err(problem) => {
                let number = self.file.base.saturating_add(clock.nanos());
                if self.file.is_beyond_horizon(number) {
                    return Err(why(problem, &self.sql));
                }
            }
        }
        Ok(())
    }

    /// Copies the write-ahead log into the file, and truncates it. True if that succeeded.
    ///
    /// SQLite copies the log by itself when it has enough pages, but begins it anew only at a moment
    /// when no other process reads it: on a busy file there is none, unless it is waited for.
    fn truncate_log(&mut self) -> bool {
        let briefly = |tries: i32| {
            std::thread::yield_now();
            tries < TRUNCATE_TRIES
        };
        let checkpoint = |row: &Row<'_>| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?));
        let copied = self
            .sql
            .busy_handler(Some(briefly))
            .and_then(|()| self.sql.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], checkpoint));
        let no_waiting = self.sql.busy_timeout(Duration::ZERO);
        copied.is_ok_and(|(pages, copied)| pages == copied) && no_waiting.is_ok()
    }

    fn apply_all(
        &mut self,
        clock: &BootClock,
        keys: &Keyspace,
        ops: &[Op<'_>],
    ) -> std::result::Result<Vec<Reply>, Problem> {
        // Read after the file was locked, so that the time never goes back from batch to batch.
        let exact = clock.now();
        let now = Now { exact, boot: millis(exact), clock, keys };
        let replies = ops.iter().map(|op| self.apply(&now, op)).collect();
        if self.stored >= SWEEP_EVERY {
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
        (self.last, self.stored) = (number, self.stored + 1);
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
                Reply::Stored(Stored { version, fence: version.number() })
            }
        }
    }

    fn sweep(&mut self, now: i64) -> rusqlite::Result<()> {
        let to: Option<String> = self
            .cached(SWEEP_TO)?
            .query_row(params![self.swept, SWEPT_AT_ONCE], |row| row.get(0))?;
        if let Some(to) = &to {
            self.cached(SWEEP)?.execute(params![self.swept, to, now])?;
        }
        self.swept = to.unwrap_or_default();
        self.stored = 0;
        Ok(())
    }

    fn version(&self, number: i64) -> Version {
        Version::new(self.file.epoch, number as u64)
    }

    fn cached(&self, statement: &str) -> rusqlite::Result<CachedStatement<'_>> {
        self.sql.prepare_cached(statement)
    }

    fn execute(&self, statement: &str) -> std::result::Result<(), Problem> {
        self.cached(statement)?.execute([])?;
        Ok(())
    }

    fn roll_back(&mut self) {
        // After some failures SQLite has rolled back itself; closing the connection does so, too.
        if !self.sql.is_autocommit() {
            let _ = self.execute("ROLLBACK");
        }
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
