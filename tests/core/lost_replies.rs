//! Replies that get lost: at every step of every operation, on a store that loses them on purpose,
//! and through a proxy in front of a real memcached. Never granted twice, never left behind, never
//! guessed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::store::memory::Memory;
use memlock_core::store::{Expiry, Failure, Op, Reply, Returns, Route, Store, memcached};
use memlock_core::{
    Client, Error, ErrorKind, Extension, Insertion, Lock, Release, RenewOptions, Result, Wait,
    Waited,
};
use memlock_tests::cost::usual_cost;
use memlock_tests::intercepted::{Replies, intercepted};
use memlock_tests::proxy::{Fault, Match, Proxy};
use memlock_tests::server::Memcached;
use memlock_tests::{assert_safe, assert_safe_eq};

const LEASE: Duration = Duration::from_secs(30);

/// What happens to a batch on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// It never arrives.
    Request,
    /// It is carried out, and the reply never arrives.
    Reply,
    /// It is carried out, and the reply arrives after more than a second.
    Time,
    /// It never arrives, and is answered as an `Add` to an item that is there.
    Chance,
    /// Another one takes the lock between its first operation and the next.
    Between,
}

/// Loses the batches with these numbers, counted from 0.
struct Lossy {
    seen: AtomicUsize,
    losses: Mutex<Vec<(usize, Loss)>>,
}

impl Lossy {
    fn run(&self, inner: &dyn Store, route: Route, ops: &[Op<'_>]) -> Replies {
        let number = self.seen.fetch_add(1, Ordering::SeqCst);
        let loss =
            self.losses.lock().unwrap().iter().find(|(at, _)| *at == number).map(|(_, loss)| *loss);
        let lost =
            Failure { error: Error::new(ErrorKind::Unknown, "The reply was lost."), sent: true };
        match loss {
            None => inner.run(route, ops),
            Some(Loss::Request) => Err(lost),
            Some(Loss::Reply) => {
                inner.run(route, ops)?;
                Err(lost)
            }
            Some(Loss::Chance) => Ok(vec![Reply::Exists]),
            Some(Loss::Between) => {
                let Op::Get { key, .. } = ops[0] else {
                    panic!("only what reads first can be crossed")
                };
                let mut replies = inner.run(route, &ops[..1])?;
                let (expiry, returns) = (Expiry::After(LEASE), Returns::Nothing);
                inner.run(route, &[Op::Add { key, value: b"another's", expiry, returns }])?;
                replies.extend(inner.run(route, &ops[1..])?);
                Ok(replies)
            }
            Some(Loss::Time) => {
                let replies = inner.run(route, ops);
                thread::sleep(Duration::from_millis(1100));
                replies
            }
        }
    }

    /// From now on it loses the batches with these numbers, counted anew. How many there were
    /// before does not matter: a grant that takes long is looked at once more.
    fn lose(&self, losses: &[(usize, Loss)]) {
        *self.losses.lock().unwrap() = losses.to_vec();
        self.seen.store(0, Ordering::SeqCst);
    }
}

/// A client that loses the chosen replies, and one beside it on the same store that loses nothing.
fn clients(losses: &[(usize, Loss)]) -> (Client, Client) {
    let (client, witness, lossy) = clients_of_lossy();
    lossy.lose(losses);
    (client, witness)
}

fn clients_of_lossy() -> (Client, Client, Arc<Lossy>) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let memory: Arc<dyn Store> = Arc::new(Memory::like(memcached::GUARANTEES, Arc::clone(&clock)));
    let lossy = Arc::new(Lossy { seen: AtomicUsize::new(0), losses: Mutex::new(Vec::new()) });
    let loses = Arc::clone(&lossy);
    let store =
        intercepted(Arc::clone(&memory), move |inner, route, ops| loses.run(inner, route, ops));
    let client = Client::with_store(store, Arc::clone(&clock));
    (client, Client::with_store(memory, clock), lossy)
}

/// A lock whose owner's next batches are lost, those with these numbers, counted from 0.
fn lock_and_lose(lease: Duration, losses: &[(usize, Loss)]) -> (Client, Client, Lock) {
    let (client, witness, lossy) = clients_of_lossy();
    let lock = client.mutex("m", lease).unwrap().lock().unwrap();
    lossy.lose(losses);
    (client, witness, lock)
}

/// Every way to lose up to two of the first batches.
fn all_losses() -> Vec<Vec<(usize, Loss)>> {
    let one = |at: usize| [Loss::Request, Loss::Reply].map(|loss| (at, loss));
    let mut all: Vec<Vec<(usize, Loss)>> = (0..8).flat_map(one).map(|loss| vec![loss]).collect();
    for first in 0..7 {
        for second in first + 1..8 {
            all.extend(one(first).iter().flat_map(|&a| one(second).map(|b| vec![a, b])));
        }
    }
    all
}

/// A step is taken so often before its outcome is unknown.
const THREE: [(usize, Loss); 3] = [(0, Loss::Request), (1, Loss::Request), (2, Loss::Request)];

fn is_free(client: &Client, name: &str) -> bool {
    client.mutex(name, LEASE).unwrap().owner().unwrap().is_none()
}

#[test]
fn a_lock_survives_the_loss_of_any_two_batches() {
    for losses in all_losses() {
        let (client, witness) = clients(&losses);
        let mutex = client.mutex("m", LEASE).unwrap();
        let mut lock =
            mutex.try_lock().unwrap().unwrap_or_else(|| panic!("{losses:?}: it was free"));
        assert_safe!(
            witness.mutex("m", LEASE).unwrap().try_lock().unwrap().is_none(),
            "{losses:?}: granted twice"
        );
        let fence = lock.fence();
        assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended, "{losses:?}");
        assert!(lock.remaining() > LEASE - Duration::from_secs(5));
        assert_eq!(lock.unlock().unwrap(), Release::Released, "{losses:?}");
        assert_safe!(is_free(&witness, "m"), "{losses:?}: left behind");
        let next = mutex.lock().unwrap();
        assert_safe!(next.fence() > fence, "{losses:?}");
        drop(next);
        assert_safe!(is_free(&witness, "m"), "{losses:?}: left behind");
    }
}

#[test]
fn a_lock_of_another_is_busy_whatever_gets_lost() {
    for losses in all_losses() {
        let (client, witness) = clients(&losses);
        let mut held = witness.mutex("m", LEASE).unwrap().lock().unwrap();
        assert_safe!(client.mutex("m", LEASE).unwrap().try_lock().unwrap().is_none(), "{losses:?}");
        assert_eq!(held.unlock().unwrap(), Release::Released, "{losses:?}");
        drop(client.mutex("m", LEASE).unwrap().lock().unwrap());
        assert_safe!(is_free(&witness, "m"), "{losses:?}: left behind");
    }
}

#[test]
fn what_cannot_be_found_out_is_unknown_and_taken_off_at_the_next_contact() {
    let losses = [(0, Loss::Reply), (1, Loss::Request), (2, Loss::Request)];
    let (client, witness) = clients(&losses);
    let mutex = client.mutex("m", LEASE).unwrap();
    assert_eq!(mutex.try_lock().unwrap_err().kind(), ErrorKind::Unknown);
    assert!(!is_free(&witness, "m"), "it was granted after all");
    // Any further use of the client cleans up; for the same mutex it happens before anything else.
    assert!(mutex.try_lock().unwrap().is_some());
    assert!(is_free(&witness, "m"));
}

/// A grant that took longer than its lease is given up, and the wait goes on with a token of its
/// own: what may be left of the first one must not be mistaken for the second.
#[test]
fn a_waiter_goes_on_after_a_grant_that_came_too_late() {
    // Batches: 0 finds it busy; 1 is granted too late, 2 reads it, 3 to 5 fail to give it back;
    // what is left of it is removed before the next one adds anew.
    for failing in [0, 3] {
        let mut losses = vec![(0, Loss::Chance), (1, Loss::Time)];
        losses.extend((3..3 + failing).map(|at| (at, Loss::Request)));
        let (client, witness) = clients(&losses);
        let mut lock = client.mutex("m", Duration::from_secs(1)).unwrap().lock().unwrap();
        let owner = witness.mutex("m", LEASE).unwrap().owner().unwrap().unwrap();
        assert_eq!(owner.token(), lock.token().to_string());
        drop(client.mutex("other", LEASE).unwrap().lock().unwrap());
        assert!(!is_free(&witness, "m"), "cleaning up took our own lock off");
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
}

/// A callback that asks whether to stop may answer so only once, as Python does with a signal.
#[test]
fn an_interruption_that_is_told_once_while_a_reply_is_lost_ends_the_wait() {
    let losses = [(0, Loss::Chance), (1, Loss::Reply), (2, Loss::Chance)];
    for told_at in 0..4 {
        let (client, witness) = clients(&losses);
        let asked = AtomicUsize::new(0);
        let interrupted = || asked.fetch_add(1, Ordering::SeqCst) == told_at;
        let wait = Wait::FOREVER.unless(&interrupted);
        let waited = client.mutex("m", LEASE).unwrap().lock_with(&wait).unwrap();
        if asked.load(Ordering::SeqCst) > told_at {
            assert!(
                matches!(waited, Waited::Interrupted),
                "asked {told_at} times before it was told"
            );
        }
        drop(waited);
        drop(client.mutex("m", LEASE).unwrap().lock().unwrap());
        assert_safe!(is_free(&witness, "m"), "{told_at}: left behind");
    }
}

#[test]
fn a_slow_extension_counts_on_what_the_server_says() {
    let (_client, _witness, mut lock) = lock_and_lose(LEASE, &[(0, Loss::Time)]);
    assert_eq!(lock.extend(Duration::from_secs(5)).unwrap(), Extension::Extended);
    assert!(lock.remaining() < Duration::from_secs(4) && lock.remaining() > Duration::from_secs(2));
    assert_eq!(lock.unlock().unwrap(), Release::Released);
}

#[test]
fn an_unknown_release_may_be_tried_again() {
    for loss in [Loss::Request, Loss::Reply] {
        let losses = [(0, loss), (1, Loss::Request), (2, Loss::Request)];
        let (_client, witness, mut lock) = lock_and_lose(LEASE, &losses);
        assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::Unknown);
        // Whether it is released only now, or the first time did it after all: it was ours until
        // then.
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        assert_safe!(is_free(&witness, "m"), "left behind");
        assert_eq!(lock.unlock().unwrap(), Release::NotHeld);
    }
}

#[test]
fn a_release_without_a_reply_is_released_even_if_another_takes_the_lock_while_it_is_looked_for() {
    let losses = [(0, Loss::Reply), (1, Loss::Between)];
    let (_client, witness, mut lock) = lock_and_lose(LEASE, &losses);
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert_safe!(!is_free(&witness, "m"), "the other one's lock is left alone");
}

#[test]
fn an_unknown_extension_counts_on_the_shorter_lease() {
    let losses = [(0, Loss::Reply), (1, Loss::Request), (2, Loss::Request)];
    let (_client, _witness, mut lock) = lock_and_lose(LEASE, &losses);
    assert_eq!(lock.extend(Duration::from_secs(2)).unwrap_err().kind(), ErrorKind::Unknown);
    assert!(lock.remaining() <= Duration::from_secs(2));
    assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
    assert_eq!(lock.unlock().unwrap(), Release::Released);
}

/// The server may have stood still since the lock was granted: then the new lease began when its
/// clock stopped.
#[test]
fn an_unknown_extension_to_a_shorter_lease_counts_on_nothing_that_a_server_which_stood_still_does_not_keep()
 {
    let (_client, _witness, mut lock) = lock_and_lose(Duration::from_secs(10), &THREE);
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(lock.extend(Duration::from_secs(1)).unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(lock.remaining(), Duration::ZERO);
    assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
    assert_eq!(lock.unlock().unwrap(), Release::Released);
}

#[test]
fn a_kept_lock_whose_release_is_in_doubt_is_not_lost_by_looking_at_it() {
    let (_client, _witness, lock) = lock_and_lose(LEASE, &THREE);
    let kept = lock.renew(RenewOptions::default()).unwrap();
    assert_eq!(kept.release().unwrap_err().kind(), ErrorKind::Unknown);
    assert!(!kept.is_held(), "nobody knows");
    assert_eq!(kept.lost(), None);
    assert_eq!(kept.release().unwrap(), Release::Released);
}

/// Its holder got the answer that it is lost: it would not be released until its earlier lease is
/// over.
#[test]
fn a_kept_lock_that_is_lost_after_an_unknown_extension_is_taken_off() {
    let (client, witness, mut lock) = lock_and_lose(LEASE, &THREE);
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(lock.extend(Duration::from_secs(1)).unwrap_err().kind(), ErrorKind::Unknown);
    let kept = lock.renew(RenewOptions::default()).unwrap();
    assert!(!kept.is_held());
    let other = client.mutex("other", LEASE).unwrap();
    let began = Instant::now();
    while !is_free(&witness, "m") {
        assert!(began.elapsed() < LEASE / 2, "it is still there");
        drop(other.lock().unwrap());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_extension_after_a_release_in_doubt_settles_that_it_is_held() {
    let (_client, _witness, mut lock) = lock_and_lose(LEASE, &THREE);
    assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
    assert!(!lock.remaining().is_zero(), "it was extended");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
}

#[test]
fn a_list_survives_the_loss_of_any_two_batches() {
    for losses in all_losses() {
        let (client, witness) = clients(&losses);
        let mut list = client.distinct_list("s").unwrap();
        let _ = list.set_up(LEASE).unwrap();
        let mut other = witness.distinct_list("s").unwrap();
        assert_eq!(other.insert("theirs").unwrap(), Some(Insertion::First(1)), "{losses:?}");
        let told = list.insert_many(&["a", "theirs", "b"]).unwrap().unwrap();
        assert!(
            matches!(told[..], [Insertion::First(_), Insertion::Duplicate(1), Insertion::First(_)]),
            "{losses:?}: {told:?}"
        );
        for (name, told) in ["a", "theirs", "b"].iter().zip(&told) {
            assert_safe_eq!(
                other.insert(name).unwrap(),
                Some(Insertion::Duplicate(told.id())),
                "{losses:?}"
            );
        }
        let walked: Vec<_> = list.entries().unwrap().unwrap().collect::<Result<_>>().unwrap();
        assert_eq!(walked.len(), 3, "{losses:?}: {walked:?}");
        assert!(list.tear_down().unwrap(), "{losses:?}");
        assert_eq!(other.insert("late").unwrap(), None, "{losses:?}");
    }
}

/// The worker claims a key and dies; another finishes the insert, and is then the first.
#[test]
fn a_half_insert_is_finished_by_the_next_comer() {
    // Batches: 0 looks the session up, 1 claims, 2 counts, 3 settles; all further ones are lost.
    for died_after in 2..5 {
        let losses: Vec<_> = (died_after..40).map(|at| (at, Loss::Request)).collect();
        let (client, witness) = clients(&losses);
        let mut other = witness.distinct_list("s").unwrap();
        let _ = other.set_up(LEASE).unwrap();
        let died = client.distinct_list("s").unwrap().insert("k");
        assert_eq!(died.is_ok(), died_after == 4, "{died_after}: {died:?}");
        let told = other.insert("k").unwrap().unwrap();
        let finished =
            if died_after == 4 { Insertion::Duplicate(1) } else { Insertion::First(told.id()) };
        assert_eq!(told, finished);
        assert_eq!(other.insert("l").unwrap(), Some(Insertion::First(told.id() + 1)));
        let walked: Vec<_> = other.entries().unwrap().unwrap().collect::<Result<_>>().unwrap();
        assert_eq!(
            walked,
            [(told.id(), b"k".to_vec()), (told.id() + 1, b"l".to_vec())],
            "holes are skipped"
        );
    }
}

fn through_proxy() -> (Memcached, Proxy, Client, Client) {
    let server = Memcached::start();
    let proxy = Proxy::start(server.address());
    let client = Client::connect(&format!("{}?io_timeout=500ms", proxy.url())).unwrap();
    let witness = Client::connect(&server.url()).unwrap();
    (server, proxy, client, witness)
}

/// What is lost on the way to the first step, and on the way back.
fn faults() -> Vec<Fault> {
    vec![
        Fault::SwallowReply,
        Fault::CutAfterRequest,
        Fault::CutReplyAfter(0),
        Fault::CutReplyAfter(1),
        Fault::CutReplyAfter(3),
        Fault::DelayReply(Duration::from_millis(900)),
        Fault::DropRequest,
        Fault::CutBeforeRequest,
        Fault::DelayRest(0, Duration::from_millis(900)),
        Fault::GarbleReply(b"HD c1 O777\r\n".to_vec()),
    ]
}

#[test]
fn a_grant_whose_reply_is_lost_is_found_and_kept() {
    for fault in faults() {
        let (_server, proxy, client, witness) = through_proxy();
        proxy.inject(Match::Adding, fault.clone());
        let mutex = client.mutex("m", LEASE).unwrap();
        let mut lock: Lock =
            mutex.try_lock().unwrap().unwrap_or_else(|| panic!("{fault:?}: it was free"));
        assert_eq!(proxy.hits(), 1, "{fault:?}");
        assert_safe!(
            witness.mutex("m", LEASE).unwrap().try_lock().unwrap().is_none(),
            "{fault:?}: granted twice"
        );
        assert_eq!(lock.unlock().unwrap(), Release::Released, "{fault:?}");
        // A request that was only late may still arrive: it is removed at the next contact.
        thread::sleep(Duration::from_millis(1000));
        drop(client.mutex("other", LEASE).unwrap().lock().unwrap());
        assert!(is_free(&witness, "m"), "{fault:?}: left behind for its whole lease");
    }
}

#[test]
fn a_release_whose_reply_is_lost_is_settled() {
    for fault in faults() {
        let (_server, proxy, client, witness) = through_proxy();
        let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
        proxy.inject(Match::Deleting, fault.clone());
        assert_eq!(lock.unlock().unwrap(), Release::Released, "{fault:?}");
        assert_eq!(proxy.hits(), 1, "{fault:?}");
        assert!(is_free(&witness, "m"), "{fault:?}");
        // A late delete must not hit the next holder.
        let mut next = witness.mutex("m", LEASE).unwrap().lock().unwrap();
        thread::sleep(Duration::from_millis(1000));
        assert_safe_eq!(
            next.unlock().unwrap(),
            Release::Released,
            "{fault:?}: another's lock was released"
        );
    }
}

#[test]
fn an_extension_whose_reply_is_lost_is_settled() {
    for fault in faults() {
        let (_server, proxy, client, witness) = through_proxy();
        let mut lock = client.mutex("m", Duration::from_secs(5)).unwrap().lock().unwrap();
        proxy.inject(Match::Swapping, fault.clone());
        assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended, "{fault:?}");
        assert_eq!(proxy.hits(), 1, "{fault:?}");
        assert!(lock.remaining() > Duration::from_secs(20));
        thread::sleep(Duration::from_millis(1000));
        assert!(!is_free(&witness, "m"), "{fault:?}");
        assert_eq!(lock.unlock().unwrap(), Release::Released, "{fault:?}");
    }
}

#[test]
fn inserts_whose_replies_are_lost_are_settled() {
    for step in [Match::Adding, Match::Counting, Match::Swapping] {
        for fault in faults() {
            let (_server, proxy, client, witness) = through_proxy();
            let mut list = client.distinct_list("s").unwrap();
            let _ = list.set_up(LEASE).unwrap();
            proxy.inject(step, fault.clone());
            let told = list.insert("k").unwrap().unwrap();
            assert_eq!(proxy.hits(), 1, "{step:?} {fault:?}");
            assert!(matches!(told, Insertion::First(_)), "{step:?} {fault:?}: {told:?}");
            let again = witness.distinct_list("s").unwrap().insert("k").unwrap().unwrap();
            assert_safe_eq!(again, Insertion::Duplicate(told.id()), "{step:?} {fault:?}");
        }
    }
}

#[test]
fn a_mutex_costs_one_round_trip_each_way() {
    let (_server, proxy, client, _witness) = through_proxy();
    let mutex = client.mutex("m", LEASE).unwrap();
    assert_eq!(mutex.lock().unwrap().unlock().unwrap(), memlock_core::Release::Released);
    let cost = |step: &dyn Fn()| {
        usual_cost(|| {
            let before = proxy.round_trips();
            step();
            proxy.round_trips() - before
        })
    };
    assert_eq!(cost(&|| assert_eq!(mutex.lock().unwrap().unlock().unwrap(), Release::Released)), 2);
    assert_eq!(
        cost(&|| assert_eq!(mutex.lock().unwrap().extend(LEASE).unwrap(), Extension::Extended)),
        3
    );
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn a_batch_of_inserts_costs_a_constant_number_of_round_trips() {
    let (_server, proxy, client, _witness) = through_proxy();
    let mut list = client.distinct_list("s").unwrap();
    let _ = list.set_up(LEASE).unwrap();
    let names =
        |from: usize, to: usize| (from..to).map(|number| format!("{number}")).collect::<Vec<_>>();
    let mut last = 0;
    let mut fresh = |number: usize| {
        last += number;
        names(last - number, last)
    };
    let mut cost = |some: &mut dyn FnMut() -> Vec<String>| {
        usual_cost(|| {
            let names = some();
            let before = proxy.round_trips();
            list.insert_many(&names).unwrap().unwrap();
            proxy.round_trips() - before
        })
    };
    assert_eq!(cost(&mut || fresh(1)), 3);
    assert_eq!(cost(&mut || names(0, 1)), 1, "a duplicate");
    assert_eq!(cost(&mut || fresh(1000)), 3, "a thousand new keys");
    let mut half = || [names(0, 500), fresh(500)].concat();
    assert_eq!(cost(&mut half), 4, "half of them duplicates");
    assert_eq!(cost(&mut || names(0, 1000)), 2, "all of them duplicates");
}
