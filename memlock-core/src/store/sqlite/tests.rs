use std::collections::HashSet;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::SystemClock;
use crate::error::{ErrorKind, Result};
use crate::{Client, Extension, Release, SetUp};

const LEASE: Duration = Duration::from_secs(30);

/// The directory of one test.
pub(super) struct Directory(pub(super) PathBuf);

impl Directory {
    pub(super) fn new() -> Directory {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("memlock-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Directory(path)
    }

    pub(super) fn file(&self) -> PathBuf {
        self.0.join("locks.db")
    }

    /// Has the file created.
    pub(super) fn used(&self) {
        assert!(try_lock(&format!("sqlite://{}", self.file().display())).unwrap());
    }

    pub(super) fn client(&self) -> Client {
        Client::connect(&format!("sqlite://{}", self.file().display())).unwrap()
    }

    /// A client that does not share its connection with [`Directory::client`], as those of other
    /// processes do not.
    fn other_client(&self) -> Client {
        let url = format!("sqlite://{}?another_process=yes", self.file().display());
        Client::connect(&url).unwrap()
    }

    pub(super) fn sql(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.file()).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn try_lock(url: &str) -> Result<bool> {
    let client = Client::connect(url)?;
    client.mutex("x", LEASE)?.try_lock().map(|lock| lock.is_some())
}

pub(super) fn refused(path: &Path) -> (ErrorKind, String) {
    let error = try_lock(&format!("sqlite://{}", path.display())).unwrap_err();
    (error.kind(), error.to_string())
}

#[test]
fn urls_name_absolute_and_relative_paths() {
    for (location, path) in
        [("///a/b.db", "/a/b.db"), ("/a/b.db", "/a/b.db"), ("///a%20b%3F.db", "/a b?.db")]
    {
        assert_eq!(super::path_of(location).unwrap(), Path::new(path));
    }
    let here = std::env::current_dir().unwrap();
    assert_eq!(super::path_of("locks.db").unwrap(), here.join("locks.db"));
    for bad in ["", "//", "///", "//host/a.db", "///a/", "a%2", "a%00b", ":memory:"] {
        assert!(super::path_of(bad).is_err(), "{bad:?}");
    }
    assert!(Client::connect("sqlite:x?network=maybe").is_err());
}

#[test]
fn only_its_owner_can_use_a_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let directory = Directory::new();
    let client = directory.client();
    assert!(client.mutex("x", LEASE).unwrap().try_lock().unwrap().is_some());
    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        let found = std::fs::metadata(directory.0.join(name)).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o600, "{name}");
    }
}

#[test]
fn what_is_no_file_of_ours_is_refused_with_what_to_do() {
    let directory = Directory::new();
    let (kind, said) = refused(&directory.0.join("nowhere/locks.db"));
    assert!(kind == ErrorKind::Protocol && said.contains("create it"), "{said}");
    let (kind, said) = refused(&directory.0);
    assert!(kind == ErrorKind::Protocol && said.contains("directory"), "{said}");
    std::fs::write(directory.file(), "this is no database, but long enough to be one").unwrap();
    let (kind, said) = refused(&directory.file());
    assert!(kind == ErrorKind::Protocol && said.contains("no SQLite database"), "{said}");
    std::fs::remove_file(directory.file()).unwrap();
    directory.sql().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let (kind, said) = refused(&directory.file());
    assert!(kind == ErrorKind::Protocol && said.contains("another program"), "{said}");
    std::fs::remove_file(directory.file()).unwrap();
    assert!(try_lock(&format!("sqlite://{}", directory.file().display())).unwrap());
    directory.sql().execute_batch("PRAGMA user_version = 9").unwrap();
    let (kind, said) = refused(&directory.file());
    assert!(kind == ErrorKind::Protocol && said.contains("newer memlock"), "{said}");
    assert!(said.contains(&*directory.file().to_string_lossy()), "{said}");
}

/// With another name SQLite would use another log, so that each name could grant the same lock.
#[test]
fn a_file_with_two_names_is_refused_by_both() {
    let directory = Directory::new();
    assert!(try_lock(&format!("sqlite://{}", directory.file().display())).unwrap());
    let other = directory.0.join("other.db");
    std::fs::hard_link(directory.file(), &other).unwrap();
    for name in [&directory.file(), &other] {
        let (kind, said) = refused(name);
        assert!(kind == ErrorKind::Protocol && said.contains("2 names"), "{said}");
    }
    std::fs::remove_file(&other).unwrap();
    std::os::unix::fs::symlink(directory.file(), &other).unwrap();
    let held = directory.client().mutex("m", LEASE).unwrap().try_lock().unwrap();
    assert!(held.is_some(), "it has one name again");
    let through_link = Client::connect(&format!("sqlite://{}", other.display())).unwrap();
    assert!(through_link.mutex("m", LEASE).unwrap().try_lock().unwrap().is_none());
}

#[test]
fn a_reboot_frees_what_was_held_and_keeps_lists_and_fences() {
    let directory = Directory::new();
    let client = directory.client();
    let (mutex, other) = (client.mutex("m", LEASE).unwrap(), client.mutex("never", LEASE).unwrap());
    let mut held = mutex.try_lock().unwrap().unwrap();
    let permits = client.semaphore("s", 1, LEASE).unwrap();
    let permit = permits.try_acquire().unwrap();
    let mut list = client.distinct_list("l").unwrap();
    assert_eq!(list.set_up(Duration::from_secs(60)).unwrap(), SetUp::Created);
    list.insert("k").unwrap();
    let last = other.try_lock().unwrap().unwrap().fence();
    let base = |sql: &rusqlite::Connection| {
        sql.query_row("SELECT base FROM state", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!(base(&directory.sql()), 0);
    // As after a boot that took two days longer.
    let before =
        "UPDATE state SET boot = 'the boot before', horizon = horizon + 2 * 86400 * 1000000000";
    directory.sql().execute_batch(before).unwrap();
    let after = directory.other_client();
    let next = after.mutex("m", LEASE).unwrap().try_lock().unwrap().expect("it is free");
    assert!(base(&directory.sql()) > 0);
    assert!(next.fence() > last && next.fence() > held.fence());
    assert!(after.semaphore("s", 1, LEASE).unwrap().try_acquire().unwrap().is_some());
    let mut list = after.distinct_list("l").unwrap();
    assert_eq!(list.set_up(Duration::from_secs(60)).unwrap(), SetUp::Joined);
    assert_eq!(list.count().unwrap(), Some(1));
    let left: i64 = directory
        .sql()
        .query_row("SELECT max(expires) FROM items WHERE key LIKE 'list:%'", [], |row| row.get(0))
        .unwrap();
    let now = super::time::BootClock::new(Arc::new(SystemClock)).unwrap().millis();
    assert!((left - now - 60_000).abs() < 30_000, "{left} at {now}");
    // All processes from before the reboot are gone; a holder that still existed would find out.
    assert_eq!(held.extend(LEASE).unwrap(), Extension::Lost);
    drop(permit);
    drop(next);
}

#[test]
fn a_file_that_was_replaced_is_another_life() {
    let directory = Directory::new();
    let client = directory.client();
    let mutex = client.mutex("m", LEASE).unwrap();
    let mut held = mutex.try_lock().unwrap().unwrap();
    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        std::fs::remove_file(directory.0.join(name)).unwrap();
    }
    let mut next = directory.other_client().mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    std::thread::sleep(super::connection::LOOK_EVERY * 2);
    assert_eq!(held.unlock().unwrap(), Release::Lost);
    assert!(mutex.try_lock().unwrap().is_none());
    assert_eq!(next.unlock().unwrap(), Release::Released);
}

/// As by a program that cleans up a directory. Other processes do not see the contents of the log.
#[test]
fn a_log_that_was_removed_is_noticed() {
    let directory = Directory::new();
    let mutex = directory.client().mutex("m", LEASE).unwrap();
    let mut held = mutex.try_lock().unwrap().unwrap();
    for name in ["locks.db-wal", "locks.db-shm"] {
        std::fs::remove_file(directory.0.join(name)).unwrap();
    }
    std::thread::sleep(super::connection::LOOK_EVERY * 2);
    assert_eq!(held.unlock().unwrap(), Release::Lost);
    assert!(directory.0.join("locks.db-wal").exists(), "what is written now is seen by others");
}

/// Another process would make a new index, and both would write to one log.
#[test]
fn an_index_that_was_removed_is_noticed() {
    let directory = Directory::new();
    let mutex = directory.client().mutex("m", LEASE).unwrap();
    let mut held = mutex.try_lock().unwrap().unwrap();
    let index = directory.0.join("locks.db-shm");
    std::fs::remove_file(&index).unwrap();
    std::thread::sleep(super::connection::LOOK_EVERY * 2);
    assert!(held.extend(LEASE).is_ok());
    assert!(index.exists(), "what is written now is seen by others");
    assert!(directory.other_client().mutex("m", LEASE).unwrap().try_lock().unwrap().is_none());
}

#[test]
fn a_path_of_any_bytes_is_watched_too() {
    let directory = Directory::new();
    let url = format!("sqlite://{}/%FF.db", directory.0.display());
    let mutex = Client::connect(&url).unwrap().mutex("m", LEASE).unwrap();
    let mut held = mutex.try_lock().unwrap().unwrap();
    for end in [&b"-wal"[..], b"-shm"] {
        let name = std::ffi::OsString::from_vec([&b"\xff.db"[..], end].concat());
        std::fs::remove_file(directory.0.join(name)).unwrap();
    }
    std::thread::sleep(super::connection::LOOK_EVERY * 2);
    assert_eq!(held.unlock().unwrap(), Release::Lost);
}

/// Closing any descriptor of a file drops all locks that the process has on it, and then another
/// program could remove the log of the file.
#[test]
fn opening_a_second_client_keeps_the_locks_on_the_file() {
    let directory = Directory::new();
    let one = directory.client();
    let _held = one.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    let inode = std::fs::metadata(directory.file()).unwrap().ino().to_string();
    let locks = || {
        let all = std::fs::read_to_string("/proc/locks").unwrap();
        let own = std::process::id().to_string();
        let is_ours = |line: &&str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(4) == Some(&&*own)
                && words.get(5).is_some_and(|file| file.rsplit(':').next() == Some(&inode))
        };
        // The kernel may show a line twice while others come and go.
        all.lines()
            .filter(is_ours)
            .map(|line| line.split_once(':').map(|(_, lock)| lock))
            .collect::<HashSet<_>>()
            .len()
    };
    let before = locks();
    assert!(before > 0);
    let others = [directory.client(), directory.other_client()];
    for other in &others {
        assert!(other.mutex("m", LEASE).unwrap().try_lock().unwrap().is_none());
        assert_eq!(locks(), before);
    }
    drop(others);
    assert_eq!(locks(), before);
}

/// A file that is locked by another process costs each thread its own time limit only.
#[test]
fn threads_of_one_client_wait_for_the_file_at_the_same_time() {
    let directory = Directory::new();
    drop(directory.client().mutex("m", LEASE).unwrap().try_lock().unwrap());
    let url = format!("sqlite://{}?io_timeout=200ms", directory.file().display());
    let client = Client::connect(&url).unwrap();
    drop(client.mutex("m", LEASE).unwrap().try_lock().unwrap());
    let blocker = directory.sql();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let began = std::time::Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..60 {
            scope.spawn(|| {
                let tried = client.mutex("m", LEASE).unwrap().try_lock();
                assert_eq!(tried.unwrap_err().kind(), ErrorKind::Unreachable);
            });
        }
    });
    // One after another, they would take 60 times 200 ms, and each may try three times.
    assert!(began.elapsed() < Duration::from_millis(60 * 200), "{:?}", began.elapsed());
}

#[test]
fn clients_of_one_file_share_a_connection_by_whatever_name() {
    let directory = Directory::new();
    let (one, other) = (directory.client(), directory.0.join("link.db"));
    let _held = one.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    std::os::unix::fs::symlink(directory.file(), &other).unwrap();
    let link = Client::connect(&format!("sqlite://{}", other.display())).unwrap();
    assert!(link.mutex("m", LEASE).unwrap().try_lock().unwrap().is_none());
    let connections = || descriptors_in(&directory.0.join("locks.db"));
    assert_eq!(connections(), 1);
    // Each client opens it again by its own path.
    for client in [&link, &one] {
        std::fs::remove_file(directory.0.join("locks.db-shm")).unwrap();
        std::thread::sleep(super::connection::LOOK_EVERY * 2);
        assert!(client.mutex("m", LEASE).unwrap().try_lock().unwrap().is_none());
    }
    assert_eq!(connections(), 1);
    // A link that leads elsewhere by now is followed, and no file is created behind it.
    std::fs::remove_file(&other).unwrap();
    std::os::unix::fs::symlink(directory.0.join("other.db"), &other).unwrap();
    std::thread::sleep(super::connection::LOOK_EVERY * 2);
    assert!(link.mutex("m", LEASE).unwrap().try_lock().is_err());
    assert!(one.mutex("m", LEASE).unwrap().try_lock().unwrap().is_none());
    assert!(!directory.0.join("other.db").exists());
}

/// How many open files of this process have a path that begins with this one.
pub(super) fn descriptors_in(path: &Path) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let target =
        |link: std::io::Result<std::fs::DirEntry>| std::fs::read_link(link.ok()?.path()).ok();
    links.filter_map(target).filter(|file| file.starts_with(path)).count()
}

#[test]
fn the_last_client_that_is_closed_closes_the_file() {
    let directory = Directory::new();
    let open = || descriptors_in(&directory.0);
    let clients = [directory.client(), directory.client()];
    for client in &clients {
        drop(client.mutex("m", LEASE).unwrap().try_lock().unwrap());
    }
    assert!(open() > 0);
    clients[0].close();
    assert!(open() > 0);
    clients[1].close();
    assert_eq!(open(), 0);
    drop(clients[0].mutex("m", LEASE).unwrap().try_lock());
    clients[0].close();
    assert_eq!(open(), 0);
}

#[test]
fn what_has_expired_is_swept_out() {
    let directory = Directory::new();
    let client = directory.client();
    let mutex = client.mutex("m", LEASE).unwrap();
    for _ in 0..3 {
        let mut lock = mutex.try_lock().unwrap().unwrap();
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
    let sql = directory.sql();
    let mut insert = sql
        .prepare("INSERT INTO items (key, value, number, expires) VALUES (?1, x'', 1, ?2)")
        .unwrap();
    for number in 0..4000 {
        insert.execute(rusqlite::params![format!("lock:old {number}"), 1]).unwrap();
    }
    insert.execute(rusqlite::params!["lock:alive", i64::MAX]).unwrap();
    for _ in 0..1600 {
        let mut lock = mutex.try_lock().unwrap().unwrap();
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
    let left: i64 = sql.query_row("SELECT count(*) FROM items", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 1);
}

/// As `memlock run` does, each process of which stores an item or two.
#[test]
fn what_has_expired_is_swept_out_by_processes_that_store_little() {
    let directory = Directory::new();
    let url = format!("sqlite://{}", directory.file().display());
    assert!(try_lock(&url).unwrap());
    let sql = directory.sql();
    let dead = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4000)
        INSERT INTO items (key, value, number, expires) SELECT 'lock:old ' || i, x'', 1, 1 FROM n";
    sql.execute_batch(dead).unwrap();
    let foreign = "INSERT INTO items (key, value, number, expires)
        VALUES (x'00', x'', 1, 1), (CAST(x'ff' AS TEXT), x'', 1, 1)";
    sql.execute_batch(foreign).unwrap();
    for _ in 0..6 {
        assert!(try_lock(&url).unwrap());
    }
    let left = "SELECT count(*) FROM items WHERE key LIKE 'lock:old%'";
    assert_eq!(sql.query_row(left, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
}

#[test]
fn a_file_that_another_process_keeps_locked_is_unreachable() {
    let directory = Directory::new();
    let url = format!("sqlite://{}?io_timeout=200ms", directory.file().display());
    assert!(try_lock(&url).unwrap());
    let sql = directory.sql();
    sql.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = try_lock(&url).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("kept it locked"), "{error}");
    sql.execute_batch("ROLLBACK").unwrap();
    assert!(!try_lock(&url).unwrap() || try_lock(&url).is_ok());
}

#[test]
fn local_file_systems_are_no_networks() {
    assert_eq!(super::file::network_of(&std::env::temp_dir()), None);
    assert_eq!(super::file::network_of(Path::new("/proc")), None);
    assert_eq!(super::file::network_of(Path::new("/nowhere")), None);
}

#[cfg(feature = "admin")]
#[test]
fn rows_of_other_programs_are_listed_or_skipped() {
    use crate::store::admin::Content;
    let directory = Directory::new();
    directory.used();
    directory
        .sql()
        .execute_batch(
            "INSERT INTO items VALUES
                 ('lock:text', 'a text', 5, NULL, NULL), ('lock:number', 42, 5, 'never', NULL),
                 ('lock:real', 1.5, 'x', 1e300, NULL), ('lock:large', zeroblob(5000000), 5, NULL, NULL),
                 (x'6c6f636b3a61', x'', 5, NULL, NULL), (cast(x'6c6f636b3aff' AS TEXT), x'', 5, NULL, NULL)",
        )
        .unwrap();
    let client = directory.client();
    let mut admin = client.admin(0).unwrap();
    let mut keys = admin.keys(&|key| key.starts_with("lock:")).unwrap();
    keys.sort();
    assert_eq!(keys, ["lock:large", "lock:number", "lock:real", "lock:text"]);
    let values = admin.values(&keys).unwrap();
    let contents: Vec<Content> = values.into_iter().map(|value| value.unwrap().0).collect();
    let bytes = |text: &str| Content::Bytes(text.into());
    let large = Content::TooLarge(5_000_000);
    assert_eq!(contents, [large, bytes("42"), bytes("1.5"), bytes("a text")]);
}

#[cfg(feature = "admin")]
#[test]
fn tools_create_no_file_and_know_that_there_is_none() {
    use crate::store::admin::Verdict;
    let directory = Directory::new();
    let client = directory.client();
    assert!(client.missing(0).unwrap().contains("the first lock creates it"));
    let found = client.admin(0).unwrap().health(LEASE).unwrap();
    let file = found.iter().find(|finding| finding.what == "file").unwrap();
    assert_eq!(file.verdict, Verdict::Note, "{file:?}");
    assert!(found.iter().all(|finding| finding.verdict <= Verdict::Note), "{found:?}");
    assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 0);
    directory.used();
    assert_eq!(client.missing(0), None);
    let nowhere = Client::connect("sqlite:///nowhere/x.db").unwrap();
    assert_eq!(nowhere.missing(0), None, "it could not be created either");
}

#[cfg(feature = "admin")]
#[test]
fn a_directory_that_does_not_give_its_group_is_found() {
    use crate::store::admin::Verdict;
    use std::os::unix::fs::PermissionsExt;
    let directory = Directory::new();
    directory.used();
    let verdict = || {
        let found = directory.client().admin(0).unwrap().health(LEASE).unwrap();
        found.into_iter().find(|finding| finding.what == "directory").unwrap().verdict
    };
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set(&directory.0, 0o770);
    assert_eq!(verdict(), Verdict::Good, "one user uses it");
    set(&directory.file(), 0o660);
    assert_eq!(verdict(), Verdict::Warning);
    set(&directory.0, 0o2770);
    assert_eq!(verdict(), Verdict::Good);
}
