//! The requests of tools to a file.

use std::path::Path;
use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{OptionalExtension, params};

use super::connection::Connection;
use super::errors::{Problem, Stop};
use super::room::Room;
use super::{LONG_PAUSE, Sqlite, errors, file};
use crate::clock::brief;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Keyspace;
use crate::store::admin::Verdict::{Bad, Good, Note, Warning};
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
    /// Makes sure that the file is open, and runs `query` on the connection until the file is not
    /// locked.
    fn query<T>(&self, query: impl Fn(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        let key = Keyspace::default().internal("probe");
        let began = self.store.clock.now();
        loop {
            let opened = self.store.run(Route::of(&key), &[Op::get(&key)]);
            opened.map_err(|failure| failure.error)?;
            let asked = self.store.with(|open| {
                query(open).map_err(|error| errors::why(Problem::Sql(error), &open.sql))
            });
            let error = match asked {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(Stop::Failed(failure))) => failure.error,
                Some(Err(Stop::Full(error))) => error,
                None => Error::new(ErrorKind::Unreachable, "It was closed."),
                Some(Err(_)) if self.store.clock.now() - began <= self.store.io_timeout => {
                    self.store.clock.sleep(LONG_PAUSE);
                    continue;
                }
                Some(Err(_)) => errors::kept_locked(&self.store.place.path, self.store.io_timeout),
            };
            return Err(error.at(self.store.title()));
        }
    }
}

impl Admin for Tool<'_> {
    fn round_trip(&mut self) -> Result<Duration> {
        let began = self.store.clock.now();
        self.query(|open| open.sql.execute_batch("BEGIN IMMEDIATE; COMMIT"))?;
        Ok(self.store.clock.now().saturating_sub(began))
    }

    fn keys(&mut self, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<String>> {
        let now = self.store.clock.millis();
        self.query(|open| {
            let mut select = open
                .sql
                .prepare("SELECT key FROM items WHERE (expires IS NULL OR expires > ?1)")?;
            // A key that is no text is none of memlock's.
            let keys = select.query_map([now], |row| {
                let key = row.get_ref(0)?.as_str().ok();
                Ok(key.filter(|key| wanted(key)).map(str::to_owned))
            })?;
            keys.filter_map(rusqlite::Result::transpose).collect()
        })
    }

    fn values(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>> {
        let now = self.store.clock.millis();
        self.query(|open| {
            let mut select = open.sql.prepare(
                "SELECT iif(length(value) > ?3, NULL, value), length(value), expires FROM items
                 WHERE key = ?1 AND (expires IS NULL OR expires > ?2)",
            )?;
            keys.iter()
                .map(|key| {
                    select
                        .query_row(params![key, now, LARGEST_VALUE], |row| {
                            let content = match bytes_of(row.get_ref(0)?) {
                                Some(value) => Content::Bytes(value),
                                None => Content::TooLarge(row.get::<_, u32>(1)? as usize),
                            };
                            let expires = match row.get_ref(2)? {
                                ValueRef::Integer(expires) => Some(expires),
                                ValueRef::Real(expires) => Some(expires as i64),
                                // SQLite sorts texts behind all numbers: it never expires.
                                ValueRef::Null | ValueRef::Text(_) | ValueRef::Blob(_) => None,
                            };
                            let left = expires.map(|expires| {
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
        let version = rusqlite::version();
        let version = Finding::new("version", Good, format!("SQLite {version}"));
        let clock = Finding::new(
            "clock",
            Good,
            "is this host's, which neither stops nor steps; a reboot frees all locks",
        );
        if self.store.missing(0).is_some() {
            let file = Finding::new("file", Note, "is not there yet: the first lock creates it");
            let directory = errors::directory_of(&self.store.place.path);
            let found = [file, version, self.file_system(directory), self.directory(directory)];
            return Ok(found.into_iter().chain([self.room(directory), clock]).collect());
        }
        let (items, pages) = self.query(|open| {
            let number =
                |statement: &str| open.sql.query_row(statement, [], |row| row.get::<_, i64>(0));
            Ok((
                number("SELECT count(*) FROM items")?,
                number("PRAGMA page_count")? * number("PRAGMA page_size")?,
            ))
        })?;
        let path = &self.store.place.path;
        // The -wal and -shm files are where the links to the file lead.
        let file = path.canonicalize().unwrap_or_else(|_| path.clone());
        Ok(vec![
            version,
            self.file_system(path),
            self.mode(),
            self.directory(errors::directory_of(&file)),
            self.room(path),
            Finding::new(
                "size",
                Good,
                format!("{items} items in {:.1} MiB", pages as f64 / f64::from(1 << 20)),
            ),
            clock,
        ])
    }
}

/// A value, of whatever type. Another program may have written it.
fn bytes_of(value: ValueRef<'_>) -> Option<Vec<u8>> {
    match value {
        ValueRef::Null => None,
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => Some(bytes.to_vec()),
        ValueRef::Integer(number) => Some(number.to_string().into_bytes()),
        ValueRef::Real(number) => Some(number.to_string().into_bytes()),
    }
}

impl Tool<'_> {
    fn file_system(&self, path: &Path) -> Finding {
        match file::network_of(path) {
            None => Finding::new("file system", Good, "is local"),
            Some(name) => Finding::new(
                "file system",
                Bad,
                match self.store.place.trusts_networks {
                    true => format!("is one of a network ({name}), and network=trust was given"),
                    false => format!("is one of a network ({name}), which memlock refuses"),
                },
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

    /// Whether all users of the file can use the two files that SQLite creates beside it.
    fn directory(&self, directory: &Path) -> Finding {
        use std::os::unix::fs::MetadataExt;
        const GROUP_WRITES: u32 = 0o020;
        const SETGID: u32 = 0o2000;
        if Room::at(directory).is_some_and(|room| room.is_read_only) {
            return Finding::new("directory", Bad, "is on a file system that is mounted read-only")
                .mend("mount it for writing, or name another file");
        }
        if !errors::can(directory, libc::W_OK | libc::X_OK) {
            return Finding::new(
                "directory",
                Bad,
                "cannot be written by this user: SQLite creates two files beside the file",
            )
            .mend("change its owner or its mode, or name another file");
        }
        let found = std::fs::metadata(&self.store.place.path);
        match (found, std::fs::metadata(directory)) {
            (Ok(file), Ok(directory))
                if file.mode() & GROUP_WRITES != 0
                    && (directory.mode() & (SETGID | GROUP_WRITES) != SETGID | GROUP_WRITES
                        || directory.gid() != file.gid()) =>
            {
                Finding::new(
                    "directory",
                    Warning,
                    "does not give its group to new files: the file is shared with a group, and \
                     users of it may not be able to use the files that SQLite creates beside it",
                )
                .mend("chgrp it to the group of the file, and chmod 2770")
            }
            _ => Finding::new("directory", Good, "can be written"),
        }
    }

    fn room(&self, path: &Path) -> Finding {
        match Room::at(path) {
            Some(room) if room.has_no_inode => Finding::new(
                "room",
                Warning,
                "its file system has no inode left, also for the two files that SQLite creates beside it",
            )
            .mend("remove files there (df -i counts them), or name a file on another file system"),
            Some(room) if room.bytes < LITTLE_ROOM => Finding::new(
                "room",
                Warning,
                format!(
                    "{:.1} MiB are left on its file system",
                    room.bytes as f64 / f64::from(1 << 20)
                ),
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
