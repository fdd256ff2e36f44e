//! The server is killed, restarted, frozen, or not there.

use std::thread;
use std::time::Duration;

use memlock_core::store::Survives;
use memlock_core::{
    Client, ErrorKind, Extension, Insertion, Lock, Release, RenewOptions, Result, SetUp,
};
use memlock_tests::client::until_renewed;
use memlock_tests::launch::{ReservedPort, poll_until, until};
use memlock_tests::relay::{Fate, Relay};
use memlock_tests::sigpipe;
use memlock_tests::{assert_safe, assert_safe_eq, url};

use crate::{Bench, LEASE, PATIENCE, QUICK, is_free};

/// A connection that was idle for so long is checked before it is used again.
const UNCHECKED: Duration = Duration::from_millis(150);

/// A lock and a list, when the server is killed and comes back.
pub(crate) fn a_killed_server_keeps_what_it_promises(bench: &Bench) {
    let client = bench.client();
    let survives = client.guarantees().survives;
    let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
    let mut list = client.distinct_list("l").unwrap();
    assert_eq!(list.set_up(LEASE).unwrap(), SetUp::Created);
    let first = list.insert("key").unwrap();
    let Some(Insertion::First(id)) = first else { panic!("{first:?}") };
    bench.server().kill();
    // A connection that was just used is not checked before it is used again.
    thread::sleep(UNCHECKED);
    let error = client.mutex("n", LEASE).unwrap().try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(lock.remaining() > Duration::ZERO, "the lease goes on, whatever the server does");
    // Fences of two lives that begin in the same step of the clock are not compared.
    thread::sleep(client.guarantees().clock_step);
    bench.server().restart();
    let other = bench.client();
    assert!(survives != Survives::Nothing || !bench.keeps_when_killed);
    if !bench.keeps_when_killed {
        assert!(!lock.check().unwrap(), "it is lost, and its holder can know");
        let next = other.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
        assert_safe!(next.fence() > lock.fence(), "{} after {}", next.fence(), lock.fence());
        assert!(matches!(lock.unlock().unwrap(), Release::Lost | Release::NotHeld));
        assert_safe!(
            !is_free(&other, "m"),
            "a release that came too late leaves the next lock alone"
        );
    } else {
        assert!(lock.check().unwrap(), "it is still held");
        assert_safe!(other.mutex("m", LEASE).unwrap().try_lock().unwrap().is_none(), "held twice");
        assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
        let mut again = client.distinct_list("l").unwrap();
        assert_eq!(again.set_up(LEASE).unwrap(), SetUp::Joined);
        assert_safe_eq!(
            again.insert("key").unwrap(),
            Some(Insertion::Duplicate(id)),
            "accepted twice"
        );
        let fence = lock.fence();
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        let next = other.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
        assert_safe!(next.fence() > fence, "the fence did not rise");
    }
}

/// Waiters of another process than the holder's come through a restart in the middle of their wait.
pub(crate) fn waiters_outlive_a_restart(bench: &Bench) {
    let holder = bench.client();
    let mut lock = holder.mutex("m", LEASE).unwrap().lock().unwrap();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..2)
            .map(|_| {
                let client = bench.client();
                scope.spawn(move || {
                    let lock = client.mutex("m", LEASE).unwrap().lock_for(PATIENCE).unwrap();
                    assert!(lock.is_some(), "it was not free in time");
                })
            })
            .collect();
        let mutex = holder.mutex("m", LEASE).unwrap();
        until("two wait", || mutex.waiters().unwrap().len() == 2);
        bench.server().restart();
        // Lost with the server, or still held; unknown if the request was sent to the old server.
        until("it is released", || lock.unlock().is_ok());
        for waiter in waiting {
            waiter.join().unwrap();
        }
    });
    assert!(is_free(&bench.client(), "m"));
}

pub(crate) fn a_renewed_lock_is_reported_lost_or_kept_across_a_restart(bench: &Bench) {
    let (client, witness) = (bench.client(), bench.client());
    // A restart is over before it ends.
    let lock = client.mutex("m", Duration::from_secs(20)).unwrap().lock().unwrap();
    let kept = lock.renew(RenewOptions::default()).unwrap();
    bench.server().restart();
    if !bench.keeps_when_killed {
        until("the holder is told", || kept.lost().is_some());
        assert!(!kept.is_held());
        return;
    }
    let remaining = || witness.mutex("m", LEASE).unwrap().owner().unwrap().unwrap().remaining;
    until_renewed("on the server that came back", remaining);
    assert!(kept.is_held() && kept.lost().is_none());
    assert_eq!(kept.release().unwrap(), Release::Released);
}

/// A server that is stopped with SIGSTOP, while the kernel goes on to accept connections for it: the
/// calls end although it stands still.
pub(crate) fn a_frozen_server_holds_no_call_up(bench: &Bench) {
    let witness = bench.client();
    let client = bench.quick_client(&bench.server().process().address(), QUICK);
    let mut lock = poll_until(PATIENCE, || client.mutex("m", LEASE).unwrap().lock().ok()).unwrap();
    bench.server().pause();
    let error = client.mutex("n", LEASE).unwrap().try_lock().unwrap_err();
    let kinds = [ErrorKind::Unknown, ErrorKind::Unreachable];
    assert!(kinds.contains(&error.kind()), "{:?}: {error}", error.kind());
    let released = lock.unlock();
    assert!(released.is_err(), "{released:?}");
    bench.server().resume();
    // The kernel hands the requests over now. What was granted there is taken off.
    let released = poll_until(PATIENCE, || lock.unlock().ok());
    assert_eq!(released, Some(Release::Released));
    let mutex = client.mutex("n", LEASE).unwrap();
    until("it comes free, also of a request that comes late", || {
        mutex.try_lock().is_ok_and(|lock| lock.is_some_and(is_released)) && is_free(&witness, "n")
    });
    assert!(is_free(&witness, "m"));
}

fn is_released(mut lock: Lock) -> bool {
    poll_until(PATIENCE, || lock.unlock().ok()) == Some(Release::Released)
}

/// A call that tries once gives a server which has fallen silent a quarter of the timeout more, and
/// asks it no further.
pub(crate) fn a_try_is_patient_with_a_silent_server_once(bench: &Bench) {
    let relay = Relay::start(bench.server().process().address());
    let io_timeout = format!("io_timeout={}ms", QUICK.as_millis());
    for connect_timeout in ["50ms", "1s"] {
        let timeouts = format!("{io_timeout}&connect_timeout={connect_timeout}");
        let url = url::with(&bench.url_at(&relay.address()), &timeouts);
        let client = Client::connect(&url).unwrap();
        let mutex = client.mutex("m", LEASE).unwrap();
        let semaphore = client.semaphore("s", 1, LEASE).unwrap();
        is_patient_once(&relay, || mutex.try_lock().map(|lock| lock.is_some()));
        is_patient_once(&relay, || semaphore.try_acquire().map(|permit| permit.is_some()));
    }
}

fn is_patient_once(relay: &Relay, attempt: impl Fn() -> Result<bool>) {
    relay.decide(|_| Fate::Pass);
    let has_connected = poll_until(PATIENCE, || attempt().ok().filter(|&is_granted| is_granted));
    assert_eq!(has_connected, Some(true));
    let mut asked = 0;
    // The reply to a new connection comes in time for all other calls.
    relay.decide(move |_| {
        asked += 1;
        if asked == 1 { Fate::LoseRequest } else { Fate::Delay(QUICK.mul_f64(0.6)) }
    });
    let before = relay.bursts();
    let error = attempt().unwrap_err();
    let kinds = [ErrorKind::Unknown, ErrorKind::Unreachable];
    assert!(kinds.contains(&error.kind()), "{:?}: {error}", error.kind());
    let asked = relay.bursts() - before;
    assert!(asked <= 2, "it was asked {asked} times");
}

/// A connection that was cut while it was idle: the next call does not notice.
pub(crate) fn cut_connections_are_replaced_without_a_word(bench: &Bench) {
    let relay = Relay::start(bench.server().process().address());
    let client = bench.client_at(&relay.address());
    let mutex = client.mutex("m", LEASE).unwrap();
    for _ in 0..5 {
        let mut lock = mutex.try_lock().unwrap().unwrap();
        thread::sleep(UNCHECKED);
        relay.cut();
        assert!(lock.check().unwrap());
        thread::sleep(UNCHECKED);
        relay.cut();
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
}

/// Between its requests, and in the middle of one that takes several.
pub(crate) fn a_tools_connection_that_was_cut_is_replaced(bench: &Bench) {
    let relay = Relay::start(bench.server().process().address());
    let client = bench.client_at(&relay.address());
    let mut held: Vec<Lock> = Vec::new();
    for number in 0..250 {
        let mutex = client.mutex(format!("m{number}"), LEASE).unwrap();
        held.push(mutex.try_lock().unwrap().unwrap());
    }
    let mut admin = client.admin(0).unwrap();
    let cuts: [&dyn Fn(); 3] =
        [&|| relay.cut(), &|| relay.only(0, Fate::CutAfter), &|| relay.only(1, Fate::CutBefore)];
    for cut in cuts {
        cut();
        let of_these = |key: &str| client.keys().read(key).is_some();
        let keys = admin.keys(&of_these).unwrap();
        assert_eq!(keys.len(), held.len());
        cut();
        assert!(admin.values(&keys).unwrap().iter().all(Option::is_some));
        cut();
        assert!(!admin.health(LEASE).unwrap().is_empty());
        cut();
        let _ = admin.round_trip().unwrap();
    }
    // Not for ever.
    relay.decide(|_| Fate::CutBefore);
    let error = admin.round_trip().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    // A server that does not answer is not asked again.
    relay.decide(|_| Fate::Pass);
    let quick = bench.quick_client(&relay.address(), QUICK);
    let mut admin = poll_until(PATIENCE, || quick.admin(0).ok()).unwrap();
    relay.decide(|_| Fate::LoseRequest);
    let before = relay.bursts();
    let error = admin.round_trip().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(relay.bursts(), before + 1, "{error}");
    relay.decide(|_| Fate::Pass);
}

/// A program that does not ignore SIGPIPE lives on.
pub(crate) fn connections_that_are_reset_end_no_program(bench: &Bench) {
    sigpipe::is_not_raised_by_resets(&bench.server().process().address(), |address| {
        bench.url_at(address)
    });
}

pub(crate) fn a_server_that_is_not_there_is_unreachable(bench: &Bench) {
    let port = ReservedPort::any();
    let client = bench.quick_client(&format!("127.0.0.1:{}", port.number()), QUICK);
    let error = client.mutex("m", LEASE).unwrap().lock_for(Duration::from_secs(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let said = error.to_string();
    assert!(said.contains(&port.number().to_string()) && said.contains("running there"), "{said}");
}
