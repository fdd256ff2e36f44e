//! A server that forgets its script or its data, and how many commands a lock costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memlock_core::{Client, Insertion, Release};
use memlock_tests::assert_safe;
use memlock_tests::frozen::Frozen;
use memlock_tests::process::Server;
use memlock_tests::relay::{Fate, Relay};
use memlock_tests::url;

use crate::stores::redis::{Redis, reply};
use crate::{LEASE, client, works};

/// Also by a copy of the data that an administrator puts in place, with an older counter of fences.
/// The connections stay open, so that nothing tells the clients.
#[test]
fn replaced_data_is_reported_as_a_loss_and_fences_go_on_rising() {
    let server = Redis::start(&["--save", "3600 100000", "--enable-debug-command", "yes"]);
    let (ours, other) = (client(&server), client(&server));
    let mut lock = ours.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    let mut fence = lock.fence();
    for old_counter in [None, Some("17")] {
        // By a client that was connected before, and by one that was not.
        for client in [&other, &ours, &client(&server)] {
            let () = server.reply(&["FLUSHALL"]);
            if let Some(number) = old_counter {
                let () = server.reply(&["SET", "%fence", number]);
                let () = server.reply(&["DEBUG", "RELOAD"]);
            }
            assert!(!lock.check().unwrap());
            let mut next = client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
            assert_safe!(next.fence() > fence, "{} after {fence}", next.fence());
            fence = next.fence();
            assert_eq!(next.unlock().unwrap(), Release::Released);
        }
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
    // A slow grant costs more: here, none is.
    let url = url::patient(&server.url_at(&relay.address()));
    let client = Client::with_clock(&url, Frozen::clock()).unwrap();
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

/// Also between the parts of one call: no call fails, nothing is granted twice, and no id is.
#[test]
fn a_script_that_is_forgotten_before_each_request_is_told_again() {
    let server = Redis::start(&[]);
    let relay = Relay::start(server.process().address());
    let client = Client::connect(&url::patient(&server.url_at(&relay.address()))).unwrap();
    let (mut admin, flushed) = (server.connection(), Arc::new(AtomicUsize::new(0)));
    let counting = Arc::clone(&flushed);
    relay.decide(move |request| {
        // Not before the request that tells the script: it would be told for ever.
        if !request.windows(5).any(|word| word == b"EVAL\r") {
            let () = reply(&mut admin, &["SCRIPT", "FLUSH"]);
            counting.fetch_add(1, Ordering::Relaxed);
        }
        Fate::Pass
    });
    works(&client, "w");
    let mutex = client.mutex("m", LEASE).unwrap();
    let mut fence = 0;
    for round in 0..3 {
        let mut lock = mutex.try_lock().unwrap().unwrap();
        assert_safe!(lock.fence() > fence, "the fence did not rise");
        fence = lock.fence();
        assert_safe!(mutex.try_lock().unwrap().is_none(), "round {round}");
        assert!(lock.check().unwrap());
        assert_eq!(lock.extend(LEASE).unwrap(), memlock_core::Extension::Extended);
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        let mut list = client.distinct_list("l").unwrap();
        let _ = list.set_up(LEASE).unwrap();
        for is_first in [true, false] {
            for insertion in list.insert_many(&["a", "b", "c"]).unwrap().unwrap() {
                assert_safe!(
                    matches!(insertion, Insertion::First(_)) == is_first,
                    "{insertion:?} in round {round}"
                );
            }
        }
        assert_eq!(list.count().unwrap(), Some(3));
        assert!(list.tear_down().unwrap());
    }
    assert!(flushed.load(Ordering::Relaxed) > 30, "{flushed:?}");
}
