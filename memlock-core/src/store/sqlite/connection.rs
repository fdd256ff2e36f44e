//! One connection: opening a file, batches to transactions, and the write-ahead log.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{OpenFlags, Row};

use super::abandoned::{Descriptors, OpenFiles, abandon};
use super::errors::{Problem, Stop, why, why_not_opened};
use super::file::{FileId, Files, Found, Location};
use super::room::Room;
use super::schema::{self, File};
use super::time::BootClock;
use crate::error::Error;
use crate::name::Keyspace;
use crate::store::{Failure, Op, Reply};

/// How often the file and its log are checked: other files may have taken their places.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(10);

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
/// how often it is tried to find a moment between their transactions, which takes about a
/// millisecond in all; and the pauses after that was in vain, which grow.
const LONGEST_LOG: u64 = 2;
const TRUNCATE_TRIES: i32 = 500;
const TRUNCATE_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How often a batch that finds no room is retried after the log was truncated: other processes may
/// fill the disk at the same time.
const MAKES_ROOM: usize = 2;

/// A connection to an open file.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) sql: ManuallyDrop<rusqlite::Connection>,
    descriptors: Descriptors,
    files: Files,
    /// The files that are open. A process that finds other files in their places does not see what
    /// is written here.
    found: Found,
    /// When the files were last found in their places.
    seen: Duration,
    /// The size of the log above which it is truncated; when that is tried next, and how long that
    /// is after the last time.
    longest_log: u64,
    truncate_after: Duration,
    truncate_pause: Duration,
    pub(super) file: File,
    /// Whether the base is to be read, and the horizon to be moved, before the next write.
    pub(super) is_renewal_due: bool,
    /// The last number that this connection gave to an item.
    pub(super) last: i64,
    /// How many items it has stored since the last sweep.
    pub(super) stored: u32,
    pub(super) is_sweep_due: bool,
}

/// Runs a batch on this file, to which `place` led when the client looked last. A connection is
/// opened if there is none, or if its files are no longer in their places.
pub(super) fn run(
    connection: &mut Option<Connection>,
    id: FileId,
    place: &Location,
    clock: &BootClock,
    keys: &Keyspace,
    ops: &[Op<'_>],
) -> std::result::Result<Vec<Reply>, Stop> {
    // Before each batch: what is written to another file is missing in this one, which other processes
    // would then find damaged.
    if connection.as_ref().is_some_and(|open| !open.descriptors.are_ours()) {
        *connection = None;
    }
    if let Some(open) = connection {
        let now = clock.now();
        if now.saturating_sub(open.seen) > LOOK_EVERY {
            open.seen = now;
            let found = open.files.find();
            if found.ids != open.found.ids {
                *connection = None;
            } else if found.log_size > open.longest_log && now >= open.truncate_after {
                open.truncate_pause = match open.truncate_log() {
                    true => Duration::ZERO,
                    false => (open.truncate_pause * 2).clamp(TRUNCATE_PAUSE.0, TRUNCATE_PAUSE.1),
                };
                open.truncate_after = now + open.truncate_pause;
            }
        }
    }
    let open = match connection {
        Some(open) => open,
        None => {
            connection.insert(Connection::open(id, place, clock).map_err(|stop| match stop {
                Stop::Busy => Stop::BusyOpening,
                stop => stop,
            })?)
        }
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
        let was_closed = !open.descriptors.are_ours();
        *connection = None;
        if was_closed && !matches!(ran, Err(Stop::Failed(Failure { sent: true, .. }))) {
            // The next attempt opens another one.
            return Err(Stop::Busy);
        }
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
        // SAFETY: it is taken only here, and not used afterwards.
        let sql = unsafe { ManuallyDrop::take(&mut self.sql) };
        if !self.descriptors.are_ours() {
            return abandon(sql, self.found.ids[0]);
        }
        if self.found.ids != self.files.find().ids {
            // Closing must not copy the log of this connection over later writes of other
            // processes.
            let _ = sql.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        }
    }
}

impl Connection {
    fn open(
        id: FileId,
        place: &Location,
        clock: &BootClock,
    ) -> std::result::Result<Connection, Stop> {
        let unopened = |problem: Problem| why_not_opened(problem, &place.path);
        let prepared = place.unless_nowhere(|| place.prepare());
        if prepared.map_err(|error| unopened(error.into()))?.is_none() {
            return Err(unopened(Problem::Replaced));
        }
        let others = OpenFiles::now();
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
        let open = OpenFiles::now();
        let are_open = open.contain(&found.ids);
        let longest_log = log_pages * PAGE * LONGEST_LOG;
        // The first batch sweeps: most processes of the command store few items.
        let (last, stored, is_sweep_due) = (0, 0, true);
        let is_renewal_due = false;
        let open = Connection {
            sql: ManuallyDrop::new(sql),
            descriptors: open.opened_since(&others, &found.ids),
            files,
            found,
            seen,
            longest_log,
            truncate_after: Duration::ZERO,
            truncate_pause: Duration::ZERO,
            file,
            is_renewal_due,
            last,
            stored,
            is_sweep_due,
        };
        if open.found.ids[0] != Some(id) || !are_open {
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
                "Its file system does not let processes share memory (journal mode {mode}): name a \
                 file on a local disk."
            ))
            .into());
        }
        let room = Room::at(&place.path).map_or(u64::MAX, |room| room.bytes);
        let pages = room / PAGE / SHARE_OF_LOG;
        let pages = pages.clamp(LOG_PAGES.0, LOG_PAGES.1);
        // Tables of other programs may refer to ours, and would keep locks from being deleted.
        sql.execute_batch(&format!(
            "PRAGMA synchronous = NORMAL; PRAGMA trusted_schema = OFF; PRAGMA foreign_keys = OFF;
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

    /// Reads the base, and moves the horizon. If that fails, the batch can be run nevertheless
    /// while the horizon is not reached.
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
    /// SQLite copies the log automatically when it has enough pages, but restarts it only at a
    /// moment when no other process reads it. On a busy file there is no such moment unless the
    /// checkpoint waits for one. All other writers wait meanwhile, so the checkpoint waits only
    /// once all pages are copied, and briefly.
    fn truncate_log(&mut self) -> bool {
        let briefly = |tries: i32| {
            std::hint::spin_loop();
            tries < TRUNCATE_TRIES
        };
        let checkpoint = |sql: &rusqlite::Connection, mode: &str| {
            let copied = |row: &Row<'_>| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?));
            let statement = format!("PRAGMA wal_checkpoint({mode})");
            sql.query_row(&statement, [], copied).is_ok_and(|(pages, copied)| pages == copied)
        };
        if !checkpoint(&self.sql, "PASSIVE") || self.sql.busy_handler(Some(briefly)).is_err() {
            return false;
        }
        let is_truncated = checkpoint(&self.sql, "TRUNCATE");
        self.sql.busy_timeout(Duration::ZERO).is_ok() && is_truncated
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
