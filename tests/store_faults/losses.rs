//! Requests and replies that get lost on the way, at every step.

use std::time::{Duration, Instant};

use memlock_core::{Client, Error, ErrorKind, Extension, Release};
use memlock_tests::assert_safe;
use memlock_tests::launch::poll_until;
use memlock_tests::relay::{Fate, Relay};

use crate::{Bench, LEASE, PATIENCE, QUICK, is_free};

/// No round of a lock has more bursts than this, with the handshakes of new connections.
const MOST_BURSTS: usize = 60;

/// For each burst of acquiring, extending and releasing in turn: it is lost, or its reply is. The
/// calls succeed, or say that the outcome is unknown; nothing is granted twice, and nothing is left
/// behind.
pub(crate) fn any_burst_may_be_lost(bench: &Bench) {
    let witness = bench.client();
    for fate in [Fate::CutBefore, Fate::CutAfter, Fate::LoseRequest, Fate::LoseReply] {
        let mut number = 0;
        while lose_one(bench, &witness, number, fate) > number {
            number += 1;
            assert!(number < MOST_BURSTS, "burst {number}, {fate:?}");
        }
        assert!(number >= 3, "{fate:?}: acquiring, extending and releasing are requests");
    }
}

/// Returns the number of bursts of the round.
///
/// The client must soon give up the burst that is lost, and none of the others: a round that took so
/// long that it may have given up another one is done again, by a client that waits for longer.
fn lose_one(bench: &Bench, witness: &Client, number: usize, fate: Fate) -> usize {
    let is_given_up = matches!(fate, Fate::LoseRequest | Fate::LoseReply);
    let mut timeout = QUICK;
    loop {
        let relay = Relay::start(bench.server().process().address());
        let client = bench.quick_client(&relay.address(), timeout);
        relay.only(number, fate);
        // A name of its own: a request of a slow round may come late.
        let name = format!("m {number} {fate:?} {timeout:?}");
        let context = format!("burst {number}, {fate:?}");
        let began = Instant::now();
        let outcome = one_round(&client, witness, &name, &context);
        // Once it was given up, the server is asked once more, for a quarter of the time.
        let patience = if is_given_up { timeout + timeout / 4 } else { timeout };
        let was_slow = began.elapsed() >= patience;
        if was_slow && timeout < PATIENCE / 2 {
            timeout *= 8;
            continue;
        }
        outcome.unwrap_or_else(|why| panic!("{why}"));
        return relay.bursts();
    }
}

/// What is wrong with a round, if that may be for other replies which came too late.
fn one_round(client: &Client, witness: &Client, name: &str, context: &str) -> Result<(), String> {
    let is_outage = |what: &str, error: Error| match error.kind() {
        ErrorKind::Unreachable => Ok(()),
        kind => Err(format!("{context}: {what}: {kind:?}: {error}")),
    };
    let holds = |condition: bool, what: &str| {
        if condition { Ok(()) } else { Err(format!("{context}: {what}")) }
    };
    let mut lock = match client.mutex(name, LEASE).unwrap().try_lock() {
        Ok(Some(lock)) => lock,
        Ok(None) => return Err(format!("{context}: it was free")),
        Err(error) => {
            // A connection that could not be opened: nothing was changed.
            is_outage("lock", error)?;
            return holds(is_free(witness, name), "it was granted after all");
        }
    };
    let other = witness.mutex(name, LEASE).unwrap().try_lock().unwrap();
    assert_safe!(other.is_none(), "{context}: granted twice");
    let fence = lock.fence();
    match lock.extend(LEASE) {
        Ok(extension) => assert_eq!(extension, Extension::Extended, "{context}"),
        Err(error) => is_outage("extend", error)?,
    }
    assert!(lock.remaining() > LEASE / 2, "{context}");
    match lock.unlock() {
        Ok(release) => assert_eq!(release, Release::Released, "{context}"),
        Err(error) => {
            is_outage("unlock", error)?;
            holds(!is_free(witness, name), "it was released after all")?;
            let released = lock.unlock().map_err(|error| format!("{context}: {error}"))?;
            assert_eq!(released, Release::Released, "{context}");
        }
    }
    assert!(is_free(witness, name), "{context}: left behind");
    let next = witness.mutex(name, LEASE).unwrap().try_lock().unwrap().unwrap();
    assert_safe!(next.fence() > fence, "{context}");
    Ok(())
}

/// The reply to a request that was given up arrives while the next one waits for its own.
pub(crate) fn a_late_reply_is_never_taken_for_another(bench: &Bench) {
    let witness = bench.client();
    let held = witness.mutex("held", LEASE).unwrap().try_lock().unwrap().unwrap();
    let relay = Relay::start(bench.server().process().address());
    let client = bench.quick_client(&relay.address(), QUICK);
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
            // Any further use of the client that has its reply takes off what was granted without one.
            for name in ["free", "other"] {
                let mutex = client.mutex(name, LEASE).unwrap();
                let used = poll_until(PATIENCE, || mutex.lock().and_then(|mut l| l.unlock()).ok());
                assert_eq!(used, Some(Release::Released), "request {number} of {name}");
                assert!(is_free(&witness, name), "request {number}: {name} is left behind");
            }
        }
    }
    assert!(held.check().unwrap());
}
