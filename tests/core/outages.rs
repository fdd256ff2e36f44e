//! A server that becomes unreachable in the middle of a call: *unreachable* means that nothing was
//! changed, so a call whose last write got no reply must not answer it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::store::{Op, Route, Store};
use memlock_core::{Client, ErrorKind, Request, Result, SetUp, Wait};
use memlock_tests::intercepted::Replies;

use crate::bench::{KINDS, Kind, away, lost, on_memory};

const LEASE: Duration = Duration::from_secs(30);
/// No call sends more batches than this to a server that answers.
const MOST_BATCHES: usize = 40;

/// Answers so many batches, carries out one more whose reply is lost, and is unreachable afterwards.
struct Dying {
    answers: AtomicUsize,
    /// Whether the batch without a reply may have changed something.
    changed: AtomicBool,
    /// The batch without a reply.
    lost: Mutex<Option<String>>,
}

impl Dying {
    fn run(&self, inner: &dyn Store, route: Route, ops: &[Op<'_>]) -> Replies {
        let less = |left: usize| left.checked_sub(1);
        if self.answers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            return inner.run(route, ops);
        }
        let mut without = self.lost.lock().unwrap();
        if without.is_some() {
            return Err(away());
        }
        *without = Some(format!("{ops:?}"));
        // A place in a queue is only a hint.
        let counts = |op: &Op<'_>| op.changes() && !op.key().as_str().ends_with("%wait");
        self.changed.store(ops.iter().any(counts), Ordering::SeqCst);
        inner.run(route, ops).and(Err(lost()))
    }
}

/// Makes the call on a server that dies after each number of its batches in turn. `prepare` runs
/// before the server begins to die.
fn unreachable_means_unchanged<T>(
    prepare: impl Fn(&Client) -> T,
    call: impl Fn(&Client, T) -> Result<()>,
) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    for answers in 0..MOST_BATCHES {
        let dying = Arc::new(Dying {
            answers: AtomicUsize::new(usize::MAX),
            changed: AtomicBool::new(false),
            lost: Mutex::new(None),
        });
        let server = Arc::clone(&dying);
        let (client, _) = on_memory(&clock, move |inner, route, ops| server.run(inner, route, ops));
        let prepared = prepare(&client);
        dying.answers.store(answers, Ordering::SeqCst);
        let ended = call(&client, prepared);
        let Some(lost) = dying.lost.lock().unwrap().clone() else {
            assert!(answers > 0, "no batch was lost");
            return;
        };
        let Err(error) = ended else { continue };
        if dying.changed.load(Ordering::SeqCst) {
            assert_ne!(
                error.kind(),
                ErrorKind::Unreachable,
                "{answers} batches answered, and no reply to {lost}: {error}"
            );
        }
    }
    panic!("the call does not come to an end");
}

fn soon() -> Wait<'static> {
    Wait::at_most(Duration::from_millis(50))
}

#[test]
fn locks_and_permits() {
    for kind in KINDS {
        let hold = |client: &Client| kind.hold(client, "m", LEASE);
        // The semaphore is set up by then.
        unreachable_means_unchanged(
            |client| drop(hold(client)),
            |client, ()| kind.attempt(client, "m", LEASE).map(|held| held.unwrap().abandon()),
        );
        unreachable_means_unchanged(hold, |_, mut held| held.release().map(drop));
        unreachable_means_unchanged(hold, |_, mut held| held.extend(2 * LEASE).map(drop));
    }
}

#[test]
fn waiting() {
    let hold = |kind: Kind| move |client: &Client| kind.hold(client, "m", LEASE);
    unreachable_means_unchanged(hold(Kind::Lock), |client, _held| {
        client.mutex("m", LEASE)?.lock_with(&soon()).map(drop)
    });
    unreachable_means_unchanged(hold(Kind::Permit), |client, _held| {
        let request = Request { priority: 1, ..Request::default() };
        client.semaphore("m", 1, LEASE)?.acquire_with(request, &soon()).map(drop)
    });
}

#[test]
fn forcing_a_lock() {
    unreachable_means_unchanged(
        |client| client.mutex("m", LEASE).unwrap().lock().unwrap().token().to_string(),
        |client, token| client.mutex("m", LEASE)?.force_unlock(&token).map(drop),
    );
}

#[test]
fn semaphores() {
    let semaphore = |client: &Client| client.semaphore("s", 3, LEASE);
    let set_up = |client: &Client| {
        assert_eq!(semaphore(client).unwrap().set_up(LEASE).unwrap(), SetUp::Created);
    };
    unreachable_means_unchanged(|_| (), |client, ()| semaphore(client)?.set_up(LEASE).map(drop));
    unreachable_means_unchanged(set_up, |client, ()| {
        semaphore(client)?.try_acquire().map(|permit| permit.unwrap().abandon())
    });
    unreachable_means_unchanged(set_up, |client, ()| semaphore(client)?.resize(4).map(drop));
    unreachable_means_unchanged(set_up, |client, ()| semaphore(client)?.tear_down().map(drop));
}

#[test]
fn counters() {
    let counter = |client: &Client| client.counter("c");
    let set_up = |client: &Client| assert!(counter(client).unwrap().set_up(3).unwrap());
    unreachable_means_unchanged(|_| (), |client, ()| counter(client)?.set_up(3).map(drop));
    unreachable_means_unchanged(set_up, |client, ()| counter(client)?.try_acquire().map(drop));
    unreachable_means_unchanged(set_up, |client, ()| counter(client)?.release().map(drop));
}

#[test]
fn lists() {
    let set_up = |client: &Client| {
        let mut list = client.distinct_list("l").unwrap();
        assert_eq!(list.set_up(LEASE).unwrap(), SetUp::Created);
    };
    unreachable_means_unchanged(
        |_| (),
        |client, ()| client.distinct_list("l")?.set_up(LEASE).map(drop),
    );
    unreachable_means_unchanged(set_up, |client, ()| {
        client.distinct_list("l")?.insert("key").map(drop)
    });
    unreachable_means_unchanged(set_up, |client, ()| {
        client.distinct_list("l")?.tear_down().map(drop)
    });
}
