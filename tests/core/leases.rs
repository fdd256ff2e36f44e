//! Time as the subject: leases on a real server's clock, at every phase of its ticks.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, Moment, SystemClock};
use memlock_core::{Client, Extension, Release};
use memlock_tests::server::Memcached;
use memlock_tests::{assert_safe, assert_safe_eq};

/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is said of a grant that took longer than its lease.
const TOO_SLOW: &str = "longer to answer than the lease";

fn now() -> Moment {
    SystemClock.now()
}

/// When the server could grant a lock again.
struct GivenAway {
    /// The start of the last request that was refused.
    after: Moment,
    /// The end of the request that was granted.
    by: Moment,
}

/// Polls without mercy until the mutex is granted.
fn given_away(client: &Client, name: &str, limit: Duration) -> GivenAway {
    let began = now();
    // Long enough for a slow reply.
    let mutex = client.mutex(name, Duration::from_secs(30)).unwrap();
    let mut after = began;
    loop {
        let asked = now();
        if let Some(mut lock) = mutex.try_lock().unwrap() {
            let by = now();
            let _ = lock.unlock().unwrap();
            return GivenAway { after, by };
        }
        after = asked;
        assert!(asked.since(began) < limit, "{name} was never given away");
        thread::sleep(Duration::from_millis(2));
    }
}

fn granted_at(client: &Client, name: &str, limit: Duration) -> Moment {
    given_away(client, name, limit).by
}

#[test]
fn a_lease_is_never_granted_twice_at_any_phase_of_the_servers_clock() {
    let server = Memcached::start();
    let client = Client::connect(&format!("{}?io_timeout=10s", server.url())).unwrap();
    for lease in [1000, 1400] {
        thread::scope(|scope| {
            // Twenty-five phases, each 40 ms after the one before.
            for phase in 0..25 {
                let client = &client;
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(phase * 40));
                    let name = format!("{lease} {phase}");
                    let mutex = client.mutex(&name, Duration::from_millis(lease)).unwrap();
                    // A machine that stands still for longer than the lease says so: try again.
                    let lock = loop {
                        match mutex.lock() {
                            Ok(lock) => break lock,
                            Err(error) => assert!(error.to_string().contains(TOO_SLOW), "{error}"),
                        }
                    };
                    let deadline = now() + lock.remaining();
                    std::mem::forget(lock);
                    let next = given_away(client, &name, PATIENCE);
                    let early = deadline.since(next.by);
                    assert_safe!(next.by > deadline, "phase {phase}: granted {early:?} too early");
                    let late = next.after.since(deadline);
                    // The rest of the second, the two seconds more that are asked for, and a tick
                    // that comes late.
                    assert!(
                        late < Duration::from_millis(3100),
                        "phase {phase}: only after {late:?}"
                    );
                });
            }
        });
    }
}

#[test]
fn an_extended_lease_is_counted_from_the_extension() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let mut lock = client.mutex("m", Duration::from_secs(2)).unwrap().lock().unwrap();
    // Half of the lease, so that there is time for the extension on a busy machine.
    thread::sleep(Duration::from_secs(1));
    assert_eq!(lock.extend(Duration::from_secs(2)).unwrap(), Extension::Extended);
    let deadline = now() + lock.remaining();
    std::mem::forget(lock);
    assert_safe!(granted_at(&client, "m", PATIENCE) > deadline, "granted twice");
}

#[test]
fn an_overrun_holder_finds_its_lock_lost_and_its_successor_untouched() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let mutex = client.mutex("m", Duration::from_secs(1)).unwrap();
    let mut old = mutex.lock().unwrap();
    let mut new = client.mutex("m", Duration::from_secs(60)).unwrap().lock().unwrap();
    assert_safe!(new.fence() > old.fence(), "the fence did not rise");
    assert!(old.remaining().is_zero());
    assert_safe_eq!(
        old.extend(Duration::from_secs(60)).unwrap(),
        Extension::Lost,
        "a renewal never steals"
    );
    assert_eq!(old.unlock().unwrap(), Release::Lost);
    assert_safe!(mutex.try_lock().unwrap().is_none(), "held twice");
    assert_eq!(new.unlock().unwrap(), Release::Released);
}

#[test]
fn a_lease_beyond_thirty_days_is_neither_immortal_nor_dead_at_once() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let day = Duration::from_secs(24 * 3600);
    for days in [29, 30, 31, 366] {
        let mutex = client.mutex(format!("{days}"), days * day).unwrap();
        let lock = mutex.lock().unwrap();
        let kept = mutex.owner().unwrap().unwrap().remaining.unwrap();
        let most = days * day + days * day / 5000 + Duration::from_secs(60);
        assert!(kept >= days * day && kept < most, "{days} days: {kept:?}");
        drop(lock);
    }
}

/// A server that stood still cannot have counted the seconds: the item's TTL is read back.
#[test]
fn a_grant_from_a_server_that_stood_still_is_not_believed_for_longer_than_the_server_keeps_it() {
    let server = Memcached::start();
    let client = Client::connect(&format!("{}?io_timeout=10s", server.url())).unwrap();
    let mutex = client.mutex("m", Duration::from_secs(4)).unwrap();
    mutex.owner().unwrap();
    server.pause();
    let deadline = thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let lock = mutex.lock().unwrap();
            let deadline = now() + lock.remaining();
            std::mem::forget(lock);
            deadline
        });
        thread::sleep(Duration::from_millis(1800));
        server.resume();
        waiter.join().unwrap()
    });
    assert_safe!(granted_at(&client, "m", PATIENCE) > deadline, "granted twice");
}

#[test]
fn a_grant_that_took_longer_than_its_lease_is_given_up() {
    let server = Memcached::start();
    let client = Client::connect(&format!("{}?io_timeout=10s", server.url())).unwrap();
    let mutex = client.mutex("m", Duration::from_secs(1)).unwrap();
    mutex.owner().unwrap();
    server.pause();
    thread::scope(|scope| {
        let (begins, begun) = mpsc::channel();
        let mutex = &mutex;
        let waiter = scope.spawn(move || {
            begins.send(()).unwrap();
            mutex.try_lock().map(|lock| lock.map(|lock| lock.remaining()))
        });
        begun.recv().unwrap();
        thread::sleep(Duration::from_millis(1800));
        server.resume();
        let told = waiter.join().unwrap().unwrap_err();
        assert!(told.to_string().contains(TOO_SLOW), "{told}");
    });
    assert_safe!(mutex.owner().unwrap().is_none(), "and nothing is left behind");
}

#[test]
fn a_session_and_its_keys_end_with_its_duration() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let mut list = client.distinct_list("s").unwrap();
    let began = now();
    let _ = list.set_up(Duration::from_secs(2)).unwrap();
    let _ = list.insert("k").unwrap().unwrap();
    let (mut late, mut asked, mut lived) = (0, began, began);
    while let Some(told) = list.insert(format!("later {late}")).unwrap() {
        assert_eq!(told.id(), late + 2, "ids are dense for as long as the session lives");
        late += 1;
        lived = asked;
        thread::sleep(Duration::from_millis(20));
        asked = now();
    }
    let over = now().since(began);
    assert!(over > Duration::from_secs(2), "{over:?}");
    assert!(lived.since(began) < Duration::from_secs(5), "{:?}", lived.since(began));
    let mut next = client.distinct_list("s").unwrap();
    let _ = next.set_up(Duration::from_secs(60)).unwrap();
    assert_eq!(next.insert("k").unwrap().unwrap().id(), 1);
}
