//! Churn: many processes that join, die by SIGKILL, leave and give up, for a minute on five keys.
//! Each writes its history, from which the checker of all histories reads whether memlock kept its
//! promises. Beside that, no lock may be free while there are waiters, or be held on the server by
//! a process that is not inside.
//!
//! `MEMLOCK_CHURN_SECONDS` makes it shorter, for a quick look.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::lease::MIN_LEASE;
use memlock_core::wait::entries;
use memlock_core::{Client, OwnerRecord};
use memlock_tests::chance::Chance;
use memlock_tests::launch::spawn;
use memlock_tests::safety::MARKER;
use memlock_tests::server::Memcached;
use memlock_tests::stopwatch::{Marks, Stopwatch};
use memlock_tests::url;

use history::{History, Holder, Process, Sight};
use keys::{KEYS, name};

#[path = "../support/churn/checks.rs"]
mod checks;
#[path = "../support/churn/forged.rs"]
mod forged;
#[path = "../support/churn/history.rs"]
mod history;
#[path = "../support/churn/keys.rs"]
mod keys;

/// How long the processes may take to end once they are asked to: a killed holder's lease and an
/// inspection by every waiter without a wake-up.
const END_LIMIT: Duration = Duration::from_secs(20);
/// The lease of a lock that is held until some event.
const LONG_LEASE: Duration = Duration::from_secs(60);
/// How often the locks on the server are inspected.
const LOOK: Duration = Duration::from_millis(10);
/// How many processes there are at a time.
const SIZE: usize = 100;
/// How many releases may be needed to take the entries of the dead off one queue.
const MOST_ROUNDS: usize = 600;

#[test]
#[ignore = "real time: make prove"]
fn a_hundred_processes_that_come_die_and_give_up_neither_collide_nor_get_stuck() {
    let seconds = std::env::var("MEMLOCK_CHURN_SECONDS").map_or(60, |text| text.parse().unwrap());
    wait_for_the_end_of_a_second();
    let server = Memcached::start();
    Crowd::gather(&server).churn(Duration::from_secs(seconds));
    for key in 0..KEYS {
        let left = queue(&server, key);
        let rounds = take_off_the_dead(&server, key);
        println!(
            "  key {key}: {left} entries of the dead were left, and were gone after {rounds} releases"
        );
    }
}

/// The processes of the test.
struct Crowd<'a> {
    server: &'a Memcached,
    folder: PathBuf,
    chance: Chance,
    members: Vec<Member>,
    /// Those that were asked to end.
    leaving: Vec<Member>,
    processes: Vec<Process>,
}

struct Member {
    number: usize,
    child: Child,
}

impl<'a> Crowd<'a> {
    fn gather(server: &'a Memcached) -> Crowd<'a> {
        // A disk that makes a writer wait would look like a slow lock.
        let memory = Some(PathBuf::from("/dev/shm")).filter(|folder| folder.is_dir());
        let folder = memory.unwrap_or_else(std::env::temp_dir);
        let folder = folder.join(format!("memlock-churn-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (members, leaving, processes) = (Vec::new(), Vec::new(), Vec::new());
        Crowd { server, folder, chance: Chance::of_run(), members, leaving, processes }
    }

    /// Lets them churn, ends them, and checks what they wrote.
    fn churn(mut self, time: Duration) {
        let stop = AtomicBool::new(false);
        let stopwatch = Stopwatch::start();
        let mut stuck = Vec::new();
        let sights = thread::scope(|scope| {
            let watcher = scope.spawn(|| watch(self.server, &stop));
            let stop_watching = Stop(&stop);
            let end = now() + time;
            while now() < end {
                while self.members.len() < SIZE {
                    self.start();
                }
                thread::sleep(self.chance.millis(50, 150));
                match self.chance.below(16) {
                    0..3 => self.ask_one_to_end(),
                    3..5 => (0..12).for_each(|_| self.kill_one()),
                    _ => self.kill_one(),
                }
            }
            while !self.members.is_empty() {
                self.ask_one_to_end();
            }
            stuck = self.see_them_end();
            drop(stop_watching);
            watcher.join().unwrap()
        });
        self.check(sights, stuck, stopwatch.stop());
    }

    fn start(&mut self) {
        let number = self.processes.len();
        // Some cannot be woken.
        let listener = if self.chance.below(10) == 0 { "notify=off" } else { "" };
        let mut command = Command::new(env!("CARGO_BIN_EXE_churner"));
        command.arg(url::with(&self.server.url(), listener)).arg(self.file(number));
        command.arg(self.chance.number().to_string()).stdin(Stdio::piped());
        let began = now();
        let child = spawn(command).unwrap();
        self.processes.push(Process { pid: child.id(), began, killed: None });
        self.members.push(Member { number, child });
    }

    fn any(&mut self) -> Option<Member> {
        let count = self.members.len() as u64;
        (count > 0).then(|| self.members.swap_remove(self.chance.below(count) as usize))
    }

    fn kill_one(&mut self) {
        let Some(Member { number, child }) = self.any() else { return };
        let status = self.kill(number, child);
        assert_eq!(
            status.signal(),
            Some(libc::SIGKILL),
            "process {number} ended by itself: {status}"
        );
    }

    fn kill(&mut self, number: usize, mut child: Child) -> ExitStatus {
        let before = now();
        child.kill().unwrap();
        let status = child.wait().unwrap();
        self.processes[number].killed = Some((before, now()));
        status
    }

    /// Closes the input of a process, whose end asks it to end.
    fn ask_one_to_end(&mut self) {
        let Some(mut member) = self.any() else { return };
        drop(member.child.stdin.take());
        self.leaving.push(member);
    }

    /// Waits until the processes that were asked to have ended, and reports those that have not.
    fn see_them_end(&mut self) -> Vec<String> {
        let watch = Stopwatch::start();
        let mut stuck = Vec::new();
        for Member { number, mut child } in std::mem::take(&mut self.leaving) {
            let status = loop {
                match child.try_wait().unwrap() {
                    Some(status) => break status,
                    None if watch.elapsed() < END_LIMIT => thread::sleep(Duration::from_millis(5)),
                    None => {
                        stuck.push(format!(
                            "process {number} was asked to end, and did not in {END_LIMIT:?}"
                        ));
                        break self.kill(number, child);
                    }
                }
            };
            let proper = status.success() || self.processes[number].killed.is_some();
            assert!(proper, "process {number} ended with {status}");
        }
        stuck
    }

    fn check(self, sights: [Vec<Sight>; KEYS], stuck: Vec<String>, marks: Marks) {
        let end = now();
        let numbered = self.processes.iter().enumerate();
        let calls = numbered
            .flat_map(|(number, process)| history::read(self.file(number), number, process));
        let calls = calls.collect();
        let history = History { processes: self.processes, calls, sights, marks, end };
        let findings = checks::check(&history);
        println!("{} processes, {} calls", history.processes.len(), history.calls.len());
        let folder = self.folder.display();
        let mut violations: Vec<String> = stuck.into_iter().chain(findings.violations).collect();
        // Breaches of safety first: the runner has to see them.
        violations.sort_by_key(|text| !text.starts_with(MARKER));
        let first = &violations[..violations.len().min(20)];
        assert!(
            first.is_empty(),
            "{} violations, see {folder}; the first: {first:#?}",
            violations.len()
        );
        std::fs::remove_dir_all(&self.folder).unwrap();
    }

    fn file(&self, number: usize) -> PathBuf {
        self.folder.join(number.to_string())
    }
}

/// Stops the watcher, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Inspects the locks on the server until it is stopped.
fn watch(server: &Memcached, stop: &AtomicBool) -> [Vec<Sight>; KEYS] {
    let mut plain = server.plain();
    let mut sights = [const { Vec::new() }; KEYS];
    while !stop.load(Ordering::Relaxed) {
        for (key, sights) in sights.iter_mut().enumerate() {
            let before = now();
            let value = plain.get(&format!("lock:{}", name(key)));
            let record =
                value.map(|value| OwnerRecord::parse(&value).expect("only memlock writes here"));
            // A lock that is reserved for a waiter has no holder.
            let held = record.filter(|record| record.reserved_for.is_none());
            let holder =
                held.map(|record| Holder { pid: record.pid, token: record.token.to_string() });
            sights.push(Sight { before, after: now(), holder });
        }
        thread::sleep(LOOK);
    }
    sights
}

/// memcached looks at the time when a second has passed since it looked the last time, and so about
/// a millisecond later in each second. Where that comes to the next full second, its clock skips
/// one: so let it start just before.
fn wait_for_the_end_of_a_second() {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    let phase = Duration::from_nanos(time.tv_nsec.unsigned_abs());
    let start = Duration::from_millis(985);
    thread::sleep(start.checked_sub(phase).unwrap_or(start + Duration::from_secs(1) - phase));
}

/// The number of entries in the queue of a key.
fn queue(server: &Memcached, key: usize) -> usize {
    let queue = server.plain().get(&format!("lock:{}%wait", name(key))).unwrap_or_default();
    entries::waiters(&queue).count()
}

/// Locks and unlocks until the queue of a key is empty; returns how often. A release reads the
/// queue only if there are waiters, so the first time there is one.
fn take_off_the_dead(server: &Memcached, key: usize) -> usize {
    let mutex = |lease| Client::connect(&server.url()).unwrap().mutex(name(key), lease).unwrap();
    let last = mutex(MIN_LEASE);
    if queue(server, key) > 0 {
        let before = queue(server, key);
        // Held until the other client waits, however long that takes.
        let mut first = mutex(LONG_LEASE).lock().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| last.lock().unwrap().unlock().unwrap());
            let began = now();
            while queue(server, key) == before {
                assert!(now() < began + LONG_LEASE, "key {key}: the waiter never joined the queue");
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(first.unlock().unwrap(), memlock_core::Release::Released);
        });
    }
    for round in 0..MOST_ROUNDS {
        if queue(server, key) == 0 {
            return round;
        }
        assert_eq!(last.lock().unwrap().unlock().unwrap(), memlock_core::Release::Released);
        // An entry without a listener is left to find its turn for a while.
        thread::sleep(Duration::from_millis(50));
    }
    panic!("key {key}: the queue is not empty after {MOST_ROUNDS} releases");
}

fn now() -> Duration {
    SystemClock.now().since_boot()
}
