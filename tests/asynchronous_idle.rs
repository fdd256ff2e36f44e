//! What a thousand waiting tasks cost a process that has nothing else to do: threads, descriptors,
//! memory and time of a processor.
//!
//! Alone in its process, which it measures.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::{Client, Lock, Pending};
use memlock_tests::launch::poll_until;
use memlock_tests::server::Memcached;

const WAITERS: usize = 1000;
const LEASE: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(60);
/// Young waits look more often than those that have lasted.
const SETTLES: Duration = Duration::from_secs(3);
/// For how long an idle process is watched.
const WATCHED: Duration = Duration::from_secs(5);
/// The most that a waiter may cost.
const BYTES_PER_WAITER: usize = 8192;
/// The most threads that all of them may cost.
const THREADS: usize = 2;
/// The most descriptors: of connections, of sockets that listen, and of what wakes the threads.
const DESCRIPTORS: usize = 16;
/// What those of one lock may use of a processor, in code that is not optimized.
const CPU_SHARE: f64 = 0.05;
/// What may be sent for each lock.
const COMMANDS_PER_SECOND: u64 = 6;

/// What this process has.
#[derive(Debug)]
struct Has {
    threads: usize,
    descriptors: usize,
    /// Of memory that is in use.
    bytes: usize,
}

impl Has {
    fn now() -> Has {
        let count = |what: &str| fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
        let statm = fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
        Has { threads: count("task"), descriptors: count("fd"), bytes: pages * 4096 }
    }
}

/// The time for which this process has run on a processor.
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split(' ').collect();
    // User and system, in hundredths of a second.
    let ticks: u64 = fields[12..14].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// Each waits for the lock of that place among `locks`, which another client holds.
fn a_thousand_wait(locks: usize) {
    let server = Memcached::start();
    let holder = Client::connect(&server.url()).unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let name = |number: usize| format!("{}", number % locks);
    let held: Vec<Lock> =
        (0..locks).map(|it| holder.mutex(name(it), LEASE).unwrap().lock().unwrap()).collect();
    let before = Has::now();
    let wait = |number| client.mutex(name(number), LEASE).unwrap().lock_async(None);
    let waits: Vec<Pending<_>> = (0..WAITERS).map(wait).collect();
    let last = holder.mutex(name(WAITERS - 1), LEASE).unwrap();
    let waits_there = || (last.waiters().unwrap().len() == 1).then_some(());
    assert!(poll_until(PATIENCE, waits_there).is_some());

    thread::sleep(SETTLES);
    let (began, used, sent) = (Instant::now(), processor_time(), server.commands());
    thread::sleep(WATCHED);
    let (used, sent) = (processor_time() - used, server.commands() - sent);
    let share = used.as_secs_f64() / began.elapsed().as_secs_f64();
    let has = Has::now();
    let bytes = has.bytes.saturating_sub(before.bytes) / WAITERS;
    println!(
        "{WAITERS} tasks wait for {locks} locks: {bytes} bytes a waiter, {:.1} % of a processor, \
         {sent} commands in {} s; before: {before:?}, then: {has:?}",
        share * 100.0,
        WATCHED.as_secs(),
    );
    assert!(has.threads <= before.threads + THREADS);
    assert!(has.descriptors <= before.descriptors + DESCRIPTORS);
    assert!(bytes <= BYTES_PER_WAITER);
    // The first waiter of each lock looks at it once a second, and more often at first.
    assert!(sent <= COMMANDS_PER_SECOND * locks as u64 * WATCHED.as_secs());
    if locks == 1 {
        assert!(share <= CPU_SHARE);
    }
    drop(waits);
    drop(held);
}

#[test]
fn a_thousand_tasks_wait_at_little_cost() {
    a_thousand_wait(1);
    a_thousand_wait(WAITERS);
}
