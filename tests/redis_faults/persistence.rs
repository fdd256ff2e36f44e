//! Snapshots, the append-only file, replicas.

use std::fs;
use std::thread;
use std::time::Duration;

use memlock_core::{ErrorKind, Release, RenewOptions};
use memlock_tests::assert_safe;
use memlock_tests::client::{connect, fence, fences_rise, last_fence, until_renewed};
use memlock_tests::launch::{poll_until, until};
use memlock_tests::names::{Name, relays};
use memlock_tests::process::Server;

use crate::stores::redis::{Redis, reply};
use crate::{LEASE, PATIENCE, client, refused};

/// A connection that was idle for so long is checked before it is used again.
const UNCHECKED: Duration = Duration::from_millis(150);

/// The locks that were granted after the snapshot are lost, and released ones may be back; fences
/// rise all the same.
#[test]
fn fences_rise_although_an_old_snapshot_is_restored() {
    let server = Redis::start(&["--save", "3600 100000"]);
    let client = client(&server);
    let old = client.mutex("old", LEASE).unwrap().try_lock().unwrap().unwrap();
    let () = server.reply(&["SAVE"]);
    let mutex = client.mutex("m", LEASE).unwrap();
    for _ in 0..500 {
        drop(mutex.try_lock().unwrap().unwrap());
    }
    let mut lock = mutex.try_lock().unwrap().unwrap();
    thread::sleep(UNCHECKED);
    server.restart();
    assert!(old.check().unwrap(), "it was in the snapshot");
    assert!(!lock.check().unwrap(), "it was not");
    let mut next = mutex.try_lock().unwrap().unwrap();
    assert_safe!(next.fence() > lock.fence(), "{} after {}", next.fence(), lock.fence());
    assert!(matches!(lock.unlock().unwrap(), Release::Lost | Release::NotHeld));
    assert_eq!(next.unlock().unwrap(), Release::Released);
}

const PRIMARY: [&str; 4] = ["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"];

/// Makes a server a replica, and waits until it has the data.
fn replicate(replica: &Redis, primary: &Redis) {
    let port = primary.process().port().to_string();
    let () = replica.reply(&["REPLICAOF", "127.0.0.1", &port]);
    let mut admin = replica.connection();
    let is_up = || {
        let info: String = reply(&mut admin, &["INFO", "replication"]);
        info.contains("master_link_status:up").then_some(())
    };
    poll_until(PATIENCE, is_up).expect("the replica never got the data");
}

/// Starts a replica, and waits until it has the data.
fn replica_of(primary: &Redis) -> Redis {
    let replica = Redis::start(&PRIMARY);
    replicate(&replica, primary);
    replica
}

#[test]
fn a_replica_that_is_promoted_grants_with_greater_fences() {
    let primary = Redis::start(&PRIMARY);
    let before = client(&primary);
    let kept = before.mutex("kept", LEASE).unwrap().try_lock().unwrap().unwrap();
    let replica = replica_of(&primary);
    refused(&replica.url(), ErrorKind::Unreachable, "read-only replica");
    let synced: String = replica.reply(&["GET", "%fence"]);
    assert!(synced.parse::<u64>().unwrap() >= kept.fence());
    // What happens from now on never reaches it.
    let () = replica.reply(&["REPLICAOF", "127.0.0.1", "1"]);
    let mutex = before.mutex("m", LEASE).unwrap();
    let mut lost = mutex.try_lock().unwrap().unwrap();
    for _ in 0..100 {
        let fence = lost.fence();
        assert_eq!(lost.unlock().unwrap(), Release::Released);
        lost = mutex.try_lock().unwrap().unwrap();
        assert_safe!(lost.fence() > fence, "the fence did not rise");
    }
    refused(&replica.url(), ErrorKind::Unreachable, "read-only replica");
    let () = replica.reply(&["REPLICAOF", "NO", "ONE"]);
    let after = client(&replica);
    assert_safe!(after.mutex("kept", LEASE).unwrap().try_lock().unwrap().is_none(), "held twice");
    // Granted twice, as documented: the resource can tell by the fence.
    let second = after.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    assert!(lost.check().unwrap());
    assert_safe!(second.fence() > lost.fence(), "{} after {}", second.fence(), lost.fence());
}

/// By less than a minute, since a server that has been up for long raises its counter with each
/// connection; by any time, since one that was started a moment ago does not.
#[test]
fn a_promoted_replica_whose_clock_is_behind_gives_greater_fences() {
    for (behind, primary_age) in [(29, 0), (86_400, 0), (50, 3600)] {
        let primary = Redis::start(&PRIMARY);
        fence(&client(&primary));
        if primary_age > 0 {
            make_older(&primary, primary_age);
        }
        let replica = Redis::with_clock(-behind, &[]);
        replicate(&replica, &primary);
        // What happens from now on never reaches it.
        let () = replica.reply(&["REPLICAOF", "127.0.0.1", "1"]);
        let last = last_fence(|| client(&primary));
        let () = replica.reply(&["REPLICAOF", "NO", "ONE"]);
        fences_rise(last, &[&client(&replica)], &format!("{behind} s behind"));
    }
}

/// As if the server had been up for so many seconds, and no connection had been opened meanwhile.
fn make_older(server: &Redis, seconds: u64) {
    let note: String = server.reply(&["GET", "%fence%life"]);
    let (life, first) = note.split_once(' ').unwrap();
    let first = first.parse::<u64>().unwrap() - seconds * 1_000_000;
    let () = server.reply(&["SET", "%fence%life", &format!("{life} {first}")]);
    let () = server.reply(&["SET", "%fence", &first.to_string()]);
}

/// Which closes no connection: one of them was idle meanwhile.
#[test]
fn fences_rise_although_a_server_was_a_replica_of_an_older_copy() {
    for has_copy_of_itself in [true, false] {
        let server = Redis::start(&PRIMARY);
        let idle = client(&server);
        fence(&idle);
        let copy = if has_copy_of_itself { replica_of(&server) } else { Redis::start(&PRIMARY) };
        let () = copy.reply(&["REPLICAOF", "NO", "ONE"]);
        let last = last_fence(|| client(&server));
        replicate(&server, &copy);
        let () = server.reply(&["REPLICAOF", "NO", "ONE"]);
        // A connection for which the counter was raised a moment ago draws without more ado.
        thread::sleep(Duration::from_secs(1));
        fences_rise(last, &[&idle, &client(&server)], "back from a copy");
    }
}

/// A connection that is always in use is none of those that wait for a second. Its own fences do not show
/// that the counter is an older one.
#[test]
fn a_busy_connection_notices_an_older_counter_within_a_second() {
    let server = Redis::start(&[]);
    let (busy, other) = (client(&server), client(&server));
    let copied = fence(&busy).to_string();
    let last = (0..1000).map(|_| fence(&other)).max().unwrap();
    // As a copy of before would be, of another life.
    let () = server.reply(&["MSET", "%fence", &copied, "%fence%life", "another/ 1"]);
    let began = std::time::Instant::now();
    let mut next = 0;
    while began.elapsed() < Duration::from_millis(1500) {
        next = fence(&busy);
        thread::sleep(Duration::from_millis(50));
    }
    assert_safe!(next > last, "{next} after {last}");
}

/// With the policy `allkeys-random`, either of the two keys may go.
#[test]
fn evicted_notes_do_not_drive_the_counter_ahead_of_the_clock() {
    let server = Redis::start(&[]);
    let mut last = 0;
    for _ in 0..20 {
        let () = server.reply(&["DEL", "%fence%life"]);
        last = fences_rise(last, &[&client(&server)], "the note is gone");
    }
    let () = server.reply(&["DEL", "%fence"]);
    fences_rise(last, &[&client(&server)], "the counter is gone");
}

/// Without a new life of the server, and for clients that were not connected before.
#[test]
fn fences_rise_although_the_counter_was_replaced() {
    let server = Redis::start(&[]);
    let mut last = fence(&client(&server));
    for replace in [&["SET", "%fence", "17"][..], &["DEL", "%fence"], &["DEL", "%fence%life"]] {
        let _: redis::Value = server.reply(replace);
        last = fences_rise(last, &[&client(&server)], &format!("{replace:?}"));
    }
    // By a number of this life, which is an hour old.
    make_older(&server, 3600);
    last = fence(&client(&server));
    let time: (u64, u64) = server.reply(&["TIME"]);
    let behind = time.0 - last / 1_000_000;
    assert!((60..160).contains(&behind), "raised to {behind} s ago");
    let replaced = (last - 1_000_000_000).to_string();
    let () = server.reply(&["SET", "%fence", &replaced]);
    fences_rise(last, &[&client(&server)], "set back within one life");
}

#[test]
fn a_server_that_cannot_save_is_named() {
    let server = Redis::start(&["--save", "3600 100000"]);
    let client = client(&server);
    let mut lock = client.mutex("held", LEASE).unwrap().try_lock().unwrap().unwrap();
    fs::remove_dir_all(server.directory()).unwrap();
    let mut admin = server.connection();
    let saved: redis::RedisResult<()> = redis::cmd("SAVE").query(&mut admin);
    saved.unwrap_err();
    let saving: redis::RedisResult<String> = redis::cmd("BGSAVE").query(&mut admin);
    drop(saving);
    let refuses = || {
        let info: String = reply(&mut admin, &["INFO", "persistence"]);
        info.contains("rdb_last_bgsave_status:err").then_some(())
    };
    poll_until(PATIENCE, refuses).expect("it saves");
    for _ in 0..2 {
        let error = client.mutex("n", LEASE).unwrap().try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(error.to_string().contains("cannot save"), "{error}");
    }
    refused(&server.url(), ErrorKind::Protocol, "cannot save");
    let held = connect(&server.url()).mutex("held", LEASE).unwrap();
    assert!(held.try_lock().unwrap().is_none(), "it is busy");
    // Reads work, and nothing is lost.
    assert!(lock.check().unwrap());
    let error = lock.unlock().unwrap_err();
    assert!(error.to_string().contains("cannot save"), "{error}");
    assert!(lock.remaining() > LEASE / 2, "it is still held, and it says so");
    let () = server.reply(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    assert_eq!(lock.unlock().unwrap(), Release::Released);
}

/// The demoted server stays there, and answers: only its errors say that it takes no writes.
#[test]
fn a_name_is_followed_from_a_demoted_primary_to_its_promoted_replica() {
    let primary = Redis::start(&PRIMARY);
    let replica = replica_of(&primary);
    let address = |server: &Redis| server.process().address();
    let places = [("127.0.0.2", address(&primary)), ("127.0.0.3", address(&replica))];
    let ([_old, _new], port) = relays(places);
    let name = Name::of(&["127.0.0.2"]);
    let client = connect(&primary.url_at(&name.with_port(port)));
    // The failover is over before it ends.
    let lock = client.mutex("m", Duration::from_secs(20)).unwrap().lock().unwrap();
    let kept = lock.renew(RenewOptions::default()).unwrap();
    let has = |name: &str| replica.reply::<usize>(&["EXISTS", &format!("lock:{name}")]) == 1;
    until("the replica has the lock", || has("m"));
    let () = replica.reply(&["REPLICAOF", "NO", "ONE"]);
    let () = primary.reply(&["REPLICAOF", "127.0.0.1", &replica.process().port().to_string()]);
    name.lead_to(&["127.0.0.3"]);
    let next = client.mutex("n", LEASE).unwrap().try_lock().unwrap().unwrap();
    assert!(has("n"));
    let remaining = || replica.reply::<i64>(&["PTTL", "lock:m"]);
    until_renewed("on the replica", remaining);
    assert!(kept.is_held() && kept.lost().is_none());
    assert_eq!(kept.release().unwrap(), Release::Released);
    drop(next);
    assert!(!has("m") && !has("n"));
}

/// Which answers what they ask: that the lock is held.
#[test]
fn waiters_follow_a_name_from_a_demoted_primary() {
    let (old, new) = (Redis::start(&PRIMARY), Redis::start(&PRIMARY));
    let address = |server: &Redis| server.process().address();
    let ([_old, _new], port) = relays([("127.0.0.2", address(&old)), ("127.0.0.3", address(&new))]);
    let name = Name::of(&["127.0.0.2"]);
    let url = memlock_tests::url::with(&old.url_at(&name.with_port(port)), "notify=off");
    let (holder, waiter) = (connect(&old.url()), connect(&url));
    let held = holder.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.mutex("m", LEASE).unwrap().lock_for(PATIENCE));
        until("it waits", || old.reply::<usize>(&["EXISTS", "{lock:m}%wait"]) == 1);
        let () = old.reply(&["REPLICAOF", "127.0.0.1", "1"]);
        name.lead_to(&["127.0.0.3"]);
        assert!(waits.join().unwrap().unwrap().is_some(), "it asks the old one");
    });
    held.abandon();
}
