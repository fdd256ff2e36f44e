//! The requests of tools to a file.

use std::time::Duration;

use rusqlite::{OptionalExtension, params};

use super::connection::Connection;
use super::{Sqlite, file};
use crate::clock::brief;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Keyspace;
use crate::store::admin::Verdict::{Bad, Good, Warning};
use crate::store::admin::{Admin, Content, Finding, Value};
use crate::store::{Op, Route, Store};

/// The largest value that is read: memlock writes no larger ones.
const LARGEST_VALUE: i64 = 1024 * 1024;
/// Less free space than this is used up by a few more locks and lists.
const LITTLE_ROOM: u64 = 16 * 1024 * 1024;

pub(super) struct Tool<'a> {
    pub(super) store: &'a Sqlite,
}

impl Tool<'_> {
    /// Makes sure that the file is open, and runs `ask` on the connection.
    fn ask<T>(&self, ask: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        let key = Keyspace::default().internal("probe");
        let opened = self.store.run(Route::of(&key), &[Op::get(&key)]);
        opened.map_err(|failure| failure.error)?;
        let said = |why: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Unreachable, format!("{} {why}.", self.store.title()))
        };
        self.store
            .with(ask)
            .ok_or_else(|| said(&"was closed"))?
            .map_err(|error| said(&format_args!("cannot be read ({error})")))
    }
}

impl Admin for Tool<'_> {
    fn round_trip(&mut self) -> Result<Duration> {
        let began = self.store.clock.now();
        self.ask(|open| open.sql.execute_batch("BEGIN IMMEDIATE; COMMIT"))?;
        Ok(self.store.clock.now().saturating_sub(began))
    }

    fn keys(&mut self, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<String>> {
        let now = self.store.clock.millis();
        self.ask(|open| {
            let mut select = open
                .sql
                .prepare("SELECT key FROM items WHERE (expires IS NULL OR expires > ?1)")?;
            let keys = select.query_map([now], |row| row.get::<_, String>(0))?;
            keys.filter(|key| !matches!(key, Ok(key) if !wanted(key))).collect()
        })
    }

    fn values(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>> {
        let now = self.store.clock.millis();
        self.ask(|open| {
            let mut select = open.sql.prepare(
                "SELECT iif(length(value) > ?3, NULL, value), length(value), expires FROM items
                 WHERE key = ?1 AND (expires IS NULL OR expires > ?2)",
            )?;
            keys.iter()
                .map(|key| {
                    select
                        .query_row(params![key, now, LARGEST_VALUE], |row| {
                            let content = match row.get::<_, Option<Vec<u8>>>(0)? {
                                Some(value) => Content::Bytes(value),
                                None => Content::TooLarge(row.get::<_, u32>(1)? as usize),
                            };
                            let left = row.get::<_, Option<i64>>(2)?.map(|expires| {
                                Duration::from_millis(expires.saturating_sub(now).max(0) as u64)
                            });
                            Ok((content, left))
                        })
                        .optional()
                })
                .collect()
        })
    }

    fn health(&mut self, _lease: Duration) -> Result<Vec<Finding>> {
        let (version, items, pages) = self.ask(|open| {
            let number =
                |statement: &str| open.sql.query_row(statement, [], |row| row.get::<_, i64>(0));
            Ok((
                rusqlite::version().to_owned(),
                number("SELECT count(*) FROM items")?,
                number("PRAGMA page_count")? * number("PRAGMA page_size")?,
            ))
        })?;
        Ok(vec![
            Finding::new("version", Good, format!("SQLite {version}, which is part of memlock")),
            self.file_system(),
            self.mode(),
            self.room(),
            Finding::new(
                "size",
                Good,
                format!("{items} items in {:.1} MiB", pages as f64 / f64::from(1 << 20)),
            ),
            Finding::new(
                "clock",
                Good,
                "is this host's, which neither stops nor steps; a reboot frees all locks",
            ),
        ])
    }
}

impl Tool<'_> {
    fn file_system(&self) -> Finding {
        match file::network_of(&self.store.place.path) {
            None => Finding::new("file system", Good, "is local"),
            Some(name) => Finding::new(
                "file system",
                Bad,
                format!("is one of a network ({name}), and network=trust was given"),
            )
            .mend("name a file on a local disk"),
        }
    }

    fn mode(&self) -> Finding {
        use std::os::unix::fs::MetadataExt;
        let mode =
            std::fs::metadata(&self.store.place.path).map_or(0, |found| found.mode() & 0o777);
        if mode & 0o002 == 0 {
            return Finding::new("mode", Good, format!("{mode:03o}"));
        }
        Finding::new(
            "mode",
            Warning,
            format!("{mode:03o}: every user of this host can take locks away"),
        )
        .mend("chmod o-w, and give those who share it a group")
    }

    fn room(&self) -> Finding {
        match file::room_at(&self.store.place.path) {
            Some(room) if room < LITTLE_ROOM => Finding::new(
                "room",
                Warning,
                format!("{:.1} MiB are left on its file system", room as f64 / f64::from(1 << 20)),
            )
            .mend("make room, or name a file on another disk"),
            _ => Finding::new(
                "room",
                Good,
                format!(
                    "is left on its file system; a busy file is waited for up to {}",
                    brief(self.store.io_timeout)
                ),
            ),
        }
    }
}
