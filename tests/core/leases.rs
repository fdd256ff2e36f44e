//! Leases of locks and permits on a real server's clock, at every phase of its ticks.

use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, Moment, SystemClock};
use memlock_core::{Client, Extension, Result, SetUp};
use memlock_tests::assert_safe;
use memlock_tests::proxy::{Fault, Match, Proxy};
use memlock_tests::server::Memcached;

use crate::bench::{KINDS, Kind};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

/// Part of the error of a grant that took longer than its lease.
const TOO_SLOW: &str = "longer to answer than the lease";

fn now() -> Moment {
    SystemClock.now()
}

fn connect(server: &Memcached) -> Client {
    Client::connect(&server.url()).unwrap()
}

/// Repeats an attempt during which the machine stood still for longer than the lease.
fn granted<T>(mut attempt: impl FnMut() -> Result<T>) -> T {
    loop {
        match attempt() {
            Ok(granted) => return granted,
            Err(error) => assert!(error.to_string().contains(TOO_SLOW), "{error}"),
        }
    }
}

/// Asserts that all attempts until this moment are refused.
fn is_refused_until(deadline: Moment, what: &str, mut attempt: impl FnMut() -> bool) {
    thread::sleep(deadline.since(now()).saturating_sub(Duration::from_millis(20)));
    while now() <= deadline {
        let is_granted = attempt();
        assert_safe!(!is_granted || now() > deadline, "{what}: granted too early");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Acquires it for a holder that dies. Returns for how long the server keeps it, and until when its
/// holder relies on it.
fn dead(kind: Kind, client: &Client, name: &str, lease: Duration) -> (Duration, Moment) {
    let held = granted(|| kind.attempt(client, name, lease)).expect("it was free");
    let (token, deadline) = (held.token(), held.deadline());
    std::mem::forget(held);
    let kept = match kind {
        Kind::Lock => {
            let owner = client.mutex(name, lease).unwrap().owner().unwrap();
            owner.and_then(|owner| owner.remaining)
        }
        Kind::Permit => {
            let holders = client.semaphore(name, 1, lease).unwrap().status().unwrap();
            let mut holders = holders.unwrap().holders.into_iter();
            holders.find(|holder| holder.token == token).map(|holder| holder.remaining)
        }
    };
    // Where the machine stands still, it may be over by now.
    (kept.unwrap_or_default(), deadline)
}

#[test]
fn a_lease_is_never_granted_twice_and_ends_soon_at_any_phase_of_the_servers_clock() {
    let server = Memcached::start();
    let client = &connect(&server);
    thread::scope(|scope| {
        // Twenty-five phases, each 40 ms after the one before.
        for (phase, lease) in (0..25).flat_map(|phase| [(phase, 1000), (phase, 1400)]) {
            for kind in KINDS {
                scope.spawn(move || {
                    let (name, lease) = (format!("{lease} {phase}"), Duration::from_millis(lease));
                    thread::sleep(Duration::from_millis(phase * 40));
                    if kind == Kind::Permit {
                        // The next one is reckoned from what the reply to this one, so long before,
                        // showed of the server's clock.
                        drop(kind.hold(client, &name, LEASE));
                        thread::sleep(Duration::from_millis(phase * 13));
                    }
                    let (kept, deadline) = dead(kind, client, &name, lease);
                    let what = format!("{kind:?}, {lease:?}, phase {phase}");
                    let more = if kind == Kind::Lock { 3 * SECOND } else { 4 * SECOND };
                    assert!(kept < lease + more, "{what}: kept for {kept:?}");
                    is_refused_until(deadline, &what, || {
                        kind.attempt(client, &name, LEASE).unwrap().is_some()
                    });
                });
            }
        }
    });
}

#[test]
fn an_extended_lease_is_counted_from_the_extension() {
    let server = Memcached::start();
    let client = connect(&server);
    let mutex = client.mutex("m", LEASE).unwrap();
    let mut lock = mutex.lock().unwrap();
    thread::sleep(SECOND);
    assert_eq!(lock.extend(2 * SECOND).unwrap(), Extension::Extended);
    let deadline = lock.deadline();
    std::mem::forget(lock);
    is_refused_until(deadline, "extended", || mutex.try_lock().unwrap().is_some());
}

#[test]
fn a_lease_beyond_thirty_days_is_neither_immortal_nor_dead_at_once() {
    let server = Memcached::start();
    let client = connect(&server);
    let day = Duration::from_secs(24 * 3600);
    for days in [29, 30, 31, 366] {
        let (kept, _) = dead(Kind::Lock, &client, &format!("{days}"), days * day);
        let most = days * day + days * day / 5000 + Duration::from_secs(60);
        assert!(
            kept > days * day - Duration::from_secs(60) && kept < most,
            "{days} days: {kept:?}"
        );
    }
}

/// A server that stood still cannot have counted the seconds: the item's TTL is read back.
#[test]
fn a_grant_from_a_server_that_stood_still_is_not_believed_for_longer_than_the_server_keeps_it() {
    let server = Memcached::start();
    let client = connect(&server);
    let mutex = client.mutex("m", 4 * SECOND).unwrap();
    mutex.owner().unwrap();
    server.pause();
    let (_, deadline) = thread::scope(|scope| {
        let waiter = scope.spawn(|| dead(Kind::Lock, &client, "m", 4 * SECOND));
        thread::sleep(Duration::from_millis(1800));
        server.resume();
        waiter.join().unwrap()
    });
    is_refused_until(deadline, "after a pause", || mutex.try_lock().unwrap().is_some());
}

#[test]
fn a_grant_that_took_longer_than_its_lease_is_given_up() {
    let server = Memcached::start();
    let proxy = Proxy::start(server.address());
    let client = Client::connect(&format!("{}?io_timeout=20s", proxy.url())).unwrap();
    proxy.inject(Match::Adding, Fault::DelayReply(SECOND));
    let refused = client.mutex("m", SECOND).unwrap().try_lock().map(drop).unwrap_err();
    assert!(refused.to_string().contains(TOO_SLOW), "{refused}");
    assert!(server.plain().get("lock:m").is_none(), "and nothing is left behind");
}

#[test]
fn a_session_and_its_keys_end_with_its_duration() {
    let server = Memcached::start();
    let client = connect(&server);
    let mut list = client.distinct_list("s").unwrap();
    let began = now();
    let _ = list.set_up(2 * SECOND).unwrap();
    let mut last = 0;
    while let Some(inserted) = list.insert(format!("{last}")).unwrap() {
        last += 1;
        assert_eq!(inserted.id(), last, "ids are dense for as long as the session lives");
        assert!(now().since(began) < 2 * LEASE, "it does not end");
        thread::sleep(Duration::from_millis(20));
    }
    let over = now().since(began);
    assert!(over > 2 * SECOND, "{over:?}");
    let mut next = client.distinct_list("s").unwrap();
    let _ = next.set_up(LEASE).unwrap();
    assert_eq!(next.insert("0").unwrap().unwrap().id(), 1, "nothing of it is left");
}

#[test]
fn a_semaphore_is_kept_for_its_life_after_it_was_used_last_and_as_long_as_it_is_held() {
    let server = Memcached::start();
    let client = connect(&server);
    let kept = |longest: u64| {
        let said = server.plain().command("mg semaphore:s t");
        let seconds: u64 = said.strip_prefix("HD t").unwrap().parse().unwrap();
        assert!(seconds > longest - 20, "{seconds}");
    };
    for (life, longest) in [(10 * SECOND, 60), (120 * SECOND, 120)] {
        let semaphore = client.semaphore("s", 1, 60 * SECOND).unwrap();
        assert_eq!(semaphore.set_up(life).unwrap(), SetUp::Created);
        // From the second time on a step builds upon what the last one saw.
        for _ in 0..2 {
            let permit = semaphore.acquire().unwrap();
            kept(longest);
            drop(permit);
        }
        kept(life.as_secs().max(21));
        assert!(semaphore.tear_down().unwrap());
    }
}
