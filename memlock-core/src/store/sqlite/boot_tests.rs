//! Reboots, containers and the horizon, on a clock that the tests set.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::connection::{self, Connection};
use super::errors::Stop;
use super::file::Location;
use super::fork_safety;
use super::tests::Directory;
use super::time::{BootClock, BootId};
use crate::clock::{Clock, Moment, SystemClock};
use crate::name::{Key, Keyspace};
use crate::store::{Expiry, Op, Reply, Returns};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// The clocks of a host.
#[derive(Debug)]
struct Clocks {
    boot: AtomicU64,
    wall: AtomicU64,
}

impl Clocks {
    /// After this time in a boot, and on a day long ago.
    fn at(since_boot: Duration) -> Arc<Clocks> {
        let clocks = Clocks { boot: AtomicU64::new(0), wall: AtomicU64::new(1_000_000) };
        clocks.go(since_boot);
        Arc::new(clocks)
    }

    fn go(&self, by: Duration) {
        self.boot.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
        self.wall.fetch_add(by.as_secs(), Ordering::Relaxed);
    }

    fn step_wall(&self, by: Duration) {
        self.wall.fetch_add(by.as_secs(), Ordering::Relaxed);
    }
}

impl Clock for Clocks {
    fn now(&self) -> Moment {
        // Time passes between any two readings.
        let nanos = self.boot.fetch_add(1000, Ordering::Relaxed);
        Moment::from_boot(Duration::from_nanos(nanos))
    }

    fn unix_seconds(&self) -> u64 {
        self.wall.load(Ordering::Relaxed)
    }

    fn sleep(&self, duration: Duration) {
        self.go(duration);
    }

    fn random(&self, bytes: &mut [u8]) -> std::io::Result<()> {
        SystemClock.random(bytes)
    }
}

fn kernel(id: &str) -> BootId {
    BootId::Kernel(id.to_owned())
}

fn container(id: &str) -> BootId {
    BootId::Container(id.to_owned())
}

/// A process that has opened the file.
struct Process {
    connection: Option<Connection>,
    place: Location,
    clock: BootClock,
    keys: Keyspace,
}

impl Process {
    fn start(directory: &Directory, clocks: &Arc<Clocks>, id: BootId) -> Process {
        Process::with_prefix(directory, clocks, id, "")
    }

    fn with_prefix(
        directory: &Directory,
        clocks: &Arc<Clocks>,
        id: BootId,
        prefix: &str,
    ) -> Process {
        let clocks = Arc::clone(clocks) as Arc<dyn Clock>;
        let mut clock = BootClock::new(clocks).unwrap();
        clock.id = Some(id);
        let mut process = Process {
            connection: None,
            place: Location {
                path: directory.file(),
                trusts_networks: false,
                is_of_another_process: true,
            },
            clock,
            keys: Keyspace::new(prefix).unwrap(),
        };
        assert!(!process.has(&process.keys.lock(b"a name to open the file by")));
        process
    }

    fn run(&mut self, op: Op<'_>) -> Reply {
        for _ in 0..10 {
            let _call = fork_safety::enter();
            let Process { connection, place, clock, keys } = self;
            let id = place.prepare().unwrap();
            match connection::run(connection, id, place, clock, keys, &[op]) {
                Ok(mut replies) => return replies.remove(0),
                Err(Stop::Busy | Stop::BusyOpening) => {}
                Err(Stop::Failed(failure)) => panic!("{}", failure.error),
                Err(Stop::Full(error)) => panic!("{error}"),
            }
        }
        panic!("nothing else has locked the file");
    }

    /// The fence of the new item.
    fn add(&mut self, key: &Key, expiry: Expiry) -> Option<u64> {
        match self.run(Op::add(key, b"1", expiry, Returns::Fence)) {
            Reply::Stored(stored) => Some(stored.fence),
            Reply::Exists => None,
            other => panic!("{other:?}"),
        }
    }

    /// The fence of the lock, if it was free.
    fn lock(&mut self, name: &str, lease: Duration) -> Option<u64> {
        self.add(&self.keys.lock(name.as_bytes()), Expiry::After(lease))
    }

    /// The fence of a lock that is held for no time.
    fn fence(&mut self) -> u64 {
        let key = self.keys.lock(b"fence");
        let Reply::Stored(stored) = self.run(hold(&key)) else {
            panic!("the lock is free");
        };
        assert_eq!(self.run(Op::Delete { key: &key, version: stored.version }), Reply::Deleted);
        stored.fence
    }

    fn has(&mut self, key: &Key) -> bool {
        matches!(self.run(Op::get(key)), Reply::Value(_))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _call = fork_safety::enter();
        self.connection = None;
    }
}

fn hold(key: &Key) -> Op<'_> {
    Op::add(key, b"", Expiry::After(HOUR), Returns::Fence)
}

#[test]
fn only_lists_and_what_never_expires_outlive_a_reboot() {
    let directory = Directory::new();
    let clocks = Clocks::at(HOUR);
    for prefix in ["", "playlist:", "list:"] {
        let mut process = Process::with_prefix(&directory, &clocks, kernel("1"), prefix);
        let keys = process.keys.clone();
        for gone in ["m", "list:m", "playlist:7"] {
            process.lock(gone, DAY).unwrap();
            process.add(&keys.lock(gone.as_bytes()).waiters(), Expiry::After(DAY)).unwrap();
            process.add(&keys.semaphore(gone.as_bytes()), Expiry::After(DAY)).unwrap();
        }
        process.add(&keys.session(b"l"), Expiry::After(DAY)).unwrap();
        process.add(&keys.list_item('k', "5a", b"key"), Expiry::After(DAY)).unwrap();
        process.add(&keys.exact(b"counter").unwrap(), Expiry::Never).unwrap();
    }
    let clocks = Clocks::at(MINUTE);
    clocks.step_wall(2 * HOUR);
    for prefix in ["other:", "", "playlist:", "list:"] {
        let mut process = Process::with_prefix(&directory, &clocks, kernel("2"), prefix);
        let keys = process.keys.clone();
        for gone in ["m", "list:m", "playlist:7"] {
            let lock = keys.lock(gone.as_bytes());
            for key in [lock.waiters(), lock, keys.semaphore(gone.as_bytes())] {
                assert!(!process.has(&key), "{key}");
            }
        }
        let lives_on = prefix != "other:";
        assert_eq!(process.has(&keys.session(b"l")), lives_on);
        assert_eq!(process.has(&keys.list_item('k', "5a", b"key")), lives_on);
        assert_eq!(process.has(&keys.exact(b"counter").unwrap()), lives_on);
    }
}

#[test]
fn a_container_with_its_own_boot_id_frees_nothing_after_a_step_of_the_wall_clock() {
    let directory = Directory::new();
    let clocks = Clocks::at(2 * DAY);
    let mut host = Process::start(&directory, &clocks, kernel("1"));
    host.lock("m", HOUR).unwrap();
    let mut last = host.fence();
    for round in 0..3 {
        clocks.step_wall(MINUTE);
        clocks.go(MINUTE);
        let mut guest = Process::start(&directory, &clocks, container(&format!("c{round}")));
        assert_eq!(guest.lock("m", HOUR), None, "round {round}");
        // The processes that have the file open continue, with fences that rise from one to the
        // other.
        for _ in 0..3 {
            for process in [&mut guest, &mut host] {
                let fence = process.fence();
                assert!(fence > last, "{fence} after {last}");
                last = fence;
            }
        }
        // Another process of the same container, and of the host.
        for id in [container(&format!("c{round}")), kernel("1")] {
            assert_eq!(Process::start(&directory, &clocks, id).lock("m", HOUR), None);
        }
    }
}

/// What an open connection does with an old base, apart from adding.
#[test]
fn a_number_of_an_old_base_is_not_stored_by_a_change_either() {
    let directory = Directory::new();
    let clocks = Clocks::at(2 * DAY);
    let mut host = Process::start(&directory, &clocks, kernel("1"));
    let key = host.keys.lock(b"m");
    let Reply::Stored(held) = host.run(hold(&key)) else { panic!("it is free") };
    let last = Process::start(&directory, &clocks, container("c")).fence();
    let changed = host.run(Op::CompareAndSet {
        key: &key,
        version: held.version,
        value: b"1",
        expiry: Expiry::After(HOUR),
        returns: Returns::Fence,
    });
    assert!(matches!(changed, Reply::Stored(stored) if stored.fence > last), "{changed:?}");
}

/// After a real reboot a container opens the file first; then a process of the host.
#[test]
fn the_host_frees_nothing_that_a_container_has_locked_since_the_reboot() {
    for (created, used) in [(MINUTE, 10 * MINUTE), (10 * MINUTE, 30 * MINUTE), (DAY, 2 * DAY)] {
        let directory = Directory::new();
        let clocks = Clocks::at(created);
        let mut process = Process::start(&directory, &clocks, kernel("1"));
        clocks.go(used - created);
        let last = process.fence();
        drop(process);
        let clocks = Clocks::at(20 * MINUTE);
        let mut guest = Process::start(&directory, &clocks, container("c"));
        assert!(guest.lock("m", HOUR).unwrap() > last);
        let last = guest.fence();
        let mut host = Process::start(&directory, &clocks, kernel("2"));
        assert_eq!(host.lock("m", HOUR), None, "after {used:?}");
        assert!(host.fence() > last);
    }
}

#[test]
fn a_reboot_that_the_clock_proves_frees_locks_in_a_container_too() {
    let directory = Directory::new();
    let clocks = Clocks::at(10 * MINUTE);
    let mut guest = Process::start(&directory, &clocks, container("c1"));
    let last = guest.lock("m", DAY).unwrap();
    // Its number is ahead of the new clock.
    let clocks = Clocks::at(9 * MINUTE);
    let mut guest = Process::start(&directory, &clocks, container("c2"));
    let next = guest.lock("m", DAY).expect("the host was rebooted");
    assert!(next > last);
}

/// Each boot of a host without a battery-backed clock begins at the same time by its wall clock.
#[test]
fn fences_rise_and_locks_are_freed_where_each_boot_begins_at_the_same_time() {
    type Ids = [fn(&str) -> BootId; 2];
    let all: [Ids; 4] =
        [[kernel, kernel], [kernel, container], [container, kernel], [container, container]];
    for [first, second] in all {
        for (before, after) in [(9 * MINUTE, MINUTE), (MINUTE, 9 * MINUTE), (2 * DAY, MINUTE)] {
            let directory = Directory::new();
            let clocks = Clocks::at(MINUTE);
            let mut process = Process::start(&directory, &clocks, first("1"));
            clocks.go(before);
            process.lock("m", 5 * MINUTE).unwrap();
            let last = process.fence();
            drop(process);
            let clocks = Clocks::at(after);
            let mut process = Process::start(&directory, &clocks, second("2"));
            assert!(process.fence() > last);
            // If the reboot is not proven, the lock is free after its lease at the latest.
            clocks.go(5 * MINUTE + Duration::from_secs(1));
            assert!(process.lock("m", HOUR).is_some());
        }
    }
    let directory = Directory::new();
    let mut process = Process::start(&directory, &Clocks::at(MINUTE), kernel("1"));
    process.lock("m", DAY).unwrap();
    let mut process = Process::start(&directory, &Clocks::at(MINUTE), kernel("2"));
    assert!(process.lock("m", DAY).is_some(), "the kernel's boot id proves it");
}

/// As in a virtual machine that continues from an earlier snapshot of its memory.
#[test]
fn fences_rise_where_the_clock_of_a_boot_was_set_back() {
    let directory = Directory::new();
    let mut process = Process::start(&directory, &Clocks::at(2 * DAY), kernel("1"));
    process.lock("m", HOUR).unwrap();
    let last = process.fence();
    let mut process = Process::start(&directory, &Clocks::at(DAY), kernel("1"));
    assert_eq!(process.lock("m", HOUR), None, "its holder may have continued, too");
    assert!(process.fence() > last);
}

thread_local! {
    /// How often this thread has synced a file to the disk.
    static SYNCS: Cell<usize> = const { Cell::new(0) };
}

fn sync(call: libc::c_long, file: libc::c_int) -> libc::c_int {
    SYNCS.set(SYNCS.get() + 1);
    // SAFETY: the kernel checks the descriptor.
    unsafe { libc::syscall(call, file) as libc::c_int }
}

/// Takes the place of the C library's function for this program.
// SAFETY: it does what that function does.
#[unsafe(no_mangle)]
extern "C" fn fsync(file: libc::c_int) -> libc::c_int {
    sync(libc::SYS_fsync, file)
}

/// As [`fsync`].
// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn fdatasync(file: libc::c_int) -> libc::c_int {
    sync(libc::SYS_fdatasync, file)
}

fn horizon(directory: &Directory) -> u64 {
    let read = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
    directory.sql().query_row("SELECT horizon FROM state", [], read).unwrap() as u64
}

#[test]
fn the_horizon_is_moved_in_time_and_synced() {
    let directory = Directory::new();
    let clocks = Clocks::at(DAY);
    let before = SYNCS.get();
    let mut process = Process::start(&directory, &clocks, kernel("1"));
    assert!(SYNCS.get() > before, "a new file is synced");
    let first = horizon(&directory);
    let before = SYNCS.get();
    for _ in 0..29 {
        process.fence();
        clocks.go(MINUTE);
    }
    assert_eq!((horizon(&directory), SYNCS.get()), (first, before), "nothing waits for the disk");
    for _ in 0..3 {
        clocks.go(MINUTE);
        process.fence();
    }
    assert!(horizon(&directory) > first + (20 * MINUTE).as_nanos() as u64);
    assert!(SYNCS.get() > before, "a power failure does not take it back");
    // A process that was stopped for longer than the horizon was ahead.
    let moved = horizon(&directory);
    clocks.go(3 * HOUR);
    let before = SYNCS.get();
    let fence = process.fence();
    assert!(fence > moved && fence < horizon(&directory));
    assert!(SYNCS.get() > before);
    // A process that has opened the file adopts what another one has moved.
    let mut other = Process::start(&directory, &clocks, kernel("1"));
    clocks.go(40 * MINUTE);
    process.fence();
    process.fence();
    let (moved, before) = (horizon(&directory), SYNCS.get());
    assert!(moved > fence + (90 * MINUTE).as_nanos() as u64);
    for _ in 0..3 {
        other.fence();
    }
    assert_eq!((horizon(&directory), SYNCS.get()), (moved, before));
}
