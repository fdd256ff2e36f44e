//! Requests and replies that get lost on the way, at every step.

use std::time::Duration;

use memlock_core::{ErrorKind, Extension, Release};
use memlock_tests::assert_safe;
use memlock_tests::relay::{Fate, Relay};

use crate::{Bench, LEASE, is_free};

/// No round of a lock has more bursts than this, with the handshakes of new connections.
const MOST_BURSTS: usize = 60;

/// For each burst of acquiring, extending and releasing in turn: it is lost, or its reply is. The
/// calls succeed, or say that the outcome is unknown; nothing is granted twice, and nothing is left
/// behind.
pub(crate) fn any_burst_may_be_lost(bench: &Bench) {
    let witness = bench.client();
    for fate in [Fate::CutBefore, Fate::CutAfter, Fate::LoseRequest, Fate::LoseReply] {
        let mut number = 0;
        loop {
            let relay = Relay::start(bench.server.process().address());
            let client = bench.quick_client(&relay.address());
            relay.only(number, fate);
            let context = format!("burst {number}, {fate:?}");
            one_round(&client, &witness, &context);
            if relay.bursts() <= number {
                break;
            }
            number += 1;
            assert!(number < MOST_BURSTS, "{context}");
        }
        assert!(number >= 3, "{fate:?}: acquiring, extending and releasing are requests");
    }
}

fn one_round(client: &memlock_core::Client, witness: &memlock_core::Client, context: &str) {
    let mutex = client.mutex("m", LEASE).unwrap();
    let mut lock = match mutex.try_lock() {
        Ok(Some(lock)) => lock,
        Ok(None) => panic!("{context}: it was free"),
        Err(error) => {
            // A connection that could not be opened: nothing was changed.
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{context}: {error}");
            assert!(is_free(witness, "m"), "{context}: it was granted after all");
            return;
        }
    };
    let other = witness.mutex("m", LEASE).unwrap().try_lock().unwrap();
    assert_safe!(other.is_none(), "{context}: granted twice");
    let fence = lock.fence();
    match lock.extend(LEASE) {
        Ok(extension) => assert_eq!(extension, Extension::Extended, "{context}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unreachable, "{context}: {error}"),
    }
    assert!(lock.remaining() > LEASE / 2, "{context}");
    match lock.unlock() {
        Ok(release) => assert_eq!(release, Release::Released, "{context}"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{context}: {error}");
            assert!(!is_free(witness, "m"), "{context}: it was released after all");
            assert_eq!(lock.unlock().unwrap(), Release::Released, "{context}");
        }
    }
    assert!(is_free(witness, "m"), "{context}: left behind");
    let next = witness.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    assert_safe!(next.fence() > fence, "{context}");
}

/// The reply to a request that was given up arrives while the next one waits for its own.
pub(crate) fn a_late_reply_is_never_taken_for_another(bench: &Bench) {
    let witness = bench.client();
    let held = witness.mutex("held", LEASE).unwrap().try_lock().unwrap().unwrap();
    let relay = Relay::start(bench.server.process().address());
    let client = bench.quick_client(&relay.address());
    for name in ["free", "held"] {
        for number in 0..4 {
            relay.only(number, Fate::Delay(Duration::from_millis(700)));
            let first = client.mutex(name, LEASE).unwrap().try_lock();
            let second = client.mutex("other", LEASE).unwrap().try_lock();
            if let Ok(first) = first {
                let is_granted = first.is_some();
                assert_safe!(!is_granted || name == "free", "request {number}: held twice");
                assert_eq!(is_granted, name == "free", "request {number} of {name}");
            }
            if let Ok(second) = second {
                assert!(second.is_some(), "request {number} of {name}");
            }
            relay.decide(|_| Fate::Pass);
            // Any further use of the client takes off what was granted without a reply.
            for name in ["free", "other"] {
                drop(client.mutex(name, LEASE).unwrap().lock().unwrap());
                assert!(is_free(&witness, name), "request {number}: {name} is left behind");
            }
        }
    }
    assert!(held.check().unwrap());
}
