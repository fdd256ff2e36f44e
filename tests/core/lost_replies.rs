//! Replies that get lost: at every step of every operation, on a store that loses them on purpose,
//! and through a proxy in front of a real memcached. Never granted twice, never left behind, never
//! guessed. Whole requests and replies on the way to a server are lost in `tests/store_faults/`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::store::{Expiry, Failure, Op, Reply, Returns, Route, Store};
use memlock_core::{
    Client, DistinctList, Error, ErrorKind, Extension, Guard, Insertion, Release, RenewOptions,
    Result, Wait, Waited,
};
use memlock_tests::client::connect;
use memlock_tests::cost::usual_cost;
use memlock_tests::frozen::Frozen;
use memlock_tests::intercepted::Replies;
use memlock_tests::launch::until;
use memlock_tests::proxy::{Fault, Match, Proxy};
use memlock_tests::server::Memcached;
use memlock_tests::{assert_safe, assert_safe_eq};

use crate::bench::{KINDS, Kind, away, lost, on_memory};

const LEASE: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

/// What happens to a batch on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// It never arrives.
    Request,
    /// It is not sent.
    Unsent,
    /// It is carried out, and the reply never arrives.
    Reply,
    /// It is carried out, and the reply arrives so late.
    Time(Duration),
    /// It never arrives, and is answered as an `Add` to an item that is there.
    Chance,
    /// Another one takes the lock between its first operation and the next.
    Between,
    /// The server has no room for what this operation of it stores, and carries out the others.
    Refused(usize),
}

/// The batches with these numbers, counted from 0.
type Losses = [(usize, Loss)];

/// A store that loses batches.
struct World {
    client: Client,
    /// It loses nothing.
    witness: Client,
    lossy: Arc<Lossy>,
}

#[derive(Default)]
struct Lossy {
    /// No time passes in its world, but what this one is told of.
    frozen: Option<Arc<Frozen>>,
    /// Batches are counted from the next one that writes.
    awaits_a_write: AtomicBool,
    seen: AtomicUsize,
    losses: Mutex<Vec<(usize, Loss)>>,
}

impl Lossy {
    fn run(&self, inner: &dyn Store, route: Route, ops: &[Op<'_>]) -> Replies {
        if self.awaits_a_write.load(Ordering::SeqCst) && !ops.iter().any(Op::changes) {
            return inner.run(route, ops);
        }
        self.awaits_a_write.store(false, Ordering::SeqCst);
        let number = self.seen.fetch_add(1, Ordering::SeqCst);
        let found = self.losses.lock().unwrap().iter().find(|(at, _)| *at == number).copied();
        match found.map(|(_, loss)| loss) {
            None => inner.run(route, ops),
            Some(Loss::Request) => Err(lost()),
            Some(Loss::Unsent) => Err(away()),
            Some(Loss::Reply) => inner.run(route, ops).and(Err(lost())),
            Some(Loss::Chance) => Ok(vec![Reply::Exists]),
            Some(Loss::Between) => {
                let Op::Get { key, .. } = ops[0] else {
                    panic!("only what reads first can be crossed")
                };
                let mut replies = inner.run(route, &ops[..1])?;
                let (expiry, returns) = (Expiry::After(LEASE), Returns::Nothing);
                inner.run(route, &[Op::add(key, b"another's", expiry, returns)])?;
                replies.extend(inner.run(route, &ops[1..])?);
                Ok(replies)
            }
            Some(Loss::Refused(place)) => refusing(inner, route, ops, |at, _| at == place),
            Some(Loss::Time(time)) => {
                let replies = inner.run(route, ops);
                match &self.frozen {
                    Some(clock) => clock.advance(time),
                    None => thread::sleep(time),
                }
                replies
            }
        }
    }
}

/// As a memcached without room: it refuses what these operations store, and carries out the others.
fn refusing(
    inner: &dyn Store,
    route: Route,
    ops: &[Op<'_>],
    refused: impl Fn(usize, &Op<'_>) -> bool,
) -> Replies {
    let mut replies = Vec::new();
    let mut error = None;
    for (place, op) in ops.iter().enumerate() {
        if !op.changes() || matches!(op, Op::Delete { .. }) || !refused(place, op) {
            replies.extend(inner.run(route, &[*op])?);
            continue;
        }
        error = Some(Error::new(ErrorKind::Protocol, "SERVER_ERROR out of memory"));
    }
    let changes = ops.iter().filter(|op| op.changes()).count();
    error.map_or(Ok(replies), |error| Err(Failure { error, sent: changes > 1 }))
}

impl World {
    /// It loses these batches, counted from the first one.
    fn new(losses: &Losses) -> World {
        let world = World::on(Arc::new(SystemClock), None);
        *world.lossy.losses.lock().unwrap() = losses.to_vec();
        world
    }

    fn on(clock: Arc<dyn Clock>, frozen: Option<Arc<Frozen>>) -> World {
        let lossy = Arc::new(Lossy { frozen, ..Lossy::default() });
        let loses = Arc::clone(&lossy);
        let run = move |inner: &dyn Store, route, ops: &[Op<'_>]| loses.run(inner, route, ops);
        let (client, witness) = on_memory(&clock, run);
        World { client, witness, lossy }
    }

    /// From now on it loses these batches, counted from the next one that writes.
    fn lose(&self, losses: &Losses) {
        *self.lossy.losses.lock().unwrap() = losses.to_vec();
        self.lossy.seen.store(0, Ordering::SeqCst);
        self.lossy.awaits_a_write.store(true, Ordering::SeqCst);
    }

    fn heals(&self) {
        self.lose(&[]);
    }

    fn passes(&self, time: Duration) {
        self.lossy.frozen.as_ref().unwrap().advance(time);
    }

    fn hold(&self, kind: Kind, lease: Duration) -> Box<dyn Guard> {
        kind.hold(&self.client, "m", lease)
    }

    fn is_free(&self, kind: Kind) -> bool {
        kind.is_free(&self.witness, "m")
    }
}

/// A world in which no time passes, and that loses these batches after something was acquired there.
fn hold_and_lose(kind: Kind, lease: Duration, losses: &Losses) -> (World, Box<dyn Guard>) {
    let clock = Frozen::clock();
    let frozen = Arc::clone(&clock);
    let world = World::on(clock, Some(frozen));
    let held = world.hold(kind, lease);
    world.lose(losses);
    (world, held)
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

fn all_losses_of_each_kind() -> impl Iterator<Item = (Kind, Vec<(usize, Loss)>)> {
    KINDS.into_iter().flat_map(|kind| all_losses().into_iter().map(move |losses| (kind, losses)))
}

/// Nothing arrives from now on, until [`World::heals`]; or first something whose reply is lost.
fn all_lost(first: Loss) -> Vec<(usize, Loss)> {
    (0..100).map(|at| (at, if at == 0 { first } else { Loss::Request })).collect()
}

#[test]
fn locks_and_permits_survive_the_loss_of_any_two_batches() {
    for (kind, losses) in all_losses_of_each_kind() {
        let world = World::new(&losses);
        let mut held = world.hold(kind, LEASE);
        let other = kind.attempt(&world.witness, "m", LEASE).unwrap();
        assert_safe!(other.is_none(), "{kind:?} {losses:?}: granted twice");
        let (fence, began) = (held.fence(), Instant::now());
        assert_eq!(held.extend(LEASE).unwrap(), Extension::Extended, "{kind:?} {losses:?}");
        assert!(held.remaining() + began.elapsed() > LEASE - 5 * SECOND);
        assert_eq!(held.release().unwrap(), Release::Released, "{kind:?} {losses:?}");
        assert_safe!(world.is_free(kind), "{kind:?} {losses:?}: left behind");
        let next = world.hold(kind, LEASE);
        assert_safe!(kind == Kind::Permit || next.fence() > fence, "{losses:?}");
        drop(next);
        assert_safe!(world.is_free(kind), "{kind:?} {losses:?}: left behind");
    }
}

#[test]
fn what_another_holds_is_busy_whatever_gets_lost() {
    for (kind, losses) in all_losses_of_each_kind() {
        let world = World::new(&losses);
        let mut held = kind.hold(&world.witness, "m", LEASE);
        let other = kind.attempt(&world.client, "m", LEASE).unwrap();
        assert_safe!(other.is_none(), "{kind:?} {losses:?}");
        assert_eq!(held.release().unwrap(), Release::Released, "{kind:?} {losses:?}");
        drop(world.hold(kind, LEASE));
        assert_safe!(world.is_free(kind), "{kind:?} {losses:?}: left behind");
    }
}

#[test]
fn what_cannot_be_found_out_is_unknown_and_taken_off_at_the_next_contact() {
    for kind in KINDS {
        let (world, held) = hold_and_lose(kind, LEASE, &[]);
        drop(held);
        world.lose(&all_lost(Loss::Reply));
        let unknown = kind.attempt(&world.client, "m", LEASE).map(drop).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Unknown, "{unknown}");
        world.heals();
        assert!(!world.is_free(kind), "{kind:?}: it was granted after all");
        // Any further use of the client cleans up; for the same name it happens before anything
        // else.
        drop(world.hold(kind, LEASE));
        assert!(world.is_free(kind), "{kind:?}");
    }
}

/// A grant that took longer than its lease is given up, and the wait goes on with a token of its
/// own: what may be left of the first one must not be mistaken for the second.
#[test]
fn a_waiter_goes_on_after_a_grant_that_came_too_late() {
    // Batches: 0 finds it busy; 1 is granted too late, 2 reads it, 3 to 5 fail to give it back;
    // what is left of it is removed before the next one adds anew.
    for failing in [0, 3] {
        let mut losses = vec![(0, Loss::Chance), (1, Loss::Time(LEASE / 5 + SECOND / 10))];
        losses.extend((3..3 + failing).map(|at| (at, Loss::Request)));
        let world = World::new(&losses);
        let mut lock = world.client.mutex("m", LEASE / 5).unwrap().lock().unwrap();
        let owner = world.witness.mutex("m", LEASE).unwrap().owner().unwrap().unwrap();
        assert_eq!(owner.token(), lock.token().to_string());
        drop(world.client.mutex("other", LEASE).unwrap().lock().unwrap());
        assert!(!world.is_free(Kind::Lock), "cleaning up took our own lock off");
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
}

/// A callback that asks whether to stop may answer so only once, as Python does with a signal.
#[test]
fn an_interruption_that_is_told_once_while_a_reply_is_lost_ends_the_wait() {
    for told_at in 0..4 {
        let world = World::new(&[(0, Loss::Chance), (1, Loss::Reply), (2, Loss::Chance)]);
        let asked = AtomicUsize::new(0);
        let interrupted = || asked.fetch_add(1, Ordering::SeqCst) == told_at;
        let wait = Wait::FOREVER.unless(&interrupted);
        let waited = world.client.mutex("m", LEASE).unwrap().lock_with(&wait).unwrap();
        if asked.load(Ordering::SeqCst) > told_at {
            assert!(
                matches!(waited, Waited::Interrupted),
                "asked {told_at} times before it was told"
            );
        }
        drop(waited);
        drop(world.client.mutex("m", LEASE).unwrap().lock().unwrap());
        assert_safe!(world.is_free(Kind::Lock), "{told_at}: left behind");
    }
}

#[test]
fn a_slow_extension_counts_on_what_the_server_says() {
    let late = Loss::Time(Duration::from_millis(1100));
    let (_world, mut lock) = hold_and_lose(Kind::Lock, LEASE, &[(0, late)]);
    assert_eq!(lock.extend(5 * SECOND).unwrap(), Extension::Extended);
    assert!(lock.remaining() < 4 * SECOND && lock.remaining() > 2 * SECOND);
    assert_eq!(lock.release().unwrap(), Release::Released);
}

#[test]
fn an_unknown_release_may_be_tried_again() {
    for kind in KINDS {
        for first in [Loss::Request, Loss::Reply] {
            let (world, mut held) = hold_and_lose(kind, LEASE, &all_lost(first));
            assert_eq!(held.release().unwrap_err().kind(), ErrorKind::Unknown);
            world.heals();
            // Whether it is released only now, or the first time did it after all: it was ours until
            // then.
            assert_eq!(held.release().unwrap(), Release::Released, "{kind:?}");
            assert_safe!(world.is_free(kind), "{kind:?}: left behind");
            assert_eq!(held.release().unwrap(), Release::NotHeld);
            assert_eq!(held.extend(LEASE).unwrap(), Extension::NotHeld);
            drop(held);
            assert_safe!(world.is_free(kind), "{kind:?}: released twice");
        }
    }
}

#[test]
fn a_release_without_a_reply_is_released_even_if_another_takes_the_lock_while_it_is_looked_for() {
    let losses = [(0, Loss::Reply), (1, Loss::Between)];
    let (world, mut lock) = hold_and_lose(Kind::Lock, LEASE, &losses);
    assert_eq!(lock.release().unwrap(), Release::Released);
    assert_safe!(!world.is_free(Kind::Lock), "the other one's lock is left alone");
}

#[test]
fn an_extension_after_a_release_in_doubt_settles_that_it_is_held() {
    for kind in KINDS {
        let (world, mut held) = hold_and_lose(kind, LEASE, &all_lost(Loss::Request));
        assert_eq!(held.release().unwrap_err().kind(), ErrorKind::Unknown);
        assert!(held.remaining().is_zero(), "it may have been released");
        // One that is not sent changes nothing, also of that.
        world.lose(&(0..100).map(|at| (at, Loss::Unsent)).collect::<Vec<_>>());
        let error = held.extend(LEASE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("earlier release"), "{error}");
        assert!(held.remaining().is_zero(), "it may have been released");
        assert_eq!(held.release().unwrap_err().kind(), ErrorKind::Unknown);
        world.heals();
        assert_eq!(held.extend(LEASE).unwrap(), Extension::Extended);
        assert!(!held.remaining().is_zero(), "it was extended");
        assert_eq!(held.release().unwrap(), Release::Released);
        assert!(world.is_free(kind));
    }
}

#[test]
fn an_unknown_extension_counts_on_the_shorter_lease() {
    for kind in KINDS {
        let (world, mut held) = hold_and_lose(kind, LEASE, &all_lost(Loss::Reply));
        assert_eq!(held.extend(2 * SECOND).unwrap_err().kind(), ErrorKind::Unknown);
        world.heals();
        assert!(held.remaining() <= 2 * SECOND);
        assert_eq!(held.extend(LEASE).unwrap(), Extension::Extended);
        assert_eq!(held.release().unwrap(), Release::Released);
    }
}

/// The server may have stood still since it was granted: then the new lease began when its clock
/// stopped.
#[test]
fn an_unknown_extension_to_a_shorter_lease_counts_on_nothing_that_a_server_which_stood_still_does_not_keep()
 {
    let (world, mut lock) = hold_and_lose(Kind::Lock, LEASE, &all_lost(Loss::Request));
    world.passes(Duration::from_millis(1500));
    assert_eq!(lock.extend(SECOND).unwrap_err().kind(), ErrorKind::Unknown);
    world.heals();
    assert_eq!(lock.remaining(), Duration::ZERO);
    assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
    assert_eq!(lock.release().unwrap(), Release::Released);
}

#[test]
fn what_is_renewed_and_whose_release_is_in_doubt_is_not_lost_by_looking_at_it() {
    for kind in KINDS {
        let (world, held) = hold_and_lose(kind, LEASE, &all_lost(Loss::Request));
        let renewal = held.renew(RenewOptions::default()).unwrap();
        assert_eq!(renewal.release().unwrap_err().kind(), ErrorKind::Unknown);
        world.heals();
        assert!(!renewal.is_held(), "nobody knows");
        assert_eq!(renewal.lost(), None);
        assert_eq!(renewal.release().unwrap(), Release::Released);
    }
}

/// Its holder got the answer that it is lost: it would not be released until its earlier lease is
/// over, which is not before the clock says so.
#[test]
fn what_is_renewed_and_lost_after_an_unknown_extension_is_taken_off() {
    for kind in KINDS {
        let (world, mut held) = hold_and_lose(kind, LEASE, &all_lost(Loss::Request));
        assert_eq!(held.extend(SECOND).unwrap_err().kind(), ErrorKind::Unknown);
        world.heals();
        world.passes(Duration::from_millis(1500));
        let renewal = held.renew(RenewOptions::default()).unwrap();
        assert!(!renewal.is_held());
        until("it is taken off", || {
            drop(kind.hold(&world.client, "other", LEASE));
            world.is_free(kind)
        });
    }
}

/// Its holder may die, and then it is to come back when the lease that is renewed is over.
#[test]
fn a_lease_is_renewed_for_its_own_length_after_an_unknown_extension_to_a_longer_one() {
    let (world, mut permit) = hold_and_lose(Kind::Permit, LEASE, &all_lost(Loss::Reply));
    assert_eq!(permit.extend(20 * LEASE).unwrap_err().kind(), ErrorKind::Unknown);
    world.heals();
    let semaphore = world.witness.semaphore("m", 1, LEASE).unwrap();
    let ends = || semaphore.status().unwrap().unwrap().holders[0].remaining;
    assert!(ends() > 10 * LEASE, "it was carried out");
    world.passes(LEASE / 2);
    let renewal = permit.renew(RenewOptions::default()).unwrap();
    until("it is renewed", || ends() <= LEASE + 3 * SECOND);
    assert!(renewal.is_held());
    assert_eq!(renewal.release().unwrap(), Release::Released);
}

#[test]
fn a_list_survives_the_loss_of_any_two_batches() {
    for losses in all_losses() {
        let World { client, witness, .. } = World::new(&losses);
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
        let walked = walked(&mut list);
        assert_eq!(walked.len(), 3, "{losses:?}: {walked:?}");
        assert!(list.tear_down().unwrap(), "{losses:?}");
        assert_eq!(other.insert("late").unwrap(), None, "{losses:?}");
    }
}

#[test]
fn no_lock_or_permit_is_granted_twice_or_left_behind_whatever_operation_is_refused() {
    let refused = (0..8).flat_map(|batch| (0..5).map(move |place| (batch, Loss::Refused(place))));
    for (kind, refused) in
        KINDS.into_iter().flat_map(|kind| refused.clone().map(move |it| (kind, it)))
    {
        let world = World::new(&[refused]);
        let attempt = || kind.attempt(&world.client, "m", LEASE);
        let mut held = attempt().or_else(|_| attempt()).unwrap().expect("it was free");
        let other = kind.attempt(&world.witness, "m", LEASE).unwrap();
        assert_safe!(other.is_none(), "{kind:?} {refused:?}: granted twice");
        let extended = held.extend(LEASE).or_else(|_| held.extend(LEASE)).unwrap();
        assert_eq!(extended, Extension::Extended, "{kind:?} {refused:?}");
        let released = held.release().or_else(|_| held.release()).unwrap();
        assert_eq!(released, Release::Released, "{kind:?} {refused:?}");
        assert_safe!(world.is_free(kind), "{kind:?} {refused:?}: left behind");
    }
}

#[test]
fn a_list_lists_what_it_has_whatever_operation_is_refused() {
    for (batch, place) in (0..10).flat_map(|batch| (0..5).map(move |place| (batch, place))) {
        let World { client, witness, .. } = World::new(&[(batch, Loss::Refused(place))]);
        let mut list = client.distinct_list("s").unwrap();
        let _ = list.set_up(LEASE).or_else(|_| list.set_up(LEASE)).unwrap();
        let mut told = list.insert_many(&["a", "b"]);
        let failed = told.is_err();
        if failed {
            told = list.insert_many(&["a", "b"]);
        }
        let told = told.unwrap().unwrap();
        let first = |told: &Insertion| matches!(told, Insertion::First(_));
        assert_safe!(failed || told.iter().all(first), "{batch} {place}: {told:?}");
        let mut other = witness.distinct_list("s").unwrap();
        assert_eq!(walked(&mut other), listed(&told, &["a", "b"]), "{batch} {place}");
    }
}

/// Otherwise it would be a duplicate for all, and in no walk.
#[test]
fn a_key_for_which_there_is_no_room_is_taken_back() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let full = Arc::new(AtomicBool::new(true));
    let is_full = Arc::clone(&full);
    let no_room = move |_, op: &Op<'_>| match op {
        Op::Add { value, .. } => is_full.load(Ordering::SeqCst) && value.len() > 100,
        _ => false,
    };
    let (client, witness) =
        on_memory(&clock, move |inner, route, ops| refusing(inner, route, ops, &no_room));
    let mut list = client.distinct_list("s").unwrap();
    let _ = list.set_up(LEASE).unwrap();
    let long = "k".repeat(200);
    let error = list.insert_many(&["a", &long, "b"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    let mut other = witness.distinct_list("s").unwrap();
    assert_eq!(other.contains(&long).unwrap(), Some(false));
    full.store(false, Ordering::SeqCst);
    let told = list.insert_many(&["a", &long, "b"]).unwrap().unwrap();
    assert!(matches!(told[1], Insertion::First(_)), "{told:?}");
    assert_eq!(walked(&mut other), listed(&told, &["a", &long, "b"]));
}

/// Batches: 0 looks the session up, 1 claims, 2 counts, 3 commits.
#[test]
fn a_key_that_is_refused_after_other_losses_is_taken_back_unless_it_is_whole() {
    let insert = |losses: &Losses| {
        let World { client, witness, .. } = World::new(losses);
        let mut other = witness.distinct_list("s").unwrap();
        let _ = other.set_up(LEASE).unwrap();
        let told = client.distinct_list("s").unwrap().insert("k");
        (told, other.contains("k").unwrap(), walked(&mut other).len())
    };
    let (told, listed, count) =
        insert(&[(1, Loss::Request), (2, Loss::Request), (5, Loss::Refused(0))]);
    assert_eq!(told.unwrap_err().kind(), ErrorKind::Protocol);
    assert_eq!((listed, count), (Some(false), 0));
    // The commit was carried out, and soon there is no room. Batches 4 and 5 read.
    for full in [4, 6] {
        let mut losses = vec![(3, Loss::Reply)];
        losses.extend((full..40).map(|at| (at, Loss::Refused(0))));
        let (told, listed, count) = insert(&losses);
        assert_eq!(told.unwrap(), Some(Insertion::First(1)), "{full}");
        assert_eq!((listed, count), (Some(true), 1), "{full}");
    }
}

fn walked(list: &mut DistinctList) -> Vec<(u64, Vec<u8>)> {
    list.entries().unwrap().unwrap().collect::<Result<_>>().unwrap()
}

/// What a walk shows of a list that has only these keys.
fn listed(told: &[Insertion], keys: &[&str]) -> Vec<(u64, Vec<u8>)> {
    let keys = keys.iter().map(|key| key.as_bytes().to_vec());
    let mut all: Vec<_> = told.iter().map(|told| told.id()).zip(keys).collect();
    all.sort();
    all
}

/// The worker claims a key and dies; another finishes the insert, and is then the first.
#[test]
fn a_half_insert_is_finished_by_the_next_comer() {
    // Batches: 0 looks the session up, 1 claims, 2 counts, 3 settles; all further ones are lost.
    for died_after in 2..5 {
        let losses: Vec<_> = (died_after..40).map(|at| (at, Loss::Request)).collect();
        let World { client, witness, .. } = World::new(&losses);
        let mut other = witness.distinct_list("s").unwrap();
        let _ = other.set_up(LEASE).unwrap();
        let died = client.distinct_list("s").unwrap().insert("k");
        assert_eq!(died.is_ok(), died_after == 4, "{died_after}: {died:?}");
        let told = other.insert("k").unwrap().unwrap();
        let finished =
            if died_after == 4 { Insertion::Duplicate(1) } else { Insertion::First(told.id()) };
        assert_eq!(told, finished);
        assert_eq!(other.insert("l").unwrap(), Some(Insertion::First(told.id() + 1)));
        assert_eq!(
            walked(&mut other),
            [(told.id(), b"k".to_vec()), (told.id() + 1, b"l".to_vec())],
            "holes are skipped"
        );
    }
}

const LATE: Duration = Duration::from_secs(8);

/// What `tests/store_faults/` does not do to a request or a reply.
fn faults() -> [Fault; 4] {
    [
        Fault::CutReplyAfter(3),
        Fault::DelayReply(LATE),
        Fault::DelayRest(0, LATE),
        Fault::GarbleReply(b"HD c1 O777\r\n".to_vec()),
    ]
}

/// A client through a proxy, a witness beside it, and what is done through them.
struct Wire {
    proxy: Proxy,
    client: Client,
    witness: Client,
    fault: Fault,
    name: String,
}

impl Wire {
    /// Lets the fault happen to the next burst of this kind, in the course of this step.
    fn fails<T>(&self, burst: Match, step: impl FnOnce() -> T) -> T {
        self.proxy.inject(burst, self.fault.clone());
        let done = step();
        assert_eq!(self.proxy.hits(), 1, "{}", self.name);
        done
    }

    /// A request that was only late has arrived by now, most probably.
    fn what_is_late_arrives(&self) {
        if let Fault::DelayRest(..) = self.fault {
            thread::sleep(LATE);
        }
    }

    fn writing(kind: Kind, of_a_lock: Match) -> Match {
        if kind == Kind::Lock { of_a_lock } else { Match::Putting }
    }

    fn granting(&self, kind: Kind) {
        let (client, name) = (&self.client, &*self.name);
        // A semaphore that is there is read and put.
        drop(kind.hold(&self.witness, name, LEASE));
        let burst = Self::writing(kind, Match::Adding);
        let mut held = self.fails(burst, || kind.hold(client, name, LEASE));
        let other = kind.attempt(&self.witness, name, LEASE).unwrap();
        assert_safe!(other.is_none(), "{name}: granted twice");
        assert_eq!(held.release().unwrap(), Release::Released, "{name}");
        self.what_is_late_arrives();
        until("what arrived late is taken off", || {
            drop(kind.hold(client, &format!("other {name}"), LEASE));
            kind.is_free(&self.witness, name)
        });
    }

    fn releasing(&self, kind: Kind) {
        let (client, name) = (&self.client, &*self.name);
        let mut held = kind.hold(client, name, LEASE);
        let burst = Self::writing(kind, Match::Deleting);
        let released = self.fails(burst, || held.release());
        assert_eq!(released.unwrap(), Release::Released, "{name}");
        // A late request must not hit the next holder.
        let mut next = kind.hold(&self.witness, name, LEASE);
        self.what_is_late_arrives();
        let released = next.release().unwrap();
        assert_safe_eq!(released, Release::Released, "{name}: another holder's was released");
    }

    fn extending(&self, kind: Kind) {
        let (client, name) = (&self.client, &*self.name);
        let mut held = kind.hold(client, name, LEASE);
        let burst = Self::writing(kind, Match::Swapping);
        let extended = self.fails(burst, || held.extend(4 * LEASE));
        assert_eq!(extended.unwrap(), Extension::Extended, "{name}");
        assert!(held.remaining() > 2 * LEASE, "{name}");
        self.what_is_late_arrives();
        assert!(!kind.is_free(&self.witness, name), "{name}");
        assert_eq!(held.release().unwrap(), Release::Released, "{name}");
    }

    fn inserting(&self, burst: Match) {
        let mut list = self.client.distinct_list(&self.name).unwrap();
        let _ = list.set_up(LEASE).unwrap();
        let told = self.fails(burst, || list.insert("k")).unwrap().unwrap();
        assert!(matches!(told, Insertion::First(_)), "{}: {told:?}", self.name);
        self.what_is_late_arrives();
        let again = self.witness.distinct_list(&self.name).unwrap().insert("k").unwrap().unwrap();
        assert_safe_eq!(again, Insertion::Duplicate(told.id()), "{}", self.name);
    }
}

/// With a client of its own for each of these steps and faults, at the same time.
fn with_each_fault<A: Copy + std::fmt::Debug + Send + Sync>(
    steps: &[A],
    step: impl Fn(&Wire, A) + Sync,
) {
    let (server, step) = (&Memcached::start(), &step);
    thread::scope(|scope| {
        for (&of, fault) in steps.iter().flat_map(|of| faults().map(|fault| (of, fault))) {
            scope.spawn(move || {
                let proxy = Proxy::start(server.address());
                // What is late is to be given up; nothing else is.
                let is_late = matches!(fault, Fault::DelayReply(_) | Fault::DelayRest(..));
                let patience = if is_late { "5s" } else { "20s" };
                let url = format!("{}?io_timeout={patience}", proxy.url());
                let client = Client::connect(&url).unwrap();
                let witness = Client::connect(&server.url()).unwrap();
                let name = format!("{of:?} {fault:?}");
                step(&Wire { proxy, client, witness, fault, name }, of);
            });
        }
    });
}

#[test]
fn a_grant_whose_reply_is_late_or_spoilt_is_found_and_kept() {
    with_each_fault(&KINDS, Wire::granting);
}

#[test]
fn a_release_whose_reply_is_late_or_spoilt_is_settled() {
    with_each_fault(&KINDS, Wire::releasing);
}

#[test]
fn an_extension_whose_reply_is_late_or_spoilt_is_settled() {
    with_each_fault(&KINDS, Wire::extending);
}

#[test]
fn inserts_whose_replies_are_late_or_spoilt_are_settled() {
    with_each_fault(&[Match::Adding, Match::Counting, Match::Swapping], Wire::inserting);
}

fn cost(proxy: &Proxy, mut step: impl FnMut()) -> usize {
    usual_cost(|| {
        let before = proxy.round_trips();
        step();
        proxy.round_trips() - before
    })
}

#[test]
fn a_mutex_costs_one_round_trip_each_way() {
    let server = Memcached::start();
    let proxy = Proxy::start(server.address());
    let mutex = connect(&proxy.url()).mutex("m", LEASE).unwrap();
    let unlock = || assert_eq!(mutex.lock().unwrap().unlock().unwrap(), Release::Released);
    unlock();
    assert_eq!(cost(&proxy, unlock), 2);
    let extend = || assert_eq!(mutex.lock().unwrap().extend(LEASE).unwrap(), Extension::Extended);
    assert_eq!(cost(&proxy, extend), 3);
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn a_batch_of_inserts_costs_a_constant_number_of_round_trips() {
    let server = Memcached::start();
    let proxy = Proxy::start(server.address());
    let mut list = connect(&proxy.url()).distinct_list("s").unwrap();
    let _ = list.set_up(LEASE).unwrap();
    let names =
        |from: usize, to: usize| (from..to).map(|number| format!("{number}")).collect::<Vec<_>>();
    let mut last = 0;
    let mut fresh = |number: usize| {
        last += number;
        names(last - number, last)
    };
    let mut cost = |some: &mut dyn FnMut() -> Vec<String>| {
        cost(&proxy, || _ = list.insert_many(&some()).unwrap().unwrap())
    };
    assert_eq!(cost(&mut || fresh(1)), 3);
    assert_eq!(cost(&mut || names(0, 1)), 1, "a duplicate");
    assert_eq!(cost(&mut || fresh(1000)), 3, "a thousand new keys");
    let mut half = || [names(0, 500), fresh(500)].concat();
    assert_eq!(cost(&mut half), 4, "half of them duplicates");
    assert_eq!(cost(&mut || names(0, 1000)), 2, "all of them duplicates");
}
