//! The tables, and the changes at a new boot of the host.
//!
//! One table holds the items. Each time an item is stored it gets a number: the nanoseconds since
//! the host was started, plus a base. Writers take turns, and that clock never goes back, so
//! numbers rise from item to item without a counter that would have to be written each time. The
//! horizon is a number that no number of this boot has reached; it is moved an hour at a time. At
//! the next boot it becomes the base.

use rusqlite::{Connection, OptionalExtension, params};

use super::file::unreachable;
use super::time::{BootClock, boot_id};
use crate::error::{Error, Result};
use crate::store::Epoch;

/// The application id in the header of memlock's files: `mlck`.
const APPLICATION: i64 = 0x6d6c_636b;
/// Two start times that differ by at most this many milliseconds belong to the same boot: no reboot
/// is that fast.
const SAME_START: u64 = 50;
/// The version of the table layout.
const SCHEMA: i64 = 1;

const TABLES: &str = "
CREATE TABLE items (
    key TEXT PRIMARY KEY,
    value BLOB NOT NULL,
    number INTEGER NOT NULL,
    -- Milliseconds since the host was started; NULL: for ever.
    expires INTEGER,
    -- The same in Unix milliseconds, for an item that lives on after a reboot; otherwise NULL.
    wall INTEGER
) WITHOUT ROWID;
CREATE TABLE state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    -- 16 random bytes that name the file; the boot of the host in which it was used last, and when
    -- that began, in Unix milliseconds.
    name BLOB NOT NULL,
    boot TEXT NOT NULL,
    started INTEGER NOT NULL,
    -- Numbers of this boot begin above the base, and are below the horizon.
    base INTEGER NOT NULL,
    horizon INTEGER NOT NULL
);
";

/// A suitable file.
#[derive(Debug)]
pub(super) struct File {
    /// The epoch of all its versions.
    pub(super) epoch: Epoch,
    pub(super) base: i64,
    pub(super) horizon: i64,
}

/// A failed statement, or an unsuitable file.
pub(super) enum Problem {
    Sql(rusqlite::Error),
    Unfit(Error),
    /// Others were put in the places of the files while they were opened.
    Replaced,
}

impl From<rusqlite::Error> for Problem {
    fn from(error: rusqlite::Error) -> Problem {
        Problem::Sql(error)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        Problem::Unfit(error)
    }
}

/// Creates the tables in a new file, checks those of an existing file, and removes what a reboot
/// has ended.
pub(super) fn prepare(
    sql: &mut Connection,
    clock: &BootClock,
) -> std::result::Result<File, Problem> {
    let transaction = sql.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let number = |pragma: &str| {
        transaction.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, i64>(0))
    };
    let (application, version) = (number("application_id")?, number("user_version")?);
    let tables: i64 =
        transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let boot = boot_id()
        .map_err(|error| unreachable(format!("The host's boot id cannot be read: {error}.")))?;
    let started = clock.started_millis();
    if (application, version, tables) == (0, 0, 0) {
        transaction.execute_batch(TABLES)?;
        transaction.execute_batch(&format!(
            "PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {SCHEMA};"
        ))?;
        transaction.execute(
            "INSERT INTO state (id, name, boot, started, base, horizon)
             VALUES (1, randomblob(16), ?1, ?2, 0, 0)",
            params![boot, started],
        )?;
    } else {
        check(application, version)?;
        let last: Option<(String, i64)> = transaction
            .query_row("SELECT boot, started FROM state WHERE id = 1", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()?;
        let (same_id, same_start) = last
            .map_or((false, false), |(id, at)| (id == boot, at.abs_diff(started) <= SAME_START));
        // Some containers have their own boot id.
        if !same_id && !same_start {
            begin_boot(&transaction, &boot, clock)?;
        }
        if !same_start {
            transaction.execute("UPDATE state SET started = ?1 WHERE id = 1", [started])?;
        }
    }
    let (name, base, horizon): (Vec<u8>, i64, i64) =
        transaction.query_row("SELECT name, base, horizon FROM state WHERE id = 1", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    transaction.commit()?;
    let half = |half: usize| {
        let bytes = name.get(8 * half..8 * half + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u64::from_be_bytes)
    };
    match (half(0), half(1)) {
        (Some(first), Some(second)) => Ok(File { epoch: Epoch::new(first, second), base, horizon }),
        _ => {
            Err(Error::protocol("Its tables are not as memlock wrote them: name another file.")
                .into())
        }
    }
}

fn check(application: i64, version: i64) -> Result<()> {
    if application != APPLICATION {
        return Err(Error::protocol(
            "It is a database of another program: name another file, which need not exist yet.",
        ));
    }
    if version != SCHEMA {
        return Err(Error::protocol(format!(
            "It was written by a newer memlock (layout {version}, and this one knows {SCHEMA}): upgrade this \
             one, or name another file."
        )));
    }
    Ok(())
}

/// Holders and waiters died with the host. Lists, and items that never expire, remain; the new
/// clock starts from zero.
fn begin_boot(
    transaction: &rusqlite::Transaction<'_>,
    boot: &str,
    clock: &BootClock,
) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM items WHERE expires IS NOT NULL AND wall IS NULL", [])?;
    transaction.execute(
        "UPDATE items SET expires = ?1 + max(wall - ?2, 0) WHERE wall IS NOT NULL",
        params![clock.millis(), clock.wall_millis()],
    )?;
    transaction.execute("UPDATE state SET boot = ?1, base = horizon WHERE id = 1", [boot])?;
    Ok(())
}

/// Moves the horizon above this number, so that it is not written again for an hour.
pub(super) fn move_horizon(sql: &Connection, number: i64) -> rusqlite::Result<i64> {
    const HOUR: i64 = 3_600_000_000_000;
    sql.query_row(
        "UPDATE state SET horizon = max(horizon, ?1) WHERE id = 1 RETURNING horizon",
        [number.saturating_add(HOUR)],
        |row| row.get(0),
    )
}
