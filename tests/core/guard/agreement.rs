//! All clients of a server have the same guard, or none.

use std::thread;

use memlock_core::{Client, Error, ErrorKind};
use memlock_tests::launch::poll_until;
use memlock_tests::url;

use super::{Bench, GUARD, PATIENCE, SECOND, hold};

#[track_caller]
fn is_refused<T>(bench: &Bench, outcome: Result<T, Error>, values: [&str; 2]) {
    let error = outcome.err().expect("it must be refused");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let text = error.to_string();
    assert!(values.iter().all(|value| text.contains(value)), "{values:?}: {text}");
    assert!(text.contains(&bench.proxy.address()) && text.ends_with('.'), "{text}");
}

fn with(bench: &Bench, parameters: &str) -> Client {
    Client::connect(&format!("{}?{parameters}", bench.proxy.url())).unwrap()
}

/// Every call of a client that must not use the server.
#[track_caller]
fn is_refused_everything(bench: &Bench, client: &Client, values: [&str; 2]) {
    let mutex = client.mutex("m", SECOND).unwrap();
    is_refused(bench, mutex.try_lock(), values);
    is_refused(bench, mutex.lock(), values);
    is_refused(bench, mutex.owner(), values);
    let semaphore = client.semaphore("s", 1, SECOND).unwrap();
    is_refused(bench, semaphore.try_acquire(), values);
    is_refused(bench, semaphore.acquire(), values);
    is_refused(bench, semaphore.set_up(SECOND), values);
    is_refused(bench, client.counter("c").unwrap().set_up(1), values);
    is_refused(bench, client.distinct_list("l").unwrap().set_up(SECOND), values);
}

#[test]
fn the_first_client_writes_down_what_all_agree_on() {
    let bench = Bench::fresh();
    let client = bench.client();
    assert!(client.mutex("m", GUARD).unwrap().try_lock().unwrap().is_none());
    let (value, _, _) = bench.server.plain().gets("memlock%config").unwrap();
    assert_eq!(value, b"memlock-config/1 guard=60s");
    let ttl = bench.server.plain().command("mg memlock%config t");
    assert_eq!(ttl, "HD t-1", "it never expires");
    for same in ["guard=60", "guard=60000ms"] {
        assert!(with(&bench, same).mutex("m", GUARD).unwrap().owner().is_ok(), "{same}");
    }
}

#[test]
fn a_client_with_another_guard_is_refused_with_both_values() {
    for [first, second] in [["3s", "5s"], ["5s", "3s"], ["3500ms", "3s"]] {
        let bench = Bench::start();
        let one = with(&bench, &format!("guard={first}"));
        assert!(one.mutex("m", SECOND).unwrap().owner().unwrap().is_none());
        let two = with(&bench, &format!("guard={second}"));
        let values = [&*format!("guard={first}"), &*format!("guard={second}")];
        is_refused_everything(&bench, &two, values);
        assert!(one.mutex("m", SECOND).unwrap().owner().unwrap().is_none());
    }
}

#[test]
fn a_client_without_a_guard_is_refused_with_the_one_that_is_missing() {
    let bench = Bench::start();
    let guarded = bench.client();
    assert!(guarded.mutex("m", SECOND).unwrap().owner().unwrap().is_none());
    is_refused_everything(&bench, &with(&bench, ""), ["guard=60s", "no guard="]);
}

/// Its connections are from before there was a guard; it is refused when it opens the next.
#[test]
fn a_client_that_came_before_the_guard_is_refused_at_its_next_connection() {
    let bench = Bench::start();
    let plain = with(&bench, "");
    let mut lock = plain.mutex("m", GUARD).unwrap().try_lock().unwrap().unwrap();
    let guarded = bench.client();
    assert!(guarded.mutex("m", GUARD).unwrap().owner().unwrap().is_some());
    bench.restart();
    assert!(guarded.mutex("m", GUARD).unwrap().owner().unwrap().is_none());
    is_refused(&bench, lock.extend(GUARD), ["guard=60s", "no guard="]);
    is_refused(&bench, lock.unlock(), ["guard=60s", "no guard="]);
    is_refused_everything(&bench, &plain, ["guard=60s", "no guard="]);
}

#[test]
fn another_prefix_has_another_guard_or_none() {
    let bench = Bench::fresh();
    let plain = with(&bench, "prefix=a:");
    let other = with(&bench, "prefix=b:&guard=2s");
    let guarded = bench.client();
    assert!(guarded.mutex("m", GUARD).unwrap().try_lock().unwrap().is_none());
    assert!(plain.mutex("m", 9 * GUARD).unwrap().try_lock().unwrap().is_some());
    assert!(other.mutex("m", SECOND).unwrap().try_lock().unwrap().is_none());
    let mut look = bench.server.plain();
    assert_eq!(look.get("b:memlock%config").unwrap(), b"memlock-config/1 guard=2s");
    assert_eq!(look.get("a:memlock%config"), None);
    bench.ages();
    drop(hold(&guarded, "m"));
}

#[test]
fn a_value_that_is_not_memlocks_is_refused_and_left_alone() {
    let bench = Bench::start();
    assert!(bench.server.plain().set("memlock%config", "somebody else's", 0));
    let mutex = bench.client().mutex("m", GUARD).unwrap();
    is_refused(&bench, mutex.try_lock(), ["somebody else's", "prefix="]);
    assert_eq!(bench.server.plain().get("memlock%config").unwrap(), b"somebody else's");
}

/// What a later version agrees on is not known to this one.
#[test]
fn what_a_later_version_has_agreed_on_is_refused() {
    let bench = Bench::start();
    assert!(bench.server.plain().set("memlock%config", "memlock-config/1 guard=60s more", 0));
    let mutex = bench.client().mutex("m", GUARD).unwrap();
    is_refused(&bench, mutex.try_lock(), ["guard=60s more", "guard=60s."]);
    assert!(bench.server.plain().set("memlock%config", "memlock-config/2 guard=60s", 0));
    let mutex = bench.client().mutex("m", GUARD).unwrap();
    is_refused(&bench, mutex.try_lock(), ["memlock%config", "version of memlock"]);
}

/// The server comes back, and another client is the first that speaks to it.
#[test]
fn a_waiter_that_finds_another_guard_after_a_restart_waits_no_longer() {
    for key in ["lock:m", "semaphore:s"] {
        let bench = Bench::start();
        let one = bench.client();
        let two = bench.client();
        let held = hold(&one, "m");
        let permit = one.semaphore("s", 1, GUARD).unwrap().acquire().unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| match key {
                "lock:m" => two.mutex("m", GUARD).unwrap().lock().map(|_| ()),
                _ => two.semaphore("s", 1, GUARD).unwrap().acquire().map(|_| ()),
            });
            bench.await_waiter(key);
            bench.server.kill();
            bench.proxy.refuse(true);
            bench.start_again();
            let other = Client::connect(&url::with(&bench.server.url(), "guard=9s")).unwrap();
            assert!(other.mutex("m", SECOND).unwrap().owner().unwrap().is_none());
            bench.proxy.refuse(false);
            let ended = poll_until(PATIENCE, || waiter.is_finished().then_some(()));
            two.cancel_waits();
            let error = waiter.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            assert!(ended.is_some(), "it waits for ever");
            let text = error.to_string();
            assert!(text.contains("guard=9s") && text.contains("guard=60s"), "{text}");
        });
        held.abandon();
        permit.abandon();
    }
}
