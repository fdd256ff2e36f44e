use super::*;
use crate::store::sqlite::layout::{TABLES, is_our_table};
use crate::store::sqlite::tests::{Directory, refused};

/// What a client of this file is told after other programs have changed it.
fn after(change: &str) -> (ErrorKind, String) {
    let directory = Directory::new();
    directory.used();
    directory.sql().execute_batch(change).unwrap();
    refused(&directory.file())
}

#[test]
fn other_tables_and_other_layouts_are_damage_and_not_an_outage() {
    for change in [
        "DROP TABLE items",
        "DROP TABLE state",
        "ALTER TABLE items DROP COLUMN wall",
        "DELETE FROM state",
        "UPDATE state SET base = 'x'",
        "PRAGMA user_version = 0",
        "PRAGMA user_version = -1",
        // Without its key, a lock could have two rows.
        "DROP TABLE items; CREATE TABLE items (key TEXT, value BLOB NOT NULL, number INTEGER NOT NULL, \
         expires INTEGER, wall INTEGER)",
        "DROP TABLE items; CREATE TABLE items (key TEXT, value BLOB NOT NULL, number INTEGER NOT NULL, \
         expires INTEGER, wall INTEGER, PRIMARY KEY (key, number))",
        "DROP TABLE items; CREATE TABLE items (key TEXT PRIMARY KEY, value BLOB NOT NULL, number REAL NOT NULL, \
         expires INTEGER, wall INTEGER)",
        "DROP TABLE items; CREATE VIEW items AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) \
         SELECT n AS key, n AS value, n AS number, n AS expires, n AS wall FROM r",
        "ALTER TABLE state RENAME TO s; CREATE VIEW state AS SELECT * FROM s",
        "CREATE TRIGGER t AFTER INSERT ON items BEGIN UPDATE items SET expires = 0; END",
        "CREATE TRIGGER old_base_add BEFORE INSERT ON items WHEN NEW.number < 1 BEGIN SELECT 1; \
         SELECT RAISE(ABORT, 'old base'); END",
        "CREATE TRIGGER old_base_set BEFORE INSERT ON items WHEN NEW.number < 1 BEGIN \
         SELECT RAISE(ABORT, 'old base'); END",
        "DROP TABLE containers; CREATE TABLE containers (a)",
        "ALTER TABLE items RENAME TO i; CREATE TABLE items (key TEXT COLLATE NOCASE PRIMARY KEY, \
         value BLOB NOT NULL, number INTEGER NOT NULL, expires INTEGER, wall INTEGER) WITHOUT ROWID",
    ] {
        let (kind, said) = after(change);
        assert!(kind == ErrorKind::Protocol && said.contains("It is damaged"), "{change}: {said}");
        assert!(!said.contains("SELECT") && !said.contains("INSERT"), "{said}");
    }
}

/// Statements that write the table `items` anew with a change: each `from` becomes the `to`.
fn rewritten(from: &str, to: &str) -> String {
    let (_, table) = TABLES[0];
    assert!(table.contains(from), "{from}");
    format!("DROP TABLE items; {}", table.replace(from, to))
}

#[test]
fn a_table_on_which_locks_would_not_work_is_refused() {
    let mut changes: Vec<String> = [
        ("PRIMARY KEY", "PRIMARY KEY ON\nCONFLICT REPLACE"),
        ("PRIMARY KEY", "PRIMARY KEY ON /* x */ CONFLICT IGNORE"),
        ("PRIMARY KEY", "PRIMARY KEY ON -- x\n CONFLICT IGNORE"),
        ("PRIMARY KEY", "PRIMARY KEY COLLATE\tNOCASE"),
        ("PRIMARY KEY", "PRIMARY KEY DESC"),
        ("value BLOB NOT NULL", "value BLOB NOT NULL UNIQUE"),
        ("value BLOB NOT NULL", "value BLOB NOT NULL UNIQUE ON\nCONFLICT REPLACE"),
        ("number INTEGER NOT NULL", "number INTEGER NOT NULL CHECK (number < 0)"),
        ("number INTEGER NOT NULL", "number INTEGER NOT NULL UNIQUE"),
        ("expires INTEGER", "expires INTEGER REFERENCES state"),
        ("wall INTEGER", "wall INTEGER AS (expires)"),
        ("wall INTEGER", "wall INTEGER, more INTEGER AS (abs(number))"),
        ("wall INTEGER", "wall INTEGER, more TEXT NOT NULL"),
        ("wall INTEGER", "wall INTEGER, more UNIQUE"),
        ("wall INTEGER", "wall INTEGER, CHECK (number < 0)"),
        ("wall INTEGER", "wall INTEGER, UNIQUE (value) ON CONFLICT REPLACE"),
        (" WITHOUT ROWID", ""),
        ("WITHOUT ROWID", "WITHOUT ROWID, STRICT"),
    ]
    .iter()
    .map(|(from, to)| rewritten(from, to))
    .collect();
    changes.extend(
        [
            "CREATE UNIQUE INDEX i ON items (value)",
            "CREATE UNIQUE INDEX i ON items (substr(key, 1, 4))",
            "CREATE UNIQUE INDEX i ON state (base)",
            "CREATE INDEX i ON items (abs(number))",
            "CREATE INDEX i ON items (number) WHERE abs(number) > 0",
            "CREATE INDEX \"--\" ON items (abs(number)) /*\n ON items (number)",
            "CREATE INDEX \"--\" ON items (abs(number)) /*\nON items (number)*/",
            "ALTER TABLE items RENAME TO i; CREATE VIEW items AS SELECT * FROM i",
            "ALTER TABLE items ADD COLUMN more TEXT DEFAULT 'x' CHECK (number < 0)",
            "CREATE TABLE other (a); CREATE TRIGGER t AFTER INSERT ON other BEGIN DELETE FROM items; END",
        ]
        .map(str::to_owned),
    );
    for change in changes {
        let (kind, said) = after(&change);
        assert!(
            kind == ErrorKind::Protocol && said.contains("are not as memlock"),
            "{change}: {said}"
        );
    }
    // What looks like a comment.
    let (_, state) = TABLES[1];
    assert!(is_our_table("state", state));
    assert!(!is_our_table("state", &state.replace("''", "'--'\n'")));
    assert!(!is_our_table("state", &state.replace("''", "'' /* --\n */")));
}

#[test]
fn a_table_with_more_columns_and_indexes_is_used() {
    let directory = Directory::new();
    directory.used();
    let more = "ALTER TABLE items ADD COLUMN note TEXT; CREATE INDEX ends ON items (expires); \
                ALTER TABLE items ADD COLUMN \"size\" DECIMAL(10, 2) DEFAULT NULL; \
                ALTER TABLE items ADD COLUMN made DATETIME; ALTER TABLE items ADD COLUMN x double precision; \
                create index \"j\" on \"items\"([expires] desc, number); \
                ALTER TABLE items RENAME TO t; ALTER TABLE t RENAME TO items";
    directory.sql().execute_batch(more).unwrap();
    directory.used();
    let more = "ALTER TABLE state ADD COLUMN a int; ALTER TABLE state ADD COLUMN b;
        CREATE INDEX i ON items (number DESC, wall); CREATE TABLE notes (a UNIQUE); ANALYZE";
    directory.sql().execute_batch(more).unwrap();
    directory.used();
}

/// The text of the first version. Files have the comments of the version that created them.
#[test]
fn a_file_of_an_earlier_version_is_used() {
    let tables = "DROP TABLE items; DROP TABLE containers; ALTER TABLE state RENAME TO old;
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
    -- 16 random bytes that name the file.
    name BLOB NOT NULL,
    -- The kernel's boot id when a process that could read it opened the file last.
    boot TEXT,
    -- Numbers of this boot begin above the base, and are below the horizon.
    base INTEGER NOT NULL,
    horizon INTEGER NOT NULL,
    swept TEXT NOT NULL DEFAULT '' -- Another comment.
);
CREATE TABLE containers (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
INSERT INTO state SELECT * FROM old; DROP TABLE old;";
    let directory = Directory::new();
    directory.used();
    directory.sql().execute_batch(tables).unwrap();
    directory.used();
}

/// SQLite checks the keys of other tables wherever it was built to do so, as memlock's own is.
#[test]
fn foreign_keys_of_other_tables_keep_no_lock() {
    let directory = Directory::new();
    directory.used();
    let client = directory.client();
    let mut lock = client.mutex("x", Duration::from_secs(9)).unwrap().lock().unwrap();
    let other = "CREATE TABLE other (a TEXT REFERENCES items ON DELETE RESTRICT);
        INSERT INTO other SELECT key FROM items";
    directory.sql().execute_batch(other).unwrap();
    assert_eq!(lock.unlock().unwrap(), crate::Release::Released);
}

#[test]
fn a_damaged_header_is_not_taken_for_another_kind_of_file() {
    let directory = Directory::new();
    directory.used();
    let mut bytes = std::fs::read(directory.file()).unwrap();
    bytes[..4096].fill(0);
    std::fs::write(directory.file(), bytes).unwrap();
    let (kind, said) = refused(&directory.file());
    assert!(kind == ErrorKind::Protocol && said.contains("It is damaged, or"), "{said}");
}

#[test]
fn a_value_that_is_too_large_is_not_read() {
    let item = "INSERT INTO items VALUES ('lock:x', zeroblob(3000000), 5, NULL, NULL)";
    let directory = Directory::new();
    directory.used();
    directory.sql().execute_batch(item).unwrap();
    let mutex = directory.client().mutex("x", Duration::from_secs(1)).unwrap();
    let error = mutex.owner().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(error.to_string().contains("DELETE FROM items WHERE"), "{error}");
}

#[test]
fn a_link_to_nothing_is_said_to_be_one() {
    let directory = Directory::new();
    std::os::unix::fs::symlink("nowhere", directory.file()).unwrap();
    let (kind, said) = refused(&directory.file());
    assert!(kind == ErrorKind::Protocol && said.contains("symbolic link"), "{said}");
}

#[test]
fn the_holder_of_a_lock_is_found_by_device_inode_and_range() {
    let directory = Directory::new();
    std::fs::write(directory.file(), "").unwrap();
    let file = std::fs::metadata(directory.file()).unwrap();
    let (major, minor) = (libc::major(file.dev()), libc::minor(file.dev()));
    let line = |mode: &str, pid: u32, inode: u64, range: &str| {
        format!("1: POSIX  ADVISORY  {mode} {pid} {major:02x}:{minor:02x}:{inode} {range}\n")
    };
    let inode = file.ino();
    let locks = line("READ", 1, inode, "120 120")
        + &line("WRITE", 2, inode + 1, "120 120")
        + &line("WRITE", 3, inode, "121 121")
        + "4: -> POSIX ADVISORY WRITE 4 00:00:0 0 EOF\n\nnonsense\n";
    assert_eq!(holder_in(&locks, &file, 120..=120), None);
    for range in ["120 120", "0 EOF"] {
        let locks = locks.clone() + &line("WRITE", 5, inode, range);
        assert_eq!(holder_in(&locks, &file, 120..=120), Some(5), "{range}");
    }
}

#[test]
fn limits_of_the_system_are_named() {
    let failed =
        |code: i32| Problem::Sql(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
    for (code, errno, word) in [
        (ffi::SQLITE_IOERR_SHMSIZE, libc::ENOSPC, "disk is full"),
        (ffi::SQLITE_IOERR_WRITE, libc::EDQUOT, "quota"),
        (ffi::SQLITE_IOERR_WRITE, libc::EFBIG, "ulimit -f"),
        (ffi::SQLITE_FULL, 0, "disk is full"),
    ] {
        let stop = explain(failed(code), Path::new("/nowhere/x.db"), errno);
        // Room is made, and the batch tried again.
        let Stop::Full(error) = stop else { panic!("{word}") };
        assert!(error.to_string().contains(word), "{error}");
    }
    for (code, errno, word) in [
        (ffi::SQLITE_CANTOPEN, libc::EMFILE, "ulimit -n"),
        (ffi::SQLITE_CANTOPEN, libc::ENFILE, "fs.file-max"),
        (ffi::SQLITE_IOERR_READ, libc::EIO, "Input/output error"),
    ] {
        let stop = explain(failed(code), &std::env::temp_dir().join("x.db"), errno);
        let Stop::Failed(failure) = stop else { panic!("{word}") };
        assert!(failure.error.to_string().contains(word), "{}", failure.error);
    }
}
