//! Setting up and checking the tables, and the changes at a new boot of the host.
//!
//! One table holds the items. Each time an item is stored it gets a number: the nanoseconds since
//! the host was started, plus a base. Writers take turns, and that clock never goes back, so
//! numbers rise from item to item without a counter that would have to be written each time. The
//! horizon is a number that no number has reached. It is moved an hour ahead when half an hour is
//! left, by a transaction of its own that is synced to the disk, so that a power failure cannot
//! take it back. At the next boot it becomes the base.
//!
//! Whether the host was rebooted is decided when the file is opened:
//!
//! | boot id | evidence | action |
//! | --- | --- | --- |
//! | the kernel's, the recorded one | same boot | none |
//! | the kernel's, another one | reboot, unless containers with ids of their own used the file | `begin_boot` |
//! | a container's, a recorded one | same boot | none |
//! | any other | a number is ahead of the clock: reboot | `begin_boot` |
//! | any other | no number is: unknown | `raise_base`; everything is kept |
//!
//! Removing the lock of a living holder would grant it twice; keeping the lock of a dead one only
//! delays the next, until the lease ends. A reboot is therefore assumed only if it is proven.

use rusqlite::{Connection, Transaction, TransactionBehavior, ffi, params};

use super::errors::Problem;
use super::layout::{TABLES, is_our_table, is_plain_index};
use super::time::{BootClock, BootId};
use crate::error::{Error, Result};
use crate::store::Epoch;

/// The application id in the header of memlock's files: `mlck`.
const APPLICATION: i64 = 0x6d6c_636b;
/// The version of the table layout.
const SCHEMA: i64 = 1;

/// How far the horizon is moved ahead of the clock, in nanoseconds, and when: less than this is
/// left.
const STEP: i64 = 3_600_000_000_000;
const MARGIN: i64 = STEP / 2;
/// A number that is this far ahead of the clock proves a reboot. Several items that are stored at
/// once get numbers that are a few nanoseconds ahead.
const AHEAD: i64 = 1_000_000_000;
/// How many boot ids of containers are recorded. A container whose id was dropped only raises the
/// base once more.
const CONTAINERS: i64 = 1000;

const FORGET_OLD_BASE: &str =
    "DROP TRIGGER IF EXISTS old_base_add; DROP TRIGGER IF EXISTS old_base_set;";

/// The triggers that reject numbers of an old base, in front of the number that is the least, and what
/// is behind it.
const OLD_BASE: [&str; 2] = [
    "CREATE TRIGGER old_base_add BEFORE INSERT ON items WHEN NEW.number < ",
    "CREATE TRIGGER old_base_set BEFORE UPDATE OF number ON items WHEN NEW.number < ",
];
const REJECT: &str = " BEGIN SELECT RAISE(ABORT, 'old base'); END";

/// A suitable file.
#[derive(Debug)]
pub(super) struct File {
    /// The epoch of all its versions.
    pub(super) epoch: Epoch,
    pub(super) base: i64,
    horizon: i64,
}

impl File {
    /// Whether the horizon is to be moved before more items are stored.
    pub(super) fn is_near_horizon(&self, number: i64) -> bool {
        number >= self.horizon.saturating_sub(MARGIN)
    }

    /// Whether this number must not be given to an item.
    pub(super) fn is_beyond_horizon(&self, number: i64) -> bool {
        number >= self.horizon
    }
}

/// Runs a transaction that a power failure cannot undo once it was committed.
fn durably<T>(
    sql: &mut Connection,
    body: impl FnOnce(&Transaction<'_>) -> std::result::Result<T, Problem>,
) -> std::result::Result<T, Problem> {
    sql.execute_batch("PRAGMA synchronous = FULL")?;
    let run = |sql: &mut Connection| {
        let transaction = sql.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = body(&transaction)?;
        transaction.commit()?;
        Ok(done)
    };
    let done = run(sql);
    sql.execute_batch("PRAGMA synchronous = NORMAL")?;
    done
}

/// Creates the tables in a new file, checks those of an existing file, and removes what a reboot
/// has ended.
pub(super) fn prepare(
    sql: &mut Connection,
    clock: &BootClock,
) -> std::result::Result<File, Problem> {
    let (name, base, horizon) = durably(sql, |transaction| {
        let number = |pragma: &str| {
            transaction.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, i64>(0))
        };
        let (application, version) = (number("application_id")?, number("user_version")?);
        let tables: i64 =
            transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        let id = clock.boot_id()?;
        if (application, version, tables) == (0, 0, 0) {
            create(transaction, &id, clock)?;
        } else {
            check(application, version)?;
            check_tables(transaction)?;
            join(transaction, &id, clock)?;
        }
        let state = transaction.query_row(
            "SELECT name, base, horizon FROM state WHERE id = 1",
            [],
            |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get(1)?, row.get(2)?)),
        )?;
        Ok(state)
    })?;
    let half = |half: usize| {
        let bytes = name.get(8 * half..8 * half + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u64::from_be_bytes)
    };
    match (half(0), half(1)) {
        (Some(first), Some(second)) => Ok(File { epoch: Epoch::new(first, second), base, horizon }),
        _ => Err(changed().into()),
    }
}

fn create(
    transaction: &Transaction<'_>,
    id: &BootId,
    clock: &BootClock,
) -> std::result::Result<(), Problem> {
    for (_, table) in TABLES {
        transaction.execute_batch(table)?;
    }
    transaction.execute_batch(&format!(
        "PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {SCHEMA};"
    ))?;
    transaction.execute(
        "INSERT INTO state (id, name, base, horizon) VALUES (1, randomblob(16), 0, ?1)",
        [clock.nanos().saturating_add(STEP)],
    )?;
    Ok(record(transaction, id)?)
}

/// Begins a new boot if the host was rebooted, and makes sure that numbers rise if that is unknown.
fn join(
    transaction: &Transaction<'_>,
    id: &BootId,
    clock: &BootClock,
) -> std::result::Result<(), Problem> {
    let (boot, base, horizon, containers): (Option<String>, i64, i64, i64) = transaction
        .query_row(
            "SELECT boot, base, horizon, (SELECT count(*) FROM containers) FROM state WHERE id = 1",
            [],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
        )?;
    let number = base.saturating_add(clock.nanos());
    let is_known = match id {
        BootId::Kernel(id) => boot.as_ref() == Some(id),
        BootId::Container(id) => {
            transaction.prepare("SELECT 1 FROM containers WHERE id = ?1")?.exists([id])?
        }
    };
    // In one boot, the horizon is never further ahead.
    let went_back = number.saturating_add(STEP + AHEAD) < horizon;
    if is_known && !went_back {
        return Ok(());
    }
    let rebooted = match id {
        BootId::Kernel(_) if is_known => false,
        // Containers may have stored items after the reboot.
        BootId::Kernel(_) if boot.is_some() && containers == 0 => true,
        _ => went_back || has_number_above(transaction, number.saturating_add(AHEAD))?,
    };
    if rebooted {
        begin_boot(transaction, clock)?;
    } else if number < horizon {
        raise_base(transaction, horizon, clock)?;
    }
    Ok(record(transaction, id)?)
}

fn has_number_above(transaction: &Transaction<'_>, number: i64) -> rusqlite::Result<bool> {
    transaction.prepare("SELECT 1 FROM items WHERE number > ?1")?.exists([number])
}

/// Records a boot id as one of the present boot.
fn record(transaction: &Transaction<'_>, id: &BootId) -> rusqlite::Result<()> {
    match id {
        BootId::Kernel(id) => {
            transaction.execute("UPDATE state SET boot = ?1 WHERE id = 1", [id])?;
        }
        BootId::Container(id) => {
            transaction.execute("INSERT OR IGNORE INTO containers (id) VALUES (?1)", [id])?;
            transaction.execute(
                "DELETE FROM containers WHERE number <= (SELECT max(number) FROM containers) - ?1",
                [CONTAINERS],
            )?;
        }
    }
    Ok(())
}

fn check(application: i64, version: i64) -> Result<()> {
    if application != APPLICATION {
        return Err(Error::protocol(
            "It is a database of another program: name another file, which need not exist yet.",
        ));
    }
    if version < SCHEMA {
        return Err(Error::protocol(format!(
            "It is damaged (layout {version}): stop what uses it, remove it and its -wal and -shm \
             files, and start again."
        )));
    }
    if version > SCHEMA {
        return Err(Error::protocol(format!(
            "It was written by a newer memlock (layout {version}, and this one knows {SCHEMA}): \
             upgrade this one, or name another file."
        )));
    }
    Ok(())
}

/// Checks the tables, and what changes how they work. Two rows could otherwise stand for one lock, or
/// one row for two; a conflict clause could give a lock to all, a trigger hide what is stored, and a
/// view run for ever. Columns and indexes of others that have no such effect remain.
fn check_tables(transaction: &Transaction<'_>) -> std::result::Result<(), Problem> {
    let mut found = transaction.prepare(
        "SELECT type, name, sql FROM sqlite_schema WHERE type = 'trigger'
            OR tbl_name IN ('items', 'state', 'containers')",
    )?;
    let mut found = found.query([])?;
    let mut tables = 0;
    while let Some(row) = found.next()? {
        let (kind, name): (String, String) = (row.get(0)?, row.get(1)?);
        // An index without a text is that of a key in the text of its table.
        let text: Option<String> = row.get(2)?;
        let text = text.as_deref();
        let is_ours = match kind.as_str() {
            "table" => text.is_some_and(|text| is_our_table(&name, text)),
            "index" => text.is_none_or(is_plain_index),
            "trigger" => text.is_some_and(is_our_trigger),
            _ => false,
        };
        if !is_ours {
            return Err(changed().into());
        }
        tables += usize::from(kind == "table");
    }
    if tables == TABLES.len() { Ok(()) } else { Err(changed().into()) }
}

fn changed() -> Error {
    Error::protocol(
        "It is damaged: its tables are not as memlock wrote them, or it has triggers, indexes or columns that \
         change how locks work. Drop those; or stop what uses it, remove it and its -wal and -shm files, and start again; \
         or name another file.",
    )
}

/// Holders and waiters died with the host. Lists, and items that never expire, remain; the new
/// clock starts from zero.
fn begin_boot(transaction: &Transaction<'_>, clock: &BootClock) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM items WHERE expires IS NOT NULL AND wall IS NULL", [])?;
    transaction.execute(
        "UPDATE items SET expires = ?1 + max(wall - ?2, 0) WHERE wall IS NOT NULL",
        params![clock.millis(), clock.wall_millis()],
    )?;
    transaction.execute("DELETE FROM containers", [])?;
    transaction.execute_batch(FORGET_OLD_BASE)?;
    transaction.execute(
        "UPDATE state SET boot = NULL, base = horizon, horizon = horizon + ?1 WHERE id = 1",
        [clock.nanos().saturating_add(STEP)],
    )?;
    Ok(())
}

/// Makes the next number at least the horizon: whether numbers up to it were given out in an
/// earlier boot is unknown. If it is the same boot after all, other connections still use the old
/// base: the trigger rejects their next number, and they read the new base.
fn raise_base(
    transaction: &Transaction<'_>,
    horizon: i64,
    clock: &BootClock,
) -> rusqlite::Result<()> {
    let (base, next) = (horizon.saturating_sub(clock.nanos()), horizon.saturating_add(STEP));
    transaction
        .execute("UPDATE state SET base = ?1, horizon = ?2 WHERE id = 1", params![base, next])?;
    transaction.execute_batch(FORGET_OLD_BASE)?;
    for head in OLD_BASE {
        transaction.execute_batch(&format!("{head}{horizon}{REJECT}"))?;
    }
    Ok(())
}

/// Whether it is one of the triggers of [`raise_base`]: SQLite keeps their texts.
fn is_our_trigger(trigger: &str) -> bool {
    let horizon = OLD_BASE.iter().find_map(|head| trigger.strip_prefix(head)?.strip_suffix(REJECT));
    horizon.is_some_and(|horizon| horizon.parse::<i64>().is_ok())
}

/// Whether a statement failed because another process has raised the base.
pub(super) fn is_of_old_base(problem: &Problem) -> bool {
    matches!(problem, Problem::Sql(error) if error
        .sqlite_error()
        .is_some_and(|error| error.extended_code == ffi::SQLITE_CONSTRAINT_TRIGGER))
}

/// The error of a number that the horizon does not allow: as if another process had locked the
/// file.
pub(super) fn busy() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), None)
}

/// Reads the base, and moves the horizon if it is near.
pub(super) fn renew(
    sql: &mut Connection,
    file: &mut File,
    clock: &BootClock,
) -> std::result::Result<(), Problem> {
    (file.base, file.horizon) = durably(sql, |transaction| {
        let (base, horizon): (i64, i64) =
            transaction.query_row("SELECT base, horizon FROM state WHERE id = 1", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        let number = base.saturating_add(clock.nanos());
        if number < horizon.saturating_sub(MARGIN) {
            return Ok((base, horizon));
        }
        let next = number.saturating_add(STEP);
        transaction.execute("UPDATE state SET horizon = ?1 WHERE id = 1", [next])?;
        Ok((base, next))
    })?;
    Ok(())
}
