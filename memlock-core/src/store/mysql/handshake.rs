//! The session, and what a server tells about itself when a connection is opened.

use std::time::Duration;

use super::errors;
use super::packets::{Answer, Row, Wire, out_of_step};
use super::schema::{Engine, TABLE};
use super::settings::Settings;
use super::statements::{NOW, parse};
use crate::error::{Error, Result};
use crate::store::Epoch;
use crate::store::remote::{Patience, Reading};

/// One life of a server: its number, and when it was started, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Life(u64);

impl Life {
    /// `number`: of `UUID_SHORT()`, whose upper half tells the server, and the lower half when it was
    /// started: too late, as soon as other programs have called the function 16.8 million times.
    /// `uptime`: in seconds, as known before `now`.
    fn of(number: u64, uptime: Option<u64>, now: Duration) -> Life {
        const HALF: u64 = u32::MAX as u64;
        let latest = uptime.map_or(HALF, |uptime| now.as_secs().wrapping_sub(uptime));
        Life(number & !HALF | (number & HALF).min(latest))
    }

    pub(super) fn epoch(self) -> Epoch {
        Epoch::new(self.0, 0)
    }
}

/// The result of the handshake.
#[derive(Clone, Copy, Debug)]
pub(super) struct Introduction {
    pub(super) life: Life,
    pub(super) time: Reading,
    /// The longest request that the server accepts, in bytes.
    pub(super) longest: usize,
    /// Whether the server takes no writes, of most users.
    pub(super) is_read_only: bool,
}

/// Sets up the session, and examines the server.
///
/// `MariaDB` reads the comments, and ends a statement that takes too long; on a MySQL a statement waits
/// for a locked row in whole seconds.
pub(super) fn introduce(
    wire: &mut Wire,
    settings: &Settings,
    io_timeout: Duration,
) -> Result<Introduction> {
    let sent = wire.clock().now();
    let seconds = io_timeout.as_secs().max(1);
    let limit = io_timeout.mul_f64(0.75).as_secs_f64();
    let mut rows = ask(
        wire,
        settings,
        &[
            // `init_connect` may have begun one: what it has not committed, nobody else sees.
            "ROLLBACK AND NO CHAIN NO RELEASE",
            "SET NAMES binary",
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
            &format!(
                "SET SESSION autocommit=1, sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', \
                 time_zone='+00:00', sql_safe_updates=0, sql_auto_is_null=0, sql_big_selects=1, \
                 sql_select_limit=18446744073709551615, group_concat_max_len=1024, \
                 innodb_lock_wait_timeout={seconds}, lock_wait_timeout={seconds}\
                 /*M!100100 , max_statement_time={limit:.6} */"
            ),
            "SHOW GLOBAL STATUS LIKE 'Uptime'",
            &format!("SELECT UUID_SHORT()>>24, {NOW}, @@max_allowed_packet"),
            "SHOW VARIABLES WHERE Variable_name IN ('log_bin','binlog_format','wsrep_on','read_only')",
            TABLE_FOUND,
        ],
    )?;
    let table = rows.pop().ok_or_else(out_of_step)?;
    check_table(table, settings.engine)?;
    let variables = rows.pop().ok_or_else(out_of_step)?;
    let is = |name: &str, value: &str| {
        variables.iter().any(|row| match row.as_slice() {
            [Some(found), Some(is)] => {
                found == name.as_bytes() && is.eq_ignore_ascii_case(value.as_bytes())
            }
            _ => false,
        })
    };
    if is("log_bin", "ON") && is("binlog_format", "STATEMENT") {
        // The server refuses to log statements of the other level so. The locks of gaps that this
        // one takes end with each statement.
        ask(wire, settings, &["SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"])?;
    }
    if is("wsrep_on", "ON") {
        // A read on one node of a Galera cluster sees what was committed on the others before.
        ask(wire, settings, &["SET SESSION wsrep_sync_wait=1"])?;
    }
    let is_read_only = is("read_only", "ON");
    let row = rows.pop().and_then(|rows| rows.into_iter().next()).ok_or_else(out_of_step)?;
    let [life, now, longest] = <[Option<Vec<u8>>; 3]>::try_from(row).map_err(|_| out_of_step())?;
    let uptime = rows.pop().and_then(|rows| rows.into_iter().next()?.into_iter().nth(1)?);
    let number = |field| parse(field).ok_or_else(out_of_step);
    let now = Duration::from_micros(number(now)?);
    Ok(Introduction {
        life: Life::of(number(life)?, parse(uptime), now),
        time: Reading { shown: now, sent },
        longest: usize::try_from(number(longest)?).map_err(|_| out_of_step())?,
        is_read_only,
    })
}

/// Requests what the table is, if it is there: its engine, its unique keys, how many of its columns have
/// the types that they should, and the number of its foreign keys.
pub(super) const TABLE_FOUND: &str = "SELECT IF(TABLE_TYPE='BASE TABLE',ENGINE,TABLE_TYPE),\
    (SELECT GROUP_CONCAT(INDEX_NAME,' ',IFNULL(COLUMN_NAME,'?'),' ',IFNULL(SUB_PART,'all')) \
    FROM information_schema.STATISTICS \
    WHERE TABLE_SCHEMA=DATABASE() AND TABLE_NAME='memlock_items' AND NON_UNIQUE=0),\
    (SELECT SUM(IF(EXTRA LIKE '%auto_increment%',5,1)) FROM information_schema.COLUMNS \
    WHERE TABLE_SCHEMA=DATABASE() AND TABLE_NAME='memlock_items' AND \
    (LOWER(CONVERT(COLUMN_NAME USING latin1))='name' AND DATA_TYPE='varbinary' \
    AND CHARACTER_MAXIMUM_LENGTH>=250 \
    OR LOWER(CONVERT(COLUMN_NAME USING latin1))='value' \
    AND DATA_TYPE IN('varbinary','blob','mediumblob','longblob') \
    AND CHARACTER_MAXIMUM_LENGTH>=4096 \
    OR LOWER(CONVERT(COLUMN_NAME USING latin1)) IN('number','expires') AND COLUMN_TYPE LIKE 'bigint%unsigned%' \
    OR EXTRA LIKE '%auto_increment%')),\
    (SELECT COUNT(*) FROM information_schema.TABLE_CONSTRAINTS \
    WHERE TABLE_SCHEMA=DATABASE() AND TABLE_NAME='memlock_items' AND CONSTRAINT_TYPE='FOREIGN KEY') \
    FROM information_schema.TABLES WHERE TABLE_SCHEMA=DATABASE() AND TABLE_NAME='memlock_items'";

/// Creates the table.
pub(super) fn create_table(wire: &mut Wire, settings: &Settings) -> Result<()> {
    // Another client may have created it at the same time, with another engine.
    let mut rows = ask(wire, settings, &[&settings.engine.definition(), TABLE_FOUND])?;
    check_table(rows.pop().unwrap_or_default(), settings.engine)
}

fn check_table(rows: Vec<Row>, engine: Engine) -> Result<()> {
    let Some(row) = rows.into_iter().next() else { return Ok(()) };
    let [found, keys, columns, references] =
        <[Option<Vec<u8>>; 4]>::try_from(row).map_err(|_| out_of_step())?;
    let text = |field: Option<Vec<u8>>| {
        field.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    };
    let found = text(found);
    if found == "VIEW" {
        return Err(Error::config(format!(
            "{TABLE} is a view, not a table as memlock creates it: drop it, or name another database."
        )));
    }
    // Without the key two rows could stand for one lock, and with a part of it one for two. A number
    // that the server gives to each row would be taken for the fence, and a row of which it keeps each
    // version counts as changed whenever it is touched. A foreign key may delete a row with another one.
    let is_key = text(keys).eq_ignore_ascii_case("PRIMARY name all");
    let is_free = parse(references) == Some(0) && found != "SYSTEM VERSIONED";
    if !is_key || parse(columns) != Some(4) || !is_free {
        return Err(Error::config(format!(
            "The table {TABLE} does not have the primary key or the columns that memlock gives it, or has \
             versions or a foreign key, so that a lock could be granted twice. Compare SHOW CREATE TABLE {TABLE} \
             with {}; and change the table, or drop it while no lock is held, or name another database.",
            engine.definition()
        )));
    }
    if found.eq_ignore_ascii_case(engine.name()) {
        return Ok(());
    }
    let how = match Engine::from_name(&found) {
        Some(Engine::Memory) => "add engine=MEMORY to the URL",
        Some(Engine::InnoDb) => "leave engine=MEMORY out of the URL",
        None => "drop it",
    };
    Err(Error::config(format!(
        "The table {TABLE} has the engine {found:?}: {how}, or name another database."
    )))
}

/// Sends statements in one packet. Returns the rows of each that returns some.
pub(super) fn ask(
    wire: &mut Wire,
    settings: &Settings,
    statements: &[&str],
) -> Result<Vec<Vec<Row>>> {
    wire.query(&statements.join(";")).map_err(|failure| failure.error)?;
    let mut patience = Patience::default();
    let mut all = Vec::new();
    for left in (0..statements.len()).rev() {
        match wire.answer(left == 0, &mut patience)? {
            Answer::Done { .. } => {}
            Answer::Rows(rows) => all.push(rows),
            Answer::Refused(refusal) => return Err(errors::of_refusal(&refusal, settings.engine)),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_told_by_the_server_and_its_start() {
        const SERVER: u64 = 7 << 32;
        let now = Duration::from_millis(1_700_000_100_300);
        let life = |start, uptime| Life::of(SERVER | start, uptime, now).0;
        let start = 1_700_000_000;
        assert_eq!(life(start, Some(100)), SERVER | start);
        assert_eq!(life(start, None), SERVER | start);
        // The number of calls was carried into it.
        assert_eq!(life(start + 3, Some(100)), SERVER | start);
        // A second has begun between the two.
        assert_eq!(life(start, Some(99)), SERVER | start);
        // The clock was set back behind the start: the uptime wraps around.
        assert_eq!(life(start + 200, Some(100_u64.wrapping_neg())), SERVER | (start + 200));
        assert_eq!(life(start, Some(u64::MAX / 2)), SERVER | start);
    }
}
