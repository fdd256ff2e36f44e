//! A server that forgets its script or its data, and how many commands a lock costs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::{Insertion, Release};
use memlock_tests::process::Server;
use memlock_tests::relay::Relay;
use memlock_tests::{assert_safe, assert_safe_eq};

use crate::stores::redis::{Redis, reply};
use crate::{LEASE, client, works};

/// For how long the script is forgotten all the time.
const FLUSHING: Duration = Duration::from_secs(2);

#[test]
fn flushall_is_reported_as_a_loss_and_fences_go_on_rising() {
    let server = Redis::start(&[]);
    let (ours, other) = (client(&server), client(&server));
    let mut lock = ours.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    let mut fence = lock.fence();
    let () = server.reply(&["FLUSHALL"]);
    assert!(!lock.check().unwrap());
    // By a client that was connected before, and by one that was not.
    for client in [&other, &ours, &client(&server)] {
        let mut next = client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
        assert_safe!(next.fence() > fence, "{} after {fence}", next.fence());
        fence = next.fence();
        assert_eq!(next.unlock().unwrap(), Release::Released);
        let () = server.reply(&["FLUSHALL"]);
    }
    assert!(matches!(lock.unlock().unwrap(), Release::Lost | Release::NotHeld));
}

/// How often each command was executed, `name=count`, in order.
fn commands(server: &Redis) -> Vec<String> {
    let stats: String = server.reply(&["INFO", "commandstats"]);
    let count = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let known = ["info", "config|resetstat", "client|setinfo", "client|setname"];
        let calls = rest.split(',').next()?;
        (!known.contains(&name)).then(|| format!("{name}={calls}"))
    };
    let mut counts: Vec<String> = stats.lines().filter_map(count).collect();
    counts.sort();
    counts
}

#[test]
fn a_lock_costs_two_round_trips_and_three_commands() {
    let server = Redis::start(&[]);
    let relay = Relay::start(server.process().address());
    let client = memlock_core::Client::connect(&server.url_at(&relay.address())).unwrap();
    let mutex = client.mutex("m", LEASE).unwrap();
    drop(mutex.lock().unwrap());
    let () = server.reply(&["CONFIG", "RESETSTAT"]);
    let before = relay.bursts();
    let mut lock = mutex.try_lock().unwrap().unwrap();
    assert_eq!(commands(&server), ["incr=1", "set=1"]);
    assert_eq!(relay.bursts(), before + 1);
    let () = server.reply(&["CONFIG", "RESETSTAT"]);
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    // The script calls two commands.
    assert_eq!(commands(&server), ["del=1", "evalsha=1", "get=1"]);
    assert_eq!(relay.bursts(), before + 2);
    // A script that was forgotten costs one more round trip.
    let mut lock = mutex.try_lock().unwrap().unwrap();
    let () = server.reply(&["SCRIPT", "FLUSH"]);
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert_eq!(relay.bursts(), before + 5);
}

#[test]
fn a_script_that_is_forgotten_between_any_two_calls_is_told_again() {
    let server = Redis::start(&[]);
    let client = client(&server);
    let mut admin = server.connection();
    let mut flush = || reply::<()>(&mut admin, &["SCRIPT", "FLUSH"]);
    for round in 0..3 {
        let mutex = client.mutex("m", LEASE).unwrap();
        flush();
        let mut lock = mutex.try_lock().unwrap().unwrap();
        flush();
        assert_safe!(mutex.try_lock().unwrap().is_none(), "round {round}");
        flush();
        assert!(lock.check().unwrap());
        flush();
        assert_eq!(lock.extend(LEASE).unwrap(), memlock_core::Extension::Extended);
        flush();
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        flush();
        works(&client, "w");
        let mut list = client.distinct_list("l").unwrap();
        flush();
        let _ = list.set_up(LEASE).unwrap();
        for key in 0..3 {
            flush();
            assert!(matches!(list.insert(format!("{key}")).unwrap(), Some(Insertion::First(_))));
            flush();
            let again = list.insert(format!("{key}")).unwrap();
            assert_safe!(matches!(again, Some(Insertion::Duplicate(_))), "{again:?}");
        }
        flush();
        assert_eq!(list.count().unwrap(), Some(3));
        flush();
        assert!(list.tear_down().unwrap());
    }
}

/// Also between the parts of one call: no call fails, nothing is granted twice, and no id is.
#[test]
fn a_script_that_is_forgotten_all_the_time_fails_no_call() {
    let server = Redis::start(&[]);
    let done = AtomicBool::new(false);
    let (inside, permits, locks) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let firsts = AtomicUsize::new(0);
    let last = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut admin = server.connection();
                while !done.load(Ordering::Relaxed) {
                    let () = reply(&mut admin, &["SCRIPT", "FLUSH"]);
                }
            });
        }
        let workers: Vec<_> = (0..4)
            .map(|_| {
                // Each has a client of its own, as another process would.
                scope.spawn(|| {
                    let client = client(&server);
                    let mutex = client.mutex("m", LEASE).unwrap();
                    let semaphore = client.semaphore("s", 2, LEASE).unwrap();
                    let _ = semaphore.set_up(LEASE).unwrap();
                    let mut list = client.distinct_list("l").unwrap();
                    let _ = list.set_up(LEASE).unwrap();
                    let end = Instant::now() + FLUSHING;
                    let mut round = 0;
                    while Instant::now() < end {
                        let mut lock = mutex.lock().unwrap();
                        assert_safe_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "granted twice");
                        let fence = lock.fence() as usize;
                        assert_safe!(
                            last.swap(fence, Ordering::SeqCst) < fence,
                            "the fence did not rise"
                        );
                        inside.fetch_sub(1, Ordering::SeqCst);
                        assert_eq!(lock.unlock().unwrap(), Release::Released);
                        let mut permit = semaphore.acquire().unwrap();
                        assert_safe!(
                            permits.fetch_add(1, Ordering::SeqCst) < 2,
                            "too many permits"
                        );
                        permits.fetch_sub(1, Ordering::SeqCst);
                        assert_eq!(permit.release().unwrap(), Release::Released);
                        let keys: Vec<String> =
                            (0..4).map(|key| format!("{round} {key}")).collect();
                        for insertion in list.insert_many(&keys).unwrap().unwrap() {
                            let is_first = matches!(insertion, Insertion::First(_));
                            firsts.fetch_add(usize::from(is_first), Ordering::SeqCst);
                        }
                        round += 1;
                        locks.fetch_add(1, Ordering::Relaxed);
                    }
                    round
                })
            })
            .collect();
        let joined: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        let most = joined.into_iter().map(Result::unwrap).max().unwrap();
        assert_safe_eq!(firsts.load(Ordering::SeqCst), most * 4, "each key is the first once");
    });
    assert!(locks.load(Ordering::Relaxed) > 50, "{locks:?}");
}
