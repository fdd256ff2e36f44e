//! Tests of the list of local waiters.

use super::*;
use crate::name::Keyspace;
use crate::notify::{Reach, WakeAddress, WakeMessage};
use crate::wait::policy::{Event, Policy, TargetState};

fn joined() -> Policy {
    let now = Moment::from_boot(Duration::from_secs(1));
    let mut policy = Policy::new(now, None, Duration::ZERO, Known::default());
    let state = TargetState::Held { notifies: true, left: None };
    policy.on(Event::Joined { before: 0, state }, now, 0.5, Reach::Proven);
    policy
}

/// A listener that never receives a message.
struct Silent;

impl Listener for Silent {
    fn address(&self, _near: Option<std::net::IpAddr>, _test: WaitId) -> Option<WakeAddress> {
        None
    }
    fn sleep(&self, _duration: Duration) {}
    fn heard(&self, _live: &[WaitId]) -> Option<WakeMessage> {
        None
    }
    fn interrupt(&self) {}
}

/// Otherwise the waiter would conclude that the entry under which it has since joined was
/// removed.
#[test]
fn a_waiter_that_has_left_the_queue_is_not_woken_by_its_earlier_line() {
    let key = Keyspace::default().semaphore(b"x");
    let local = LocalWaiters::<(), ()>::default();
    let listener: Arc<dyn Listener> = Arc::new(Silent);
    let number = local.enter(&key, (), false, &listener);
    assert!(local.park(&key, number, &[WaitId(1)]));
    assert!(local.wake(&key, WaitId(1), Duration::ZERO));
    local.has_left(&key, number);
    assert!(!local.wake(&key, WaitId(1), Duration::ZERO), "nobody waits under it");
    assert!(local.park(&key, number, &[WaitId(2)]));
    assert!(matches!(local.unpark(&key, number), Unparked::Up { woken: None }));
}

#[test]
fn a_waiter_that_takes_over_a_place_acts_on_its_wake_up() {
    let key = Keyspace::default().lock(b"x");
    let local = LocalWaiters::<(), ()>::default();
    let listener: Arc<dyn Listener> = Arc::new(Silent);
    let (first, next) =
        (local.enter(&key, (), false, &listener), local.enter(&key, (), false, &listener));
    assert!(local.park(&key, first, &[WaitId(1)]));
    local.begin_hand_off(&key).unwrap().grant(());
    assert!(matches!(local.unpark(&key, first), Unparked::Granted(())));
    local.leave_wake(&key, first, Duration::ZERO);
    assert!(local.leave(&key, first, None, None).is_none());
    assert!(matches!(local.unpark(&key, next), Unparked::Up { woken: Some(Duration::ZERO) }));
}

/// Otherwise two threads would grant it a permit by the same token.
#[test]
fn a_waiter_that_has_taken_its_grant_is_handed_off_nothing_more() {
    let key = Keyspace::default().semaphore(b"x");
    let local = LocalWaiters::<(), ()>::default();
    let listener: Arc<dyn Listener> = Arc::new(Silent);
    let numbers = [false, true, false, false].map(|own| local.enter(&key, (), own, &listener));
    let begun = |most| {
        let begun = local.begin_hand_offs(&key, || most);
        let numbers: Vec<u64> = begun.iter().map(|it| it.number).collect();
        begun.into_iter().for_each(HandingOff::call_off);
        numbers
    };
    assert_eq!(begun(9), [numbers[0], numbers[2], numbers[3]], "not to one on its own");
    assert_eq!(begun(2), [numbers[0], numbers[2]]);
    local.begin_hand_off(&key).unwrap().grant(());
    assert_eq!(begun(1), [numbers[2]]);
    assert!(matches!(local.unpark(&key, numbers[0]), Unparked::Granted(())));
    assert_eq!(begun(1), [numbers[2]]);
}

#[test]
fn a_place_in_the_queue_passes_by_waiters_on_their_own() {
    let key = Keyspace::default().semaphore(b"x");
    let local = LocalWaiters::<(), ()>::default();
    let listener: Arc<dyn Listener> = Arc::new(Silent);
    let numbers = [false, true, false].map(|own| local.enter(&key, (), own, &listener));
    let ticket = |ids: &[WaitId]| QueueTicket {
        position: joined().position().unwrap(),
        ids: ids.to_vec(),
        proven: true,
    };
    let ours = ticket(&[WaitId(1)]);
    assert!(local.leave(&key, numbers[0], Some(ours), None).is_none());
    assert!(local.wake(&key, WaitId(1), Duration::ZERO), "it is for the next in line");
    assert!(matches!(local.unpark(&key, numbers[1]), Unparked::Up { woken: None }));
    assert!(matches!(local.unpark(&key, numbers[2]), Unparked::Up { woken: Some(_) }));
    let taken = local.take_over(&key, numbers[2]).unwrap();
    assert!(taken.ticket.is_some_and(|it| it.ids == [WaitId(1)]));
    // One on its own keeps its place to itself.
    assert!(local.leave(&key, numbers[1], Some(ticket(&[WaitId(2)])), None).is_some());
}

#[test]
fn the_listener_of_the_first_passes_to_the_waiter_that_is_first_after_it() {
    let key = Keyspace::default().lock(b"x");
    let local = LocalWaiters::<(), ()>::default();
    let listeners = [(); 5].map(|()| Arc::new(Silent) as Arc<dyn Listener>);
    let own = [false, false, true, false, false];
    let numbers: Vec<u64> =
        own.iter().zip(&listeners).map(|(&own, it)| local.enter(&key, (), own, it)).collect();
    let leave = |nth: usize| assert!(local.leave(&key, numbers[nth], None, None).is_none());
    let taken_over = |nth: usize| local.take_over(&key, numbers[nth]).map(|it| it.listener);
    let is = |taken: Option<Option<Arc<dyn Listener>>>, nth: usize| {
        taken.flatten().is_some_and(|it| Arc::ptr_eq(&it, &listeners[nth]))
    };
    assert!(taken_over(0).is_some_and(|listener| listener.is_none()));
    leave(0);
    // It ends without having taken anything over.
    leave(1);
    assert!(taken_over(4).is_none(), "it is not the first");
    leave(2);
    assert!(is(taken_over(3), 0));
    assert!(taken_over(3).is_some_and(|listener| listener.is_none()), "it has it");
    leave(3);
    assert!(is(taken_over(4), 0));
    leave(4);
    assert_eq!(Arc::strong_count(&listeners[0]), 1, "nothing is kept for nobody");
}

#[test]
fn how_many_were_waiting_is_known_for_a_moment_if_they_were_many() {
    let key = Keyspace::default().semaphore(b"x");
    let at = |micros: u64| Moment::from_boot(Duration::from_micros(1_000_000 + micros));
    let local = LocalWaiters::<(), ()>::default();
    let waiting = |waiting, later| {
        local.released(
            &key,
            WakeSummary { others: true, waiting, ..WakeSummary::default() },
            at(0),
        );
        local.arrive(&key, at(later)).and_then(|known| known.waiting)
    };
    assert_eq!(waiting(ENOUGH, 1999), Some(ENOUGH));
    assert_eq!(waiting(ENOUGH, 2001), None, "too long ago");
    assert_eq!(waiting(ENOUGH - 1, 1), None, "a waiter near its turn has to know its place");
}
