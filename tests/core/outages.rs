//! A server that becomes unreachable in the middle of a call: *unreachable* means that nothing was
//! changed, so a call whose last write got no reply must not answer it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::store::memory::Memory;
use memlock_core::store::{Failure, Op, Route, Store};
use memlock_core::{Client, Error, ErrorKind, Request, Result, SetUp, Wait};
use memlock_tests::intercepted::{Replies, intercepted};

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
        let fails = |kind, text: &str| Error::new(kind, text);
        let mut lost = self.lost.lock().unwrap();
        if lost.is_some() {
            let error = fails(ErrorKind::Unreachable, "The server is gone.");
            return Err(Failure { error, sent: false });
        }
        *lost = Some(format!("{ops:?}"));
        // A place in a queue is only a hint.
        let counts = |op: &Op<'_>| op.changes() && !op.key().as_str().ends_with("%wait");
        self.changed.store(ops.iter().any(counts), Ordering::SeqCst);
        inner.run(route, ops)?;
        Err(Failure { error: fails(ErrorKind::Unknown, "The reply was lost."), sent: true })
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
        let store =
            intercepted(Arc::new(Memory::new(Arc::clone(&clock))), move |inner, route, ops| {
                server.run(inner, route, ops)
            });
        let client = Client::with_store(store, Arc::clone(&clock));
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

fn semaphore_of_three(client: &Client) {
    let semaphore = client.semaphore("s", 3, LEASE).unwrap();
    assert_eq!(semaphore.set_up(LEASE).unwrap(), SetUp::Created);
}

fn empty_list(client: &Client) {
    let mut list = client.distinct_list("l").unwrap();
    assert_eq!(list.set_up(LEASE).unwrap(), SetUp::Created);
}

#[test]
fn locking() {
    unreachable_means_unchanged(
        |_| (),
        |client, ()| client.mutex("m", LEASE)?.try_lock().map(|lock| lock.unwrap().abandon()),
    );
}

#[test]
fn waiting_for_a_lock() {
    unreachable_means_unchanged(
        |client| client.mutex("m", LEASE).unwrap().lock().unwrap(),
        |client, _held| client.mutex("m", LEASE)?.lock_with(&soon()).map(drop),
    );
}

#[test]
fn unlocking() {
    unreachable_means_unchanged(
        |client| client.mutex("m", LEASE).unwrap().lock().unwrap(),
        |_, mut lock| lock.unlock().map(drop),
    );
}

#[test]
fn extending_a_lock() {
    unreachable_means_unchanged(
        |client| client.mutex("m", LEASE).unwrap().lock().unwrap(),
        |_, mut lock| lock.extend(2 * LEASE).map(drop),
    );
}

#[test]
fn forcing_a_lock() {
    unreachable_means_unchanged(
        |client| client.mutex("m", LEASE).unwrap().lock().unwrap().token().to_string(),
        |client, token| client.mutex("m", LEASE)?.force_unlock(&token).map(drop),
    );
}

#[test]
fn setting_up_a_semaphore() {
    unreachable_means_unchanged(
        |_| (),
        |client, ()| client.semaphore("s", 3, LEASE)?.set_up(LEASE).map(drop),
    );
}

#[test]
fn acquiring_permits() {
    unreachable_means_unchanged(semaphore_of_three, |client, ()| {
        client.semaphore("s", 3, LEASE)?.try_acquire().map(|permit| permit.unwrap().abandon())
    });
}

#[test]
fn waiting_for_permits() {
    unreachable_means_unchanged(
        |client| client.semaphore("s", 1, LEASE).unwrap().acquire().unwrap(),
        |client, _held| {
            let request = Request { priority: 1, ..Request::default() };
            client.semaphore("s", 1, LEASE)?.acquire_with(request, &soon()).map(drop)
        },
    );
}

#[test]
fn releasing_permits() {
    unreachable_means_unchanged(
        |client| client.semaphore("s", 3, LEASE).unwrap().acquire().unwrap(),
        |_, mut permit| permit.release().map(drop),
    );
}

#[test]
fn extending_permits() {
    unreachable_means_unchanged(
        |client| client.semaphore("s", 3, LEASE).unwrap().acquire().unwrap(),
        |_, mut permit| permit.extend(2 * LEASE).map(drop),
    );
}

#[test]
fn resizing_a_semaphore() {
    unreachable_means_unchanged(semaphore_of_three, |client, ()| {
        client.semaphore("s", 3, LEASE)?.resize(4).map(drop)
    });
}

#[test]
fn tearing_down_a_semaphore() {
    unreachable_means_unchanged(semaphore_of_three, |client, ()| {
        client.semaphore("s", 3, LEASE)?.tear_down().map(drop)
    });
}

#[test]
fn setting_up_a_counter() {
    unreachable_means_unchanged(|_| (), |client, ()| client.counter("c")?.set_up(3).map(drop));
}

#[test]
fn counting_down_and_up() {
    let set_up = |client: &Client| assert!(client.counter("c").unwrap().set_up(3).unwrap());
    unreachable_means_unchanged(set_up, |client, ()| client.counter("c")?.try_acquire().map(drop));
    unreachable_means_unchanged(set_up, |client, ()| client.counter("c")?.release().map(drop));
}

#[test]
fn setting_up_a_list() {
    unreachable_means_unchanged(
        |_| (),
        |client, ()| client.distinct_list("l")?.set_up(LEASE).map(drop),
    );
}

#[test]
fn inserting_into_a_list() {
    unreachable_means_unchanged(empty_list, |client, ()| {
        client.distinct_list("l")?.insert("key").map(drop)
    });
}

#[test]
fn tearing_down_a_list() {
    unreachable_means_unchanged(empty_list, |client, ()| {
        client.distinct_list("l")?.tear_down().map(drop)
    });
}
