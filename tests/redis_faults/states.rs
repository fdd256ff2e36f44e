//! Servers that refuse to work: each gets a sentence that says what to do, and nothing is granted.

use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use memlock_core::{Client, Error, ErrorKind, Extension, Release};
use memlock_tests::assert_safe;
use memlock_tests::client::{a_wait_outlasts_a_crowd, connect};
use memlock_tests::frozen::Frozen;
use memlock_tests::launch::{poll_until, until};
use memlock_tests::process::Server;
use memlock_tests::url;

use crate::stores::redis::{Redis, reply};
use crate::{LEASE, PATIENCE, client, refused, works};

/// The client stays connected while its server is demoted, or has too few replicas.
#[test]
fn a_server_that_takes_no_writes_refuses_and_comes_back() {
    let (server, other) = (Redis::start(&[]), Redis::start(&["--repl-diskless-sync-delay", "0"]));
    let client = client(&server);
    let port = other.process().port().to_string();
    for (begin, end, says) in [
        (
            &["CONFIG", "SET", "min-replicas-to-write", "1"][..],
            &["CONFIG", "SET", "min-replicas-to-write", "0"][..],
            "min-replicas-to-write",
        ),
        (&["REPLICAOF", "127.0.0.1", &port], &["REPLICAOF", "NO", "ONE"], ""),
    ] {
        let mut lock = client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
        let () = server.reply(begin);
        let error = client.mutex("n", LEASE).unwrap().try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        refused(&server.url(), ErrorKind::Unreachable, says);
        let error = lock.unlock().unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        let () = server.reply(end);
        let next = client.mutex("n", LEASE).unwrap().try_lock().unwrap().unwrap();
        assert_safe!(next.fence() > lock.fence(), "{} after {}", next.fence(), lock.fence());
        drop(next);
        let released = lock.unlock().unwrap();
        // A replica may have taken the data of the other server, which has none.
        assert!(released == Release::Released || says.is_empty(), "{released:?}");
        works(&client, "w");
    }
}

/// Its primary would grant the same locks, and it forgets its own when it resyncs.
#[test]
fn a_replica_that_accepts_writes_is_refused() {
    for start in [Redis::start, Redis::valkey] {
        let (primary, replica) = (start(&[]), start(&["--replica-read-only", "no"]));
        let port = primary.process().port().to_string();
        for port in [port.as_str(), "1"] {
            let () = replica.reply(&["REPLICAOF", "127.0.0.1", port]);
            refused(&replica.url(), ErrorKind::Unreachable, "name the primary");
            refused(&replica.url(), ErrorKind::Unreachable, "replica-read-only no");
            let client = connect(&replica.url());
            for error in [
                client.semaphore("s", 2, LEASE).unwrap().set_up(LEASE).unwrap_err(),
                client.counter("c").unwrap().set_up(2).unwrap_err(),
                client.distinct_list("l").unwrap().set_up(LEASE).unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
            }
            assert_eq!(replica.reply::<usize>(&["DBSIZE"]), 0, "nothing is stored there");
        }
        let () = replica.reply(&["REPLICAOF", "NO", "ONE"]);
        works(&connect(&replica.url()), "m");
        works(&connect(&primary.url()), "m");
    }
}

/// `REPLICAOF` closes no connection.
#[test]
fn a_primary_that_becomes_a_replica_that_accepts_writes_grants_no_mutex_a_second_later() {
    let server = Redis::start(&["--replica-read-only", "no"]);
    let clock = Frozen::clock();
    let client = clock.client(&url::patient(&server.url()));
    let mutex = |name| client.mutex(name, LEASE).unwrap();
    let mut held = mutex("m").try_lock().unwrap().unwrap();
    let () = server.reply(&["REPLICAOF", "127.0.0.1", "1"]);
    clock.advance(Duration::from_secs(1));
    for _ in 0..2 {
        let granted = mutex("n").try_lock();
        assert_safe!(granted.is_err(), "{granted:?}");
        let error = granted.unwrap_err();
        assert!(error.to_string().contains("name the primary"), "{error}");
    }
    let () = server.reply(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(held.unlock().unwrap(), Release::Released);
    works(&client, "w");
}

#[test]
fn a_cluster_is_refused() {
    for start in [Redis::start, Redis::valkey] {
        let server = start(&["--cluster-enabled", "yes"]);
        refused(&server.url(), ErrorKind::Config, "Cluster");
        // Also one that has all slots, and so refuses nothing.
        let () = server.reply(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        refused(&server.url(), ErrorKind::Config, "Cluster");
    }
}

#[test]
fn a_sentinel_is_refused() {
    for of_configuration in [Redis::of_configuration, Redis::valkey_of_configuration] {
        let file = std::env::temp_dir().join(format!("memlock-sentinel-{}", std::process::id()));
        std::fs::write(&file, "").unwrap();
        let server = of_configuration(&file, &["--sentinel"]);
        refused(&server.url(), ErrorKind::Config, "Sentinel");
        drop(server);
        let _ = std::fs::remove_file(file);
    }
}

#[test]
fn a_server_without_a_free_connection_is_named() {
    let server = Redis::start(&["--maxclients", "1"]);
    let mut only = poll_until(PATIENCE, || {
        let client = redis::Client::open(server.url_at(&server.process().address())).unwrap();
        client.get_connection().ok()
    });
    refused(&server.url(), ErrorKind::Unreachable, "maxclients");
    a_wait_outlasts_a_crowd(&client(&server), "maxclients", || {
        let () = reply(only.as_mut().unwrap(), &["CONFIG", "SET", "maxclients", "100"]);
    });
    works(&client(&server), "m");
}

/// Ends what another connection runs, also when a test fails: its thread waits for that.
struct Script(redis::Connection);

impl Drop for Script {
    fn drop(&mut self) {
        let () = reply(&mut self.0, &["SCRIPT", "KILL"]);
    }
}

/// What the server says against an attempt. The last request before it loads, or is busy, may get no
/// answer in time.
fn answered(client: &Client, name: &str) -> Option<Error> {
    let refused = client.mutex(name, LEASE).unwrap().try_lock().err();
    refused.filter(|error| error.kind() != ErrorKind::Unknown)
}

/// Loading takes this long, and a script of another client keeps the server busy.
#[test]
fn a_server_that_is_loading_or_busy_is_unreachable_until_it_is_not() {
    let server = Redis::start(&["--save", "3600 100000", "--enable-debug-command", "yes"]);
    let client = client(&server);
    let mut lock = client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    let mut admin = server.connection();
    let fill = "for i = 1, 3000 do redis.call('RPUSH', 'load:' .. i, 'a', 'b', 'c') end return 1";
    let _: i64 = reply(&mut admin, &["EVAL", fill, "0"]);
    let () = reply(&mut admin, &["SAVE"]);
    let () = reply(&mut admin, &["CONFIG", "SET", "key-load-delay", "5000"]);
    let () = reply(&mut admin, &["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"]);
    thread::scope(|scope| {
        let reload =
            scope.spawn(|| reply::<()>(&mut server.connection(), &["DEBUG", "RELOAD", "NOSAVE"]));
        let error = poll_until(PATIENCE, || answered(&client, "n"));
        let () = reply(&mut admin, &["CONFIG", "SET", "key-load-delay", "0"]);
        let error = error.expect("it loads without a pause");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("loading"), "{error}");
        reload.join().unwrap();
    });
    assert!(lock.check().unwrap());
    let () = reply(&mut admin, &["CONFIG", "SET", "busy-reply-threshold", "50"]);
    thread::scope(|scope| {
        let script = Script(server.connection());
        scope.spawn(|| {
            let mut busy = server.connection();
            let _: redis::RedisResult<()> =
                redis::cmd("EVAL").arg("while true do end").arg(0).query(&mut busy);
        });
        let quick = connect(&url::with(&server.url(), "io_timeout=2s"));
        let is_busy = |error: &Error| error.to_string().contains("busy");
        let error = poll_until(PATIENCE, || answered(&quick, "o").filter(is_busy));
        let error = error.expect("it is not busy");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        let error = lock.unlock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        drop(script);
    });
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    works(&client, "m");
}

/// Nothing is granted, what is held can be released, and nothing is lost.
#[test]
fn a_server_without_memory_refuses_and_loses_nothing() {
    let server = Redis::start(&["--maxmemory-policy", "noeviction"]);
    let client = client(&server);
    let mut lock = client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    let semaphore = client.semaphore("s", 2, LEASE).unwrap();
    let _ = semaphore.set_up(LEASE).unwrap();
    let permit = semaphore.try_acquire().unwrap().unwrap();
    let single = client.semaphore("t", 1, LEASE).unwrap();
    let _ = single.set_up(LEASE).unwrap();
    let only = single.try_acquire().unwrap().unwrap();
    let mut admin = server.connection();
    let () = reply(&mut admin, &["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..3 {
        let error = client.mutex("n", LEASE).unwrap().try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(error.to_string().contains("maxmemory"), "{error}");
        // What others hold is busy, and waited for.
        let other = client.mutex("m", LEASE).unwrap();
        assert!(other.try_lock().unwrap().is_none());
        assert!(other.lock_for(Duration::from_millis(20)).unwrap().is_none());
        assert!(single.try_acquire().unwrap().is_none());
        let error = semaphore.try_acquire().unwrap_err();
        assert!(error.to_string().contains("maxmemory"), "{error}");
        assert!(lock.check().unwrap() && permit.check().unwrap());
        // It cannot be extended, and its holder knows how long it has it.
        let error = lock.extend(LEASE * 2).unwrap_err();
        assert!(error.to_string().contains("maxmemory"), "{error}");
        assert!(lock.remaining() > LEASE / 2 && lock.remaining() < LEASE);
    }
    // Those that connect now, too.
    assert!(connect(&server.url()).mutex("m", LEASE).unwrap().try_lock().unwrap().is_none());
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    refused(&server.url(), ErrorKind::Protocol, "maxmemory");
    assert_eq!(reply::<usize>(&mut admin, &["EXISTS", "lock:m", "lock:n"]), 0);
    let () = reply(&mut admin, &["CONFIG", "SET", "maxmemory", "0"]);
    drop((permit, only));
    assert_eq!(semaphore.status().unwrap().unwrap().available, 2);
    let mut lock = client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
}

/// A release without memory for the next waiter's record.
#[test]
fn a_waiter_gets_a_lock_that_was_released_without_memory() {
    let server = Redis::start(&["--maxmemory-policy", "noeviction"]);
    let (holder, other) = (client(&server), client(&server));
    let mut lock = holder.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    let mut admin = server.connection();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| other.mutex("m", LEASE).unwrap().lock_for(PATIENCE));
        until("it waits", || reply::<usize>(&mut admin, &["EXISTS", "{lock:m}%wait"]) > 0);
        let () = reply(&mut admin, &["CONFIG", "SET", "maxmemory", "1"]);
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        thread::sleep(Duration::from_millis(50));
        let () = reply(&mut admin, &["CONFIG", "SET", "maxmemory", "0"]);
        match waiter.join().unwrap() {
            Ok(lock) => assert!(lock.is_some(), "it waits for nobody"),
            Err(error) => assert!(error.to_string().contains("maxmemory"), "{error}"),
        }
    });
    works(&other, "m");
}

#[test]
fn a_server_that_may_evict_locks_is_refused_if_the_url_says_so() {
    let server = Redis::start(&["--maxmemory", "100mb"]);
    let url = server.url();
    let refusing = url::with(&url, "evictions=refuse");
    for policy in ["allkeys-lru", "volatile-ttl", "volatile-random"] {
        let () = server.reply(&["CONFIG", "SET", "maxmemory-policy", policy]);
        refused(&refusing, ErrorKind::Config, policy);
        works(&connect(&url), "m");
        works(&connect(&url::with(&url, "evictions=allow")), "m");
    }
    let () = server.reply(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    works(&connect(&refusing), "m");
}

/// A client that is connected notices it within a minute. Locks can still be released.
#[test]
fn a_policy_that_is_changed_is_noticed() {
    let server = Redis::start(&["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"]);
    let policy = |policy| server.reply::<()>(&["CONFIG", "SET", "maxmemory-policy", policy]);
    let clock = Frozen::clock();
    let url = url::patient(&url::with(&server.url(), "evictions=refuse"));
    let client = clock.client(&url);
    let mutex = |name| client.mutex(name, LEASE).unwrap();
    let mut held = mutex("m").try_lock().unwrap().unwrap();
    policy("allkeys-lru");
    clock.advance(Duration::from_secs(59));
    assert_eq!(held.extend(LEASE).unwrap(), Extension::Extended);
    clock.advance(Duration::from_secs(1));
    for refused in [held.extend(LEASE).map(drop), mutex("n").lock().map(drop)] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let said = error.to_string();
        assert!(
            said.contains("allkeys-lru") && said.contains(&server.process().address()),
            "{said}"
        );
    }
    assert!(held.check().unwrap(), "it is still held");
    // A refused operation asks again.
    policy("noeviction");
    assert_eq!(held.extend(LEASE).unwrap(), Extension::Extended);
    policy("allkeys-lru");
    clock.advance(Duration::from_secs(60));
    assert_eq!(held.unlock().unwrap(), Release::Released);
}

#[test]
fn databases_are_apart_and_have_a_number_that_exists() {
    let server = Redis::start(&["--databases", "4"]);
    let url = server.url_at(&server.process().address());
    let held = connect(&url);
    let _held = held.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    let third = connect(&format!("{url}/3"));
    let lock = third.mutex("m", LEASE).unwrap().try_lock().unwrap();
    assert!(lock.is_some(), "another database has other locks");
    works(&third, "w");
    for number in ["4", "2147483647"] {
        refused(&format!("{url}/{number}"), ErrorKind::Config, "no database");
    }
    for wrong in ["x", "2147483648", "-1", "4294967296", "1/2"] {
        refused(&format!("{url}/{wrong}"), ErrorKind::Config, "database");
    }
}

#[test]
fn protected_mode_is_named() {
    // Where a packet to another host would leave from; nothing is sent.
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.77:9").expect("this machine has a network besides the loopback");
    let own = socket.local_addr().unwrap().ip();
    assert!(!own.is_loopback(), "this machine has a network besides the loopback");
    let server = Redis::start(&["--bind", "0.0.0.0", "--protected-mode", "yes"]);
    let url = server.url_at(&format!("{own}:{}", server.process().port()));
    refused(&url, ErrorKind::Unreachable, "protected mode");
}
