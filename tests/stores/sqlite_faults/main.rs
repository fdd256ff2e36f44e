//! What a file of locks must survive: writers that are killed at any moment, forks of programs
//! whose threads are in the middle of a lock, a disk that fills up, paths that lead elsewhere, and
//! hosts that hide what memlock has to know.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod host;
mod paths;

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use memlock_core::{Client, ErrorKind, Insertion, Lock, Release};
use memlock_tests::assert_safe;
use memlock_tests::chance::random;
use memlock_tests::daemon;
use memlock_tests::disk::Disk;
use memlock_tests::fork::in_a_child;
use memlock_tests::launch::{end, poll_until};
use memlock_tests::witness::Witness;

/// By which a child of a test knows what it is to do.
const ROLE: &str = "MEMLOCK_TEST_SQLITE_WRITER";
const BUSY: &str = "MEMLOCK_TEST_SQLITE_BUSY";
const FORKING: &str = "MEMLOCK_TEST_SQLITE_FORKING";
const LEASE: Duration = Duration::from_secs(30);
/// So many locks are fought for.
const NAMES: u64 = 40;
/// Ends a test that hangs.
const LIMIT: Duration = Duration::from_secs(60);

fn witness_of(directory: &Path, name: u64) -> PathBuf {
    directory.join(format!("witness-{name}"))
}

/// Not a test of its own: what the children of the others do.
#[test]
fn writer() {
    let Ok(directory) = std::env::var(ROLE) else { return };
    let directory = PathBuf::from(directory);
    let client = Client::connect(&url_in(&directory)).unwrap();
    let mut list = client.distinct_list("done").unwrap();
    let _ = list.set_up(Duration::from_secs(3600)).unwrap();
    println!("ready");
    loop {
        let name = random() % NAMES;
        let mutex = client.mutex(format!("{name}"), Duration::from_secs(1)).unwrap();
        let Some(mut lock) = mutex.try_lock().unwrap() else { continue };
        let path = witness_of(&directory, name);
        let witness = Witness::take(&path);
        match witness {
            Some(_) => Witness::note_end(&path, lock.deadline()),
            None => assert!(
                Witness::is_over(&path) || lock.remaining().is_zero(),
                "{name} is held twice"
            ),
        }
        let _ = list.insert(format!("{}", random() % 1000)).unwrap();
        drop(witness);
        let _ = lock.unlock().unwrap();
    }
}

/// Each writes two pages of 4 KiB at least.
const BUSY_ROUNDS: u64 = 4000;

/// Not a test of its own: a child that locks and unlocks as fast as it can.
#[test]
fn busy() {
    let Ok(url) = std::env::var(BUSY) else { return };
    let client = Client::connect(&url).unwrap();
    let mutex = client.mutex(format!("{}", random()), LEASE).unwrap();
    println!("ready");
    for _ in 0..BUSY_ROUNDS {
        assert_eq!(mutex.lock().unwrap().unlock().unwrap(), Release::Released);
    }
    // Nobody reads what the harness would print.
    std::process::exit(0);
}

/// How often a signal handler forks.
const MOST_FORKS: usize = 500;

/// Not a test of its own: a child that a signal handler interrupts all the time, to fork.
#[test]
fn forking_handler() {
    static FORKS: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn fork(_: libc::c_int) {
        // On a slow machine it would do nothing else for ever.
        if FORKS.fetch_add(1, Ordering::Relaxed) == MOST_FORKS {
            let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
            let never = libc::itimerval { it_interval: never, it_value: never };
            // SAFETY: the timer is valid, and this is one system call.
            unsafe { libc::setitimer(libc::ITIMER_REAL, &never, std::ptr::null_mut()) };
        }
        // SAFETY: the child does nothing but end.
        if unsafe { libc::fork() } == 0 {
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
    }
    let Ok(url) = std::env::var(FORKING) else { return };
    let client = Client::connect(&url).unwrap();
    let mutex = client.mutex("m", LEASE).unwrap();
    let often = libc::timeval { tv_sec: 0, tv_usec: 700 };
    let often = libc::itimerval { it_interval: often, it_value: often };
    // SAFETY: the handler calls only what a signal handler may call; the timer is valid. Children
    // that have ended are not waited for.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        libc::signal(libc::SIGALRM, fork as extern "C" fn(libc::c_int) as libc::sighandler_t);
        assert_eq!(libc::setitimer(libc::ITIMER_REAL, &often, std::ptr::null_mut()), 0);
    }
    for _ in 0..3000 {
        assert_eq!(mutex.lock().unwrap().unlock().unwrap(), Release::Released);
    }
    // SAFETY: nothing of this process is to be torn down under the handler.
    unsafe { libc::_exit(0) };
}

/// A file in a directory of its own.
struct File(PathBuf);

impl File {
    fn new() -> File {
        let name = format!("memlock-faults-{}-{}", std::process::id(), random());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        File(directory)
    }

    fn directory(&self) -> &Path {
        &self.0
    }

    fn url(&self) -> String {
        url_in(&self.0)
    }
}

/// For a busy machine, on which a process that has locked the file may not run for a while.
fn url_in(directory: &Path) -> String {
    format!("sqlite://{}/locks.db?io_timeout=20s", directory.display())
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Writer(Child);

impl Writer {
    fn start(file: &File) -> Writer {
        Writer::start_as("writer", ROLE, file.directory().as_os_str())
    }

    fn start_as(what: &str, role: &str, with: &OsStr) -> Writer {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([what, "--exact", "--nocapture"])
            .env(role, with)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("ready")), "{}", complaint(&mut child));
        Writer(child)
    }

    /// Waits for its end, which must be a good one.
    fn ends(&mut self) {
        let ended = poll_until(LIMIT, || self.0.try_wait().unwrap());
        assert!(ended.is_some_and(|status| status.success()), "{}", complaint(&mut self.0));
    }

    /// Kills it. It must not have ended by itself, with a complaint.
    fn kill(mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "{}", complaint(&mut self.0));
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn complaint(child: &mut Child) -> String {
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    said
}

#[test]
fn writers_that_are_killed_leave_a_whole_file_and_no_lock_that_is_held_twice() {
    const KILLS: u32 = 150;
    let file = File::new();
    let mut writers: Vec<Writer> = (0..4).map(|_| Writer::start(&file)).collect();
    for _ in 0..KILLS {
        thread::sleep(Duration::from_micros(random() % 5000));
        let victim = random() as usize % writers.len();
        writers.swap_remove(victim).kill();
        writers.push(Writer::start(&file));
    }
    writers.into_iter().for_each(Writer::kill);
    // Everything that can be read is whole, every lock comes free, and every key has one id.
    let client = Client::connect(&file.url()).unwrap();
    for name in 0..NAMES {
        let mutex = client.mutex(format!("{name}"), Duration::from_secs(1)).unwrap();
        let mut lock = mutex.lock_for(LIMIT).unwrap().expect("the dead hold it for their lease");
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
    let mut list = client.distinct_list("done").unwrap();
    let _ = list.set_up(Duration::from_secs(3600)).unwrap();
    let mut keys = std::collections::HashSet::new();
    for entry in list.entries().unwrap().unwrap() {
        assert_safe!(keys.insert(entry.unwrap().1), "a key with two ids");
    }
    assert!(matches!(list.insert("another").unwrap(), Some(Insertion::First(_))));
    println!("{KILLS} kills, {} keys", keys.len());
}

#[test]
fn children_of_a_program_whose_threads_lock_can_lock_themselves() {
    let file = File::new();
    let client = Client::connect(&file.url()).unwrap();
    let over = AtomicBool::new(false);
    let directory = file.directory();
    let hold = |client: &Client, name: u64| {
        let mutex = client.mutex(format!("{name}"), LEASE).unwrap();
        let mut lock = mutex.lock_for(LIMIT).unwrap().expect("nobody keeps it");
        let is_first = Witness::take(&witness_of(directory, name)).is_some();
        assert_safe!(is_first, "{name} is held twice");
        lock.unlock().unwrap() == Release::Released
    };
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert!(hold(&client, random() % 4));
                }
            });
        }
        for round in 0..60 {
            let is_right = in_a_child(|| {
                let both = (0..10).all(|_| hold(&client, random() % 4));
                // A child of its own, which inherits what this one has opened.
                both && in_a_child(|| hold(&client, random() % 4)) && hold(&client, 1)
            });
            assert!(is_right, "round {round}");
        }
        over.store(true, Ordering::Relaxed);
    });
    // What the children did has not cost the parent its own locks on the file.
    let other = Writer::start(&file);
    for _ in 0..500 {
        assert!(hold(&client, NAMES + 1));
    }
    other.kill();
}

/// The descriptors of the database are closed, and their numbers are those of other files.
#[test]
fn what_a_daemon_opens_later_is_left_alone() {
    let file = File::new();
    daemon::keeps_its_files_at_once(&file.url());
    daemon::keeps_its_files_after_a_pause(&file.url());
    // The file has outlived that, and SQLite's locks on it are those of this process.
    let client = Client::connect(&file.url()).unwrap();
    let _held = client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    assert!(client.mutex("m", LEASE).unwrap().try_lock().unwrap().is_none());
}

fn run(program: &str, args: &[&str]) {
    let said = Command::new(program).args(args).output().unwrap();
    assert!(said.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&said.stderr));
}

#[test]
fn a_full_disk_grants_nothing_and_loses_nothing() {
    let disk = Disk::mount().unwrap();
    let url = format!("sqlite://{}", disk.path().join("locks.db").display());
    let client = Client::connect(&url).unwrap();
    let mut held = client.mutex("held", LEASE).unwrap().try_lock().unwrap().unwrap();
    disk.fill();
    // What is in use already has some room left.
    let mut granted = Vec::new();
    let error = (0..100_000)
        .find_map(|number| {
            let mutex = client.mutex(format!("{number}"), LEASE).unwrap();
            match mutex.try_lock() {
                Ok(lock) => {
                    granted.push(lock.expect("nobody has it"));
                    None
                }
                Err(error) => Some((mutex, error)),
            }
        })
        .expect("the disk is full");
    let (refused, error) = error;
    assert_eq!(error.kind(), memlock_core::ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("full"), "{error}");
    // Another process, which opens the file anew.
    let other = Client::connect(&url).unwrap();
    let is_held = |lock: Option<Lock>| lock.is_none() || held.remaining().is_zero();
    assert_safe!(
        other.mutex("held", LEASE).unwrap().try_lock().map_or(true, is_held),
        "held twice"
    );
    disk.empty();
    let mut lock = refused.try_lock().unwrap().expect("it was not granted");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert_safe!(is_held(other.mutex("held", LEASE).unwrap().try_lock().unwrap()), "held twice");
    for lock in &mut granted {
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
    assert_eq!(held.unlock().unwrap(), Release::Released);
}

/// SQLite copies the log into the file when it has 4 MB, which a small disk has no room for.
#[test]
fn a_log_that_fills_the_disk_is_truncated() {
    let disk = Disk::mount().unwrap();
    let url = format!("sqlite://{}", disk.path().join("locks.db").display());
    // As long as it is open, the log is not removed with the last connection.
    let other = Client::connect(&url).unwrap();
    let mut held = other.mutex("held", LEASE).unwrap().try_lock().unwrap().unwrap();
    let client = Client::connect(&url).unwrap();
    let mutex = client.mutex("m", LEASE).unwrap();
    for _ in 0..2000 {
        let mut lock = mutex.try_lock().unwrap().expect("no other client locks it");
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
    assert_eq!(held.unlock().unwrap(), Release::Released);
}

/// SQLite restarts the log only when no process reads it. On a busy file there is no such moment
/// unless a checkpoint waits for one.
#[test]
fn the_log_of_a_busy_file_does_not_grow_without_bound() {
    let file = File::new();
    let log = file.directory().join("locks.db-wal");
    let url = OsString::from(file.url());
    // As long as it is open, the log is not removed with the last connection.
    let other = Client::connect(&file.url()).unwrap();
    drop(other.mutex("other", LEASE).unwrap().try_lock().unwrap());
    let mut busy = [(); 3].map(|()| Writer::start_as("busy", BUSY, &url));
    busy.iter_mut().for_each(Writer::ends);
    // It is never truncated but at a restart, so this is its greatest length.
    let length = std::fs::metadata(&log).unwrap().len();
    let written = 3 * BUSY_ROUNDS * 2 * 4096;
    assert!(length < written / 2, "{length} bytes of {written}");
    println!("{length} bytes of {written}");
}

/// A fork in the middle of a call into SQLite would leave its mutexes locked, or wait for itself.
#[test]
fn a_signal_handler_may_fork_at_any_moment() {
    let file = File::new();
    let mut child = Command::new(std::env::current_exe().unwrap())
        // With a second thread, glibc's fork waits for the locks of malloc, which the interrupted
        // thread may hold.
        .args(["forking_handler", "--exact", "--nocapture", "--test-threads=1"])
        .env(FORKING, file.url())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let ended = poll_until(LIMIT, || child.try_wait().unwrap());
    end(&mut child);
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

/// The log of a killed process takes the room that its index needs.
#[test]
fn a_log_that_was_left_on_a_full_disk_makes_room() {
    let (there, disk) = (Disk::mount().unwrap(), Disk::mount().unwrap());
    let file = there.path().join("locks.db");
    let client = Client::connect(&format!("sqlite://{}", file.display())).unwrap();
    let mut held = client.mutex("held", LEASE).unwrap().try_lock().unwrap().unwrap();
    // So many that the log was copied into the file before: it need not grow.
    let mutex = client.mutex("m", LEASE).unwrap();
    for _ in 0..200 {
        let mut lock = mutex.try_lock().unwrap().expect("no other client locks it");
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
    // As a process that is killed leaves it: without the index.
    for name in ["locks.db", "locks.db-wal"] {
        std::fs::copy(there.path().join(name), disk.path().join(name)).unwrap();
    }
    disk.fill();
    let url = format!("sqlite://{}", disk.path().join("locks.db").display());
    let other = Client::connect(&url).unwrap();
    let theirs = other.mutex("held", LEASE).unwrap().try_lock().unwrap();
    assert_safe!(theirs.is_none() || held.remaining().is_zero(), "held twice");
    assert!(other.mutex("m", LEASE).unwrap().try_lock().unwrap().is_some());
    assert_eq!(held.unlock().unwrap(), Release::Released);
}

/// As containers have it: without the log, which is beside the file where it comes from.
#[test]
fn a_file_that_is_mounted_by_itself_is_refused() {
    let (here, there) = (Disk::mount().unwrap(), Disk::mount().unwrap());
    let (file, mounted) = (here.path().join("locks.db"), there.path().join("locks.db"));
    let client = Client::connect(&format!("sqlite://{}", file.display())).unwrap();
    let held = client.mutex("m", LEASE).unwrap().try_lock().unwrap();
    std::fs::write(&mounted, "").unwrap();
    run("mount", &["--bind", file.to_str().unwrap(), mounted.to_str().unwrap()]);
    let other = Client::connect(&format!("sqlite://{}", mounted.display())).unwrap();
    let error = other.mutex("m", LEASE).unwrap().try_lock().unwrap_err();
    assert!(error.to_string().contains("mount the directory"), "{error}");
    run("umount", &[mounted.to_str().unwrap()]);
    assert!(held.is_some());
}

#[test]
fn a_disk_that_is_read_only_is_refused_with_what_to_do() {
    let disk = Disk::mount().unwrap();
    let path = disk.path().to_str().unwrap();
    let url = format!("sqlite://{path}/locks.db");
    run("mount", &["-o", "remount,ro", path]);
    let error = Client::connect(&url).unwrap().mutex("m", LEASE).unwrap().try_lock().unwrap_err();
    assert!(error.to_string().contains("read-only"), "{error}");
    run("mount", &["-o", "remount,rw", path]);
    let client = Client::connect(&url).unwrap();
    assert!(client.mutex("m", LEASE).unwrap().try_lock().unwrap().is_some());
    drop(client);
    // A file that is there. For root, nothing but the mount forbids to write it.
    run("mount", &["-o", "remount,ro", path]);
    let error = Client::connect(&url).unwrap().mutex("m", LEASE).unwrap().try_lock().unwrap_err();
    assert!(error.to_string().contains("read-only"), "{error}");
    assert!(!error.to_string().contains("user"), "{error}");
}

/// With room for the lock, and for none of the files, for the file alone, or for it and its log.
#[test]
fn a_disk_without_inodes_is_not_said_to_be_full() {
    for count in 0..=2 {
        let disk = Disk::for_files(count).unwrap();
        let url = format!("sqlite://{}/locks.db", disk.path().display());
        let client = Client::connect(&url).unwrap();
        let error = client.mutex("m", LEASE).unwrap().try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("no inode left"), "{count}: {error}");
    }
    let disk = Disk::for_files(3).unwrap();
    let client = Client::connect(&format!("sqlite://{}/locks.db", disk.path().display())).unwrap();
    assert!(client.mutex("m", LEASE).unwrap().try_lock().unwrap().is_some());
}
