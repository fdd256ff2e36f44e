//! `evictions=refuse` on memcached: a server that may evict locks grants none, and says how to start
//! it.

use std::thread;
use std::time::Duration;

use memlock_core::{Client, Error, ErrorKind, Extension, Release};
use memlock_tests::cost::usual_cost;
use memlock_tests::frozen::Frozen;
use memlock_tests::launch::poll_until;
use memlock_tests::server::Memcached;
use memlock_tests::url;

/// What a `temporary_ttl` of 62 s is for.
const LEASE: Duration = Duration::from_secs(60);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(20);
const TEMPORARY: [&str; 2] = ["-o", "temporary_ttl=62,no_slab_reassign"];

fn client(server: &Memcached) -> Client {
    Client::connect(&url::with(&server.url(), "evictions=refuse")).unwrap()
}

fn lock(client: &Client, name: &str, lease: Duration) -> Result<memlock_core::Lock, Error> {
    client.mutex(name, lease).unwrap().try_lock().map(|lock| lock.expect("it is free"))
}

/// Returns once somebody waits for `m`.
fn await_waiter(server: &Memcached) {
    let found = poll_until(PATIENCE, || server.plain().get("lock:m%wait"));
    assert!(found.is_some(), "nobody waits");
}

/// A Config error that names the server, and says this.
#[track_caller]
fn refused<T>(server: &Memcached, outcome: Result<T, Error>, says: &[&str]) {
    let error = outcome.err().expect("this must be refused");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let text = error.to_string();
    assert!(text.contains(&server.address()) && text.ends_with('.'), "{text}");
    assert!(text.contains("evictions=refuse"), "{text}");
    assert!(says.iter().all(|says| text.contains(says)), "{says:?} is missing: {text}");
}

#[track_caller]
fn refused_at_all<T>(server: &Memcached, outcome: Result<T, Error>) {
    refused(server, outcome, &["-M", "-o temporary_ttl=N,no_slab_reassign"]);
    assert_eq!(server.plain().stats()["curr_items"], "0", "nothing is granted");
}

#[test]
fn a_server_that_evicts_is_refused_with_the_flags_that_mend_it() {
    let server = Memcached::start();
    let client = client(&server);
    refused_at_all(&server, lock(&client, "m", LEASE));
    // A wait without limit ends.
    refused_at_all(&server, client.mutex("m", LEASE).unwrap().lock());
    refused_at_all(&server, client.semaphore("s", 1, LEASE).unwrap().acquire());
    refused_at_all(&server, client.semaphore("s", 1, LEASE).unwrap().set_up(LEASE));
    refused_at_all(&server, client.distinct_list("l").unwrap().set_up(LEASE));
    refused_at_all(&server, client.counter("c").unwrap().set_up(1));
    for url in [server.url(), url::with(&server.url(), "evictions=allow")] {
        let client = Client::connect(&url).unwrap();
        assert_eq!(lock(&client, "m", LEASE).unwrap().unlock().unwrap(), Release::Released);
    }
}

#[test]
fn other_words_are_refused_with_both_that_are_known() {
    let error = Client::connect("memcached://h?evictions=no").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let text = error.to_string();
    assert!(["allow", "refuse"].iter().all(|word| text.contains(word)), "{text}");
    for url in ["memory://x?evictions=refuse", "sqlite:/tmp/x?evictions=refuse"] {
        let text = Client::connect(url).unwrap_err().to_string();
        assert!(text.contains("\"evictions\" is not known"), "{text}");
    }
}

#[test]
fn on_a_server_that_never_evicts_all_is_as_without_and_costs_as_much() {
    let server = Memcached::with_args(&["-M"]);
    let plain = Client::connect(&server.url()).unwrap();
    let careful = client(&server);
    let cost = |client: &Client| {
        drop(lock(client, "m", LEASE).unwrap());
        usual_cost(|| {
            let before = server.commands();
            assert_eq!(lock(client, "m", LEASE).unwrap().unlock().unwrap(), Release::Released);
            server.commands() - before
        })
    };
    assert_eq!(cost(&careful), cost(&plain));
    drop(careful.semaphore("s", 1, LEASE).unwrap().acquire().unwrap());
    let counter = careful.counter("c").unwrap();
    assert!(counter.set_up(1).unwrap() && counter.try_acquire().unwrap());
    assert_eq!(counter.release().unwrap(), 1);
    let mut list = careful.distinct_list("l").unwrap();
    let _ = list.set_up(LEASE).unwrap();
    assert!(list.insert("k").unwrap().is_some());
}

#[test]
fn what_is_stored_for_longer_than_the_temporary_ttl_is_not_sent() {
    let server = Memcached::with_args(&TEMPORARY);
    let client = client(&server);
    let mut held = lock(&client, "m", LEASE).unwrap();
    let mut plain = server.plain();
    let mut counted = || {
        let stats = plain.stats();
        ["cmd_set", "cas_hits", "total_connections"].map(|name| stats[name].clone())
    };
    let before = counted();
    let longer = LEASE + Duration::from_secs(1);
    let says = ["lock \"n\"", "63 s", "-o temporary_ttl=63,", "-M"];
    refused(&server, lock(&client, "n", longer), &says);
    refused(&server, client.mutex("n", longer).unwrap().lock(), &says);
    refused(&server, held.extend(longer), &["lock \"m\"", "-o temporary_ttl=63,"]);
    let forever = client.counter("c").unwrap().set_up(1);
    refused(&server, forever, &["c", "never expire", "-M"]);
    refused(&server, client.distinct_list("l").unwrap().set_up(longer), &["list \"l\"", "-M"]);
    let day = client.semaphore("s", 1, LEASE).unwrap();
    refused(&server, day.set_up(LEASE * 2), &["semaphore \"s\"", "-M"]);
    assert_eq!(counted(), before, "nothing was stored, and the connection is as good as before");
    assert!(held.check().unwrap());
    assert_eq!(held.extend(LEASE).unwrap(), Extension::Extended);
    assert_eq!(held.unlock().unwrap(), Release::Released);
    let mut list = client.distinct_list("l").unwrap();
    let _ = list.set_up(LEASE / 2).unwrap();
    assert!(list.insert("k").unwrap().is_some());
}

/// The number that the sentence names is enough.
#[test]
fn semaphores_work_with_the_temporary_ttl_that_they_are_said_to_need() {
    let server = Memcached::with_args(&TEMPORARY);
    let client = client(&server);
    let semaphore = client.semaphore("s", 1, LEASE).unwrap();
    let error = semaphore.acquire().unwrap_err().to_string();
    let (_, rest) = error.split_once("temporary_ttl=").unwrap();
    let needed: u64 = rest.split(',').next().unwrap().parse().unwrap();
    assert!((86_400..100_000).contains(&needed), "{error}");
    server.restart_with(&["-o", &format!("temporary_ttl={needed},no_slab_reassign")]);
    let mut permit = semaphore.acquire().unwrap();
    assert_eq!(permit.release().unwrap(), Release::Released);
}

/// As the documentation has it: the seconds of the session and 7, plus 3 in 5,000 of it.
#[test]
fn distinct_lists_work_with_the_temporary_ttl_that_they_are_said_to_need() {
    let server = Memcached::with_args(&["-o", "temporary_ttl=67,no_slab_reassign"]);
    let client = client(&server);
    for number in 0..20 {
        let mut list = client.distinct_list(format!("l{number}")).unwrap();
        let _ = list.set_up(LEASE).unwrap();
        assert!(list.insert("k").unwrap().is_some());
        // At another phase of the server's seconds.
        thread::sleep(Duration::from_millis(51));
    }
}

/// A guard is agreed on in an item that never expires.
#[test]
fn with_a_guard_nothing_works_on_a_server_that_may_evict_the_agreement() {
    let server = Memcached::with_args(&TEMPORARY);
    let url = url::with(&url::with(&server.url(), "evictions=refuse"), "guard=60s");
    let client = Client::connect(&url).unwrap();
    refused(&server, lock(&client, "m", LEASE), &["memlock%config", "never expire", "-M"]);
    assert_eq!(server.plain().stats()["curr_items"], "0");
    server.restart_with(&["-M"]);
    let granted = client.mutex("m", LEASE).unwrap().try_lock().unwrap();
    assert!(granted.is_none(), "it recovers");
    assert!(server.plain().get("memlock%config").is_some());
}

/// Queues are stored for five minutes, and hold no promise.
#[test]
fn waiters_wait_where_queues_may_be_evicted() {
    let server = Memcached::with_args(&TEMPORARY);
    let (one, two) = (client(&server), client(&server));
    let mut held = lock(&one, "m", LEASE).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| two.mutex("m", LEASE).unwrap().lock_for(PATIENCE));
        await_waiter(&server);
        assert_eq!(held.unlock().unwrap(), Release::Released);
        assert!(waiter.join().unwrap().unwrap().is_some());
    });
}

/// The releasing thread would store the lock for the waiting one.
#[test]
fn a_thread_that_waits_with_too_long_a_lease_hinders_no_release() {
    let server = Memcached::with_args(&TEMPORARY);
    let client = client(&server);
    let mut held = lock(&client, "m", LEASE).unwrap();
    thread::scope(|scope| {
        let wait = |lease| {
            let mutex = client.mutex("m", lease).unwrap();
            move || mutex.lock_for(PATIENCE)
        };
        let good = scope.spawn(wait(LEASE));
        await_waiter(&server);
        let bad = scope.spawn(wait(LEASE * 2));
        // Less than the time for which a process hands the lock off.
        thread::sleep(Duration::from_millis(30));
        assert_eq!(held.unlock().unwrap(), Release::Released);
        let mut lock = good.join().unwrap().unwrap().unwrap();
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        refused(&server, bad.join().unwrap(), &["-o temporary_ttl=122,"]);
    });
    drop(lock(&client, "m", LEASE).unwrap());
}

#[test]
fn a_server_that_was_restarted_with_evictions_grants_nothing_and_ends_waits() {
    let server = Memcached::start();
    server.restart_with(&["-M"]);
    let (one, two) = (client(&server), client(&server));
    let mut held = lock(&one, "m", LEASE).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| two.mutex("m", LEASE).unwrap().lock());
        await_waiter(&server);
        server.restart();
        refused_at_all(&server, waiter.join().unwrap());
    });
    assert!(!held.check().unwrap(), "the restart took it");
    assert_eq!(held.extend(LEASE).unwrap(), Extension::Lost);
    assert_eq!(held.unlock().unwrap(), Release::Lost);
    refused_at_all(&server, lock(&one, "n", LEASE));
    server.restart_with(&["-M"]);
    drop(lock(&one, "n", LEASE).unwrap());
}

/// What the new run of the server would not keep has nothing to do with it.
#[test]
fn a_lock_that_a_restart_took_is_lost_also_where_its_lease_is_too_long_now() {
    let server = Memcached::with_args(&TEMPORARY);
    let client = client(&server);
    let mut held = lock(&client, "m", LEASE).unwrap();
    server.restart_with(&["-o", "temporary_ttl=61,no_slab_reassign"]);
    assert_eq!(held.extend(LEASE).unwrap(), Extension::Lost);
    refused(&server, lock(&client, "m", LEASE), &["-o temporary_ttl=62,"]);
}

/// Also by a program that tries again so soon that nothing else looks at its connection.
#[test]
fn a_server_that_is_mended_is_used_at_once() {
    let server = Memcached::with_args(&TEMPORARY);
    let client = client(&server);
    for _ in 0..3 {
        refused(&server, lock(&client, "m", LEASE * 2), &["-o temporary_ttl=122,"]);
    }
    server.restart_with(&["-o", "temporary_ttl=122,no_slab_reassign"]);
    assert_eq!(lock(&client, "m", LEASE * 2).unwrap().unlock().unwrap(), Release::Released);
}

/// By a command of memcached, which connections do not notice: a new one reads the settings, an old
/// one within a minute. Locks can still be released.
#[test]
fn a_running_server_with_another_temporary_ttl_is_noticed_within_a_minute() {
    let server = Memcached::with_args(&TEMPORARY);
    let clock = Frozen::clock();
    let url = url::with(&server.url(), "evictions=refuse");
    let old = clock.client(&url);
    let mut held = lock(&old, "m", LEASE).unwrap();
    assert_eq!(server.plain().command("lru temp_ttl 61"), "OK");
    clock.advance(Duration::from_secs(59));
    assert_eq!(held.extend(LEASE).unwrap(), Extension::Extended);
    refused(&server, lock(&client(&server), "n", LEASE), &["-o temporary_ttl=62,"]);
    assert_eq!(server.plain().command("lru temp_ttl -1"), "OK");
    refused(&server, lock(&client(&server), "n", LEASE), &["temporary_ttl=N,"]);
    clock.advance(Duration::from_secs(1));
    refused(&server, held.extend(LEASE), &["lock:m", "temporary_ttl=N,"]);
    refused(&server, lock(&old, "n", LEASE), &["lock:n", "temporary_ttl=N,"]);
    assert!(held.check().unwrap(), "it is still held");
    // A refused operation asks again.
    assert_eq!(server.plain().command("lru temp_ttl 122"), "OK");
    assert_eq!(held.extend(LEASE * 2).unwrap(), Extension::Extended);
    assert_eq!(server.plain().command("lru temp_ttl -1"), "OK");
    assert_eq!(held.unlock().unwrap(), Release::Released);
    assert_eq!(server.plain().get("lock:n"), None);
}

/// As memcached documents it, such a server spares what is stored for a short time; but it drops
/// that, too, when it moves memory from items of one size to those of another one.
#[test]
fn a_temporary_ttl_alone_is_not_enough() {
    let server = Memcached::with_args(&["-o", "temporary_ttl=62"]);
    refused_at_all(&server, lock(&client(&server), "m", LEASE));
    server.restart_with(&TEMPORARY);
    drop(lock(&client(&server), "m", LEASE).unwrap());
    let said = server.plain().command("slabs reassign 1 2");
    assert!(said.contains("slab reassignment disabled"), "{said}");
}

/// What `evictions=refuse` relies on.
#[test]
fn locks_outlast_what_fills_the_server() {
    for flags in [&TEMPORARY[..], &["-M"]] {
        let server = Memcached::with_args(&[&["-m", "8"], flags].concat());
        let client = client(&server);
        let held: Vec<_> =
            (0..200).map(|number| lock(&client, &format!("m{number}"), LEASE).unwrap()).collect();
        let mut plain = server.plain();
        let mut refused = 0;
        // Those of the locks' own size come when no more memory is left for it.
        let own = plain.get("lock:m0").unwrap().len();
        for size in [50, 300, 2_000, 20_000, 200_000, own] {
            let value = "x".repeat(size);
            for number in 0..20_000_000 / (size + 1000) {
                let said = plain.command(&format!("set {size}-{number} 0 0 {size}\r\n{value}"));
                refused += u32::from(said != "STORED");
            }
        }
        let evicted = plain.stats()["evictions"] != "0";
        assert_eq!(evicted, flags == TEMPORARY);
        assert!(evicted || refused > 0, "the memory was full");
        let lost = held.iter().filter(|lock| !lock.check().unwrap()).count();
        assert_eq!(lost, 0, "of {} locks with {flags:?}", held.len());
    }
}
