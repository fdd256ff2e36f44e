//! The floor of a pair on SQLite: two transactions of prepared statements, one that inserts the
//! lock's row and one that deletes it by its version, in a file with the settings of memlock's.

use rusqlite::{Connection, params};

use crate::{Pair, Result};

/// As in memlock's file: each commit is in the write-ahead log, and survives the process.
const PREPARE: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    CREATE TABLE items (
        key TEXT PRIMARY KEY,
        value BLOB NOT NULL,
        number INTEGER NOT NULL,
        expires INTEGER
    ) WITHOUT ROWID;
";
const KEY: &str = "lock:bench";
const EXPIRES: i64 = i64::MAX;

/// The pair, on a new file.
pub(crate) fn pair(url: &str) -> Result<Pair> {
    let path = url.strip_prefix("sqlite://").ok_or("raw-sqlite wants a SQLite file")?;
    let sql = Connection::open(path)?;
    sql.execute_batch(PREPARE)?;
    // About as long as memlock's value, which contains the host name.
    let value = "0123456789abcdef".repeat(5);
    let mut version = 0_i64;
    Ok(Box::new(move || {
        version += 1;
        let run = |statement: &str, with: &[&dyn rusqlite::ToSql]| -> Result<usize> {
            Ok(sql.prepare_cached(statement)?.execute(with)?)
        };
        run("BEGIN IMMEDIATE", &[])?;
        run(
            "INSERT INTO items (key, value, number, expires) VALUES (?1, ?2, ?3, ?4)",
            params![KEY, value.as_bytes(), version, EXPIRES],
        )?;
        run("COMMIT", &[])?;
        run("BEGIN IMMEDIATE", &[])?;
        let deleted =
            run("DELETE FROM items WHERE key = ?1 AND number = ?2", params![KEY, version])?;
        run("COMMIT", &[])?;
        if deleted == 1 { Ok(()) } else { Err(format!("{deleted} rows deleted").into()) }
    }))
}
