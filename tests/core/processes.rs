//! Plain memcached clients beside us, what belongs to the process, and how often a waiter wakes up.

use std::thread;
use std::time::Duration;

use memlock_core::{Answer, Client, ErrorKind, Extension, Release, Wait, bare};
use memlock_tests::assert_safe;
use memlock_tests::launch::until;
use memlock_tests::server::Memcached;

const LEASE: Duration = Duration::from_secs(30);

#[test]
fn a_plain_clients_add_and_ours_exclude_each_other() {
    let server = Memcached::start();
    let mut plain = server.plain();
    let client = Client::connect(&server.url()).unwrap();
    let mutex = client.mutex("xyz", LEASE).unwrap();
    assert!(plain.add("lock:xyz", "1", 60));
    assert_safe!(mutex.try_lock().unwrap().is_none(), "held twice");
    let owner = mutex.owner().unwrap().unwrap();
    assert_eq!((owner.record, owner.value), (None, b"1".to_vec()));
    assert!(plain.delete("lock:xyz"));
    let mut lock = mutex.try_lock().unwrap().unwrap();
    assert_safe!(!plain.add("lock:xyz", "1", 60), "held twice");
    let value = String::from_utf8(plain.get("lock:xyz").unwrap()).unwrap();
    assert!(
        value.starts_with("memlock/1 ") && value.contains(&format!(" {} ", std::process::id())),
        "{value}"
    );
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert!(plain.add("lock:xyz", "1", 60));
    let token = mutex.owner().unwrap().unwrap().token();
    assert!(
        mutex.force_unlock(&token).unwrap(),
        "an operator can release a plain client's lock too"
    );
    assert_eq!(plain.get("lock:xyz"), None);
}

#[test]
fn another_clients_touch_of_an_item_does_not_lose_the_lock() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
    // Appending nothing gives the item another version and leaves its value.
    assert!(server.plain().command("ms lock:m 0 MA\r\n").starts_with("HD"));
    assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
    assert!(server.plain().command("ms lock:m 0 MA\r\n").starts_with("HD"));
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert_eq!(server.plain().get("lock:m"), None);
}

/// One test for all that the bare functions do: the process has one default client. What a forked
/// child has of it is in `tests/c/fork.c`.
#[test]
fn the_bare_functions_belong_to_the_process() {
    let server = Memcached::start();
    bare::init(&server.url()).unwrap();
    assert!(bare::init(&server.url()).is_err(), "it is chosen once");
    assert_eq!(bare::mutex_unlock(b"m").unwrap(), Answer::NotHeld);
    assert_eq!(bare::mutex_lock(b"m", LEASE).unwrap(), Answer::Ok);
    assert_eq!(bare::mutex_lock(b"m", LEASE).unwrap_err().kind(), ErrorKind::Deadlock);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(bare::mutex_lock_nonblock(b"m", LEASE).unwrap(), Answer::Busy);
            assert_eq!(bare::mutex_unlock(b"m").unwrap(), Answer::Ok);
        });
    });
    assert_eq!(bare::mutex_lock(b"m", LEASE).unwrap(), Answer::Ok);
    assert!(server.plain().delete("lock:m"));
    assert_eq!(bare::mutex_unlock(b"m").unwrap(), Answer::Lost);
    // A lock that the server has lost is forgotten, also while another client has it.
    assert_eq!(bare::mutex_lock(b"m", LEASE).unwrap(), Answer::Ok);
    let brief = Wait::at_most(Duration::from_millis(20));
    assert_eq!(bare::lock(b"m", LEASE, &brief).unwrap(), Answer::TimedOut);
    assert!(server.plain().delete("lock:m"));
    let client = Client::connect(&server.url()).unwrap();
    let other = client.mutex("m", LEASE).unwrap().lock().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            until("it waits", || server.plain().get("lock:m%wait").is_some());
            drop(other);
        });
        assert_eq!(bare::mutex_lock(b"m", LEASE).unwrap(), Answer::Ok);
    });
    assert_eq!(bare::mutex_unlock(b"m").unwrap(), Answer::Ok);
    // A thread that overran its lease does not release the thread that came after it.
    assert_eq!(bare::mutex_lock(b"overrun", Duration::from_secs(2)).unwrap(), Answer::Ok);
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(bare::mutex_lock(b"overrun", LEASE).unwrap(), Answer::Ok));
    });
    assert_eq!(bare::mutex_unlock(b"overrun").unwrap(), Answer::Lost);
    assert!(server.plain().get("lock:overrun").is_some(), "the successor's lock was left alone");
    assert_eq!(bare::mutex_unlock(b"overrun").unwrap(), Answer::Ok, "any thread may unlock it");
    // Another client's session is not this process's until it is joined.
    assert_eq!(bare::distinct_list_insert(b"s", b"k").unwrap(), Answer::NotFound);
    assert_eq!(bare::distinct_list_set_up(b"s", LEASE).unwrap(), Answer::Ok);
    assert_eq!(bare::distinct_list_insert(b"s", b"k").unwrap(), Answer::Ok);
    assert_eq!(bare::distinct_list_tear_down(b"s").unwrap(), Answer::Ok);
    let other = Client::connect(&server.url()).unwrap();
    let _ = other.distinct_list("s").unwrap().set_up(LEASE).unwrap();
    assert_eq!(bare::distinct_list_insert(b"s", b"k").unwrap(), Answer::NotFound);
    assert_eq!(bare::distinct_list_tear_down(b"s").unwrap(), Answer::NotFound);
    assert_eq!(bare::distinct_list_set_up(b"s", LEASE).unwrap(), Answer::Exists);
    assert_eq!(bare::distinct_list_insert(b"s", b"k").unwrap(), Answer::Ok);
    assert_eq!(bare::distinct_list_tear_down(b"s").unwrap(), Answer::Ok);
}

/// A waiter polls now and then; on a busy machine, less often.
#[test]
fn a_waiter_sleeps_between_its_looks() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
    let waiter = thread::spawn({
        let client = client.clone();
        move || {
            let mutex = client.mutex("m", LEASE).unwrap();
            let before = wake_ups();
            assert!(mutex.lock_for(Duration::from_secs(2)).unwrap().is_none());
            wake_ups() - before
        }
    });
    let often = waiter.join().unwrap();
    assert!(often < 40, "it woke up {often} times in two seconds of waiting");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
}

/// How often the current thread has gone to sleep, or was made to.
fn wake_ups() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let said = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    said.unwrap().trim().parse().unwrap()
}
