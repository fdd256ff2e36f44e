use super::*;
use proptest::prelude::*;

const OUTAGE: Duration = Duration::from_secs(5);
const COURTEOUS: Known =
    Known { fair_reentry: true, grace: Duration::ZERO, pace: None, shared: false, waiting: None };
const NOTIFYING: TargetState = TargetState::Held { notifies: true, left: None };
const SILENT: TargetState = TargetState::Held { notifies: false, left: None };

fn at(millis: u64) -> Moment {
    Moment::from_boot(Duration::from_millis(1_000_000 + millis))
}

fn policy(limit: Option<u64>) -> Policy {
    Policy::new(at(0), limit.map(Duration::from_millis), OUTAGE, Known::default())
}

/// A waiter whose attempt has failed, and that is in the queue behind `before` others.
fn queued(before: usize, state: TargetState, reach: Reach) -> Policy {
    queued_for(Known::default(), before, state, reach, 0.0)
}

/// The same, for a target that several holders can hold at once if `known.shared`.
fn queued_for(
    known: Known,
    before: usize,
    state: TargetState,
    reach: Reach,
    chance: f64,
) -> Policy {
    let mut policy = Policy::new(at(0), None, OUTAGE, known);
    assert_eq!(policy.step(at(0)), Step::Try);
    policy.on(Event::Missed, at(0), 0.0, reach);
    assert_eq!(policy.step(at(0)), Step::Join { front: false });
    policy.on(Event::Joined { before, state }, at(0), chance, reach);
    policy
}

fn sleeps(policy: &mut Policy, now: u64) -> Duration {
    match policy.step(at(now)) {
        Step::Sleep(until) => until.since(at(now)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_woken_waiter_tries_at_once_and_joins_in_front_if_it_missed() {
    let mut policy = queued(3, NOTIFYING, Reach::Proven);
    policy.on(Event::Woken(Duration::ZERO), at(5), 0.5, Reach::Proven);
    assert_eq!(policy.step(at(5)), Step::Try);
    policy.on(Event::Missed, at(6), 0.5, Reach::Proven);
    assert_eq!(policy.step(at(6)), Step::Join { front: true });
    policy.on(Event::Joined { before: 0, state: NOTIFYING }, at(7), 0.5, Reach::Proven);
    assert!(matches!(policy.step(at(7)), Step::Sleep(_)));
}

#[test]
fn a_waiter_that_is_asked_to_come_later_does_so() {
    let mut policy = queued(0, NOTIFYING, Reach::Proven);
    policy.on(Event::Woken(Duration::from_millis(2)), at(5), 0.5, Reach::Proven);
    assert_eq!(policy.step(at(5)), Step::Sleep(at(7)));
    assert_eq!(policy.step(at(7)), Step::Try);
    policy.on(Event::Missed, at(8), 0.5, Reach::Proven);
    assert_eq!(policy.step(at(8)), Step::Join { front: true });
}

#[test]
fn the_first_waiter_takes_what_it_finds_free() {
    let mut policy = Policy::new(at(0), None, OUTAGE, COURTEOUS);
    assert_eq!(
        policy.step(at(0)),
        Step::Join { front: false },
        "a courteous one does not try first"
    );
    policy.on(Event::Joined { before: 0, state: TargetState::Free }, at(1), 0.0, Reach::Proven);
    assert_eq!(policy.step(at(1)), Step::Try);
    policy.on(Event::Missed, at(2), 0.0, Reach::Proven);
    assert_eq!(
        policy.step(at(2)),
        Step::Inspect { target: true, queue: false },
        "the new holder may have to be told"
    );
}

#[test]
fn a_waiter_that_runs_out_of_time_before_it_tries_what_it_saw_free_leaves_no_place_to_sleep_in() {
    let mut policy = Policy::new(at(0), Some(Duration::from_millis(5)), OUTAGE, COURTEOUS);
    assert_eq!(policy.step(at(0)), Step::Join { front: false });
    policy.on(Event::Joined { before: 0, state: TargetState::Free }, at(4), 0.0, Reach::Proven);
    assert_eq!(policy.step(at(5)), Step::Leave);
    assert_eq!(policy.position(), None, "the next thread would sleep there, while it is free");
    policy.on(Event::Left, at(6), 0.0, Reach::Proven);
    assert_eq!(policy.step(at(6)), Step::End(Ended::TimedOut));
}

#[test]
fn the_one_that_was_woken_has_a_moment_before_those_behind_it_go_ahead() {
    let mut policy = queued(1, TargetState::Free, Reach::Proven);
    let pause = sleeps(&mut policy, 0);
    assert!(pause >= GRACE && pause <= GRACE * 2, "{pause:?}");
    assert_eq!(policy.step(at(45)), Step::Inspect { target: true, queue: true });
    let then = |before, state| {
        let mut policy = policy.clone();
        let view = Some(QueueView::Behind(before));
        policy.on(Event::Inspected { view, state: Some(state) }, at(46), 0.0, Reach::Proven);
        policy
    };
    assert_eq!(then(1, TargetState::Free).step(at(46)), Step::Try);
    assert!(sleeps(&mut then(1, NOTIFYING), 46) >= FIRST.0);
    let mut policy = queued(9, TargetState::Free, Reach::Proven);
    let pause = sleeps(&mut policy, 0).as_millis() as u64;
    policy.step(at(pause));
    let view = Some(QueueView::Behind(5));
    let free = Event::Inspected { view, state: Some(TargetState::Free) };
    policy.on(free, at(pause), 0.0, Reach::Proven);
    assert!(sleeps(&mut policy, pause) >= GRACE, "four have had their turn since");
}

/// The queue moves because holders remove the entries of dead waiters.
#[test]
fn a_waiter_behind_others_sees_that_the_lock_is_free_although_the_queue_moves() {
    let mut policy = queued(9, NOTIFYING, Reach::Proven);
    let pause = sleeps(&mut policy, 0).as_millis() as u64;
    assert_eq!(policy.step(at(pause)), Step::Inspect { target: true, queue: true });
    let view = Some(QueueView::Behind(1));
    let free = Event::Inspected { view, state: Some(TargetState::Free) };
    policy.on(free, at(pause), 0.0, Reach::Proven);
    assert!(sleeps(&mut policy, pause) <= GRACE * 2);
    policy.step(at(pause + 50));
    policy.on(free, at(pause + 51), 0.0, Reach::Proven);
    assert_eq!(policy.step(at(pause + 51)), Step::Try);
}

/// In a busy queue no other waiter would find the permits of a dead holder.
#[test]
fn of_n_waiters_far_from_their_turn_one_looks_again_for_available_permits() {
    let shared = Known { shared: true, ..Known::default() };
    let pause = |before, chance| {
        sleeps(&mut queued_for(shared, before, TargetState::Free, Reach::Proven, chance), 0)
    };
    assert!(pause(2, 0.99) <= GRACE * 2, "near its turn");
    assert!(pause(20, 0.049) <= GRACE * 2, "the one of twenty");
    let far = pause(20, 0.051);
    assert!(far > GRACE * 2 && far <= LEFT, "{far:?}");
    let mut policy = queued_for(shared, 20, TargetState::Free, Reach::Proven, 0.5);
    let later = sleeps(&mut policy, 0).as_millis() as u64 + 1;
    assert_eq!(policy.step(at(later)), Step::Inspect { target: true, queue: false });
    policy.on(
        Event::Inspected { view: None, state: Some(TargetState::Free) },
        at(later),
        0.5,
        Reach::Proven,
    );
    assert_eq!(policy.step(at(later)), Step::Try, "it is still free, and nobody has come");
}

/// The target may be reserved for a dead waiter, and the waiters before this one may be dead, too.
#[test]
fn a_waiter_that_watches_over_a_reservation_looks_at_the_lock_wherever_it_stands() {
    let left = Duration::from_millis(300);
    let mut policy = queued(50, TargetState::ReservedForOther(left), Reach::Proven);
    let pause = sleeps(&mut policy, 0);
    assert!(pause >= left && pause <= left * 2, "{pause:?}");
    let then = pause.as_millis() as u64 + 1;
    assert_eq!(policy.step(at(then)), Step::Inspect { target: true, queue: true });
}

#[test]
fn a_waiter_that_woke_another_lets_it_pass() {
    let mut policy =
        Policy::new(at(0), None, OUTAGE, Known { grace: Duration::from_millis(2), ..COURTEOUS });
    assert_eq!(policy.step(at(0)), Step::Join { front: false });
    policy.on(Event::Joined { before: 0, state: TargetState::Free }, at(1), 0.0, Reach::Proven);
    assert_eq!(policy.step(at(1)), Step::Sleep(at(3)), "it may be on its way");
    assert_eq!(policy.step(at(3)), Step::Inspect { target: true, queue: false });
    policy.on(
        Event::Inspected { view: None, state: Some(TargetState::Free) },
        at(4),
        0.0,
        Reach::Proven,
    );
    assert_eq!(policy.step(at(4)), Step::Try, "and if not, it had its chance");
}

#[test]
fn a_healthy_queue_is_left_in_peace() {
    // 32 waiters with holds of half a second: together they send less than one request per turn.
    let (mut asked, mut commands) = (0, 0);
    for before in 0..32_u64 {
        let mut policy = queued(before as usize, NOTIFYING, Reach::Proven);
        let mut now = 0;
        while now < (before + 1) * 500 {
            match policy.step(at(now)) {
                Step::Sleep(until) => now = until.since(at(0)).as_millis() as u64 + 1,
                Step::Inspect { target, queue } => {
                    asked += 1;
                    commands += u32::from(target) + u32::from(queue);
                    let view = queue.then_some(QueueView::Behind((before - now / 500) as usize));
                    policy.on(
                        Event::Inspected { view, state: target.then_some(NOTIFYING) },
                        at(now),
                        0.5,
                        Reach::Proven,
                    );
                }
                other => panic!("{other:?} after {now} ms"),
            }
        }
    }
    assert!(asked < 32 && commands < 64, "{asked}, {commands}");
}

#[test]
fn a_queue_that_stands_still_is_looked_at_closely() {
    // As for a semaphore: a waiter for a lock reads it together with the queue.
    let shared = Known { shared: true, ..Known::default() };
    let mut policy = queued_for(shared, 5, NOTIFYING, Reach::Proven, 0.0);
    let pause = sleeps(&mut policy, 0).as_millis() as u64;
    assert!(pause <= 3600);
    assert_eq!(policy.step(at(pause)), Step::Inspect { target: false, queue: true });
    policy.on(
        Event::Inspected { view: Some(QueueView::Behind(4)), state: None },
        at(pause),
        0.0,
        Reach::Proven,
    );
    assert_eq!(policy.step(at(pause)), Step::Inspect { target: true, queue: false });
    policy.on(
        Event::Inspected { view: None, state: Some(TargetState::Free) },
        at(pause),
        0.0,
        Reach::Proven,
    );
    let grace = sleeps(&mut policy, pause).as_millis() as u64;
    policy.step(at(pause + grace));
    policy.on(
        Event::Inspected { view: None, state: Some(TargetState::Free) },
        at(pause + grace),
        0.0,
        Reach::Proven,
    );
    assert_eq!(policy.step(at(pause + grace)), Step::Try);
}

#[test]
fn without_wake_ups_a_young_wait_asks_often_and_an_old_one_seldom() {
    let mut policy = queued(0, SILENT, Reach::Proven);
    let (mut now, mut looks) = (0, 0);
    while now < 10_000 {
        let pause = sleeps(&mut policy, now);
        assert!(
            pause <= Duration::from_millis(if now < 1000 { 280 } else { 700 }),
            "{pause:?} after {now} ms"
        );
        now += pause.as_millis() as u64 + 1;
        let Step::Inspect { target: true, queue } = policy.step(at(now)) else { panic!("no look") };
        looks += 1 + u64::from(queue);
        let view = queue.then_some(QueueView::Behind(0));
        policy.on(Event::Inspected { view, state: Some(SILENT) }, at(now), 1.0, Reach::Proven);
    }
    assert!(looks <= 30, "{looks} commands in 10 seconds");
}

/// Every process is untested in its first wait, which may be its only one.
#[test]
fn an_untested_waiter_inspects_as_seldom_as_a_proven_one() {
    let inspections = |before: usize, reach| {
        let left = Some(Duration::from_secs(600));
        let state = TargetState::Held { notifies: true, left };
        let mut policy = queued(before, state, reach);
        let (mut now, mut inspections) = (0, 0);
        while now < 60_000 {
            now += sleeps(&mut policy, now).as_millis() as u64 + 1;
            let Step::Inspect { target, queue: true } = policy.step(at(now)) else { panic!() };
            inspections += 1;
            let view = Some(QueueView::Behind(before));
            let state = target.then_some(state);
            policy.on(Event::Inspected { view, state }, at(now), 0.5, reach);
        }
        inspections
    };
    for (before, most) in [(0, 66), (1, 30), (20, 7)] {
        let [proven, untested] =
            [Reach::Proven, Reach::Untested].map(|reach| inspections(before, reach));
        assert!(untested == proven && proven <= most, "{untested}, {proven} behind {before}");
    }
}

#[test]
fn the_holders_end_is_not_slept_through() {
    let state = TargetState::Held { notifies: true, left: Some(Duration::from_millis(700)) };
    let mut policy = queued(0, state, Reach::Proven);
    assert!(sleeps(&mut policy, 0) <= Duration::from_millis(350));
}

#[test]
fn a_waiter_that_was_passed_over_takes_its_turn() {
    let mut policy = queued(0, NOTIFYING, Reach::Proven);
    let gone = QueueView::Removed { waiters: 2 };
    assert!(policy.was_passed_over(gone) && !policy.was_passed_over(QueueView::Behind(0)));
    let mut free = policy.clone();
    free.on(
        Event::Inspected { view: Some(gone), state: Some(TargetState::Free) },
        at(1),
        0.0,
        Reach::Unreachable,
    );
    assert_eq!(free.step(at(1)), Step::Try);
    policy.on(
        Event::Inspected { view: Some(gone), state: Some(NOTIFYING) },
        at(1),
        0.0,
        Reach::Unreachable,
    );
    assert_eq!(policy.step(at(1)), Step::Join { front: true });
}

#[test]
fn a_queue_that_is_full_is_left_until_there_is_room() {
    let mut policy = queued(MOST_WAITERS, NOTIFYING, Reach::Proven);
    assert_eq!(policy.step(at(0)), Step::StepOut);
    policy.on(Event::Left, at(1), 0.0, Reach::Proven);
    assert!(sleeps(&mut policy, 1) <= POLL[1]);
    let mut now = 1;
    loop {
        match policy.step(at(now)) {
            Step::Sleep(until) => now = until.since(at(0)).as_millis() as u64 + 1,
            Step::Inspect { target: true, queue } => {
                let waiters = if now < 5000 { MOST_WAITERS } else { 100 };
                let view = queue.then_some(QueueView::Removed { waiters });
                policy.on(
                    Event::Inspected { view, state: Some(NOTIFYING) },
                    at(now),
                    0.0,
                    Reach::Proven,
                );
            }
            Step::Join { front: false } => break,
            other => panic!("{other:?}"),
        }
        assert!(now < 10_000);
    }
}

#[test]
fn a_wait_that_ends_leaves_the_queue_and_nothing_more() {
    let mut cancelled = queued(2, NOTIFYING, Reach::Proven);
    cancelled.on(Event::Interrupted, at(3), 0.0, Reach::Proven);
    assert_eq!(cancelled.step(at(3)), Step::Leave);
    cancelled.on(Event::Woken(Duration::ZERO), at(3), 0.0, Reach::Proven);
    assert_eq!(
        cancelled.step(at(3)),
        Step::Leave,
        "a wake-up that comes too late is passed on by leaving"
    );
    cancelled.on(Event::Left, at(4), 0.0, Reach::Proven);
    assert_eq!(cancelled.step(at(4)), Step::End(Ended::Interrupted));

    let mut late = policy(Some(10));
    assert_eq!(late.step(at(50)), Step::Try, "the first try is made, however late");
    late.on(Event::Missed, at(51), 0.0, Reach::Proven);
    assert_eq!(late.step(at(51)), Step::End(Ended::TimedOut), "it never stood in the queue");
}

#[test]
fn an_outage_is_ridden_out_for_so_long() {
    let mut policy = queued(0, NOTIFYING, Reach::Proven);
    let mut now = 1000;
    policy.step(at(now));
    for _ in 0..1000 {
        match policy.step(at(now)) {
            Step::Sleep(until) => now = until.since(at(0)).as_millis() as u64 + 1,
            Step::Inspect { target: true, .. } => {
                policy.on(Event::Failed, at(now), 0.0, Reach::Proven)
            }
            Step::End(Ended::Outage) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!((5900..6500).contains(&now), "{now}");
}

fn any_reach() -> impl Strategy<Value = Reach> {
    prop_oneof![Just(Reach::Proven), Just(Reach::Untested), Just(Reach::Unreachable)]
}

/// Any event, whether it is expected or not: the server and other processes may send anything.
fn any_event() -> impl Strategy<Value = Event> {
    let seen = prop_oneof![
        Just(TargetState::Free),
        Just(TargetState::Reserved),
        (any::<bool>(), proptest::option::of(0_u64..100_000)).prop_map(|(notifies, left)| {
            TargetState::Held { notifies, left: left.map(Duration::from_millis) }
        }),
    ];
    let view = prop_oneof![
        (0_usize..600).prop_map(QueueView::Behind),
        (0_usize..600).prop_map(|waiters| QueueView::Removed { waiters })
    ];
    let looked = (proptest::option::of(view), proptest::option::of(seen.clone()));
    prop_oneof![
        2 => Just(Event::Missed),
        2 => (0_usize..600, seen).prop_map(|(before, state)| Event::Joined { before, state }),
        4 => looked.prop_map(|(view, state)| Event::Inspected { view, state }),
        2 => (0_u64..3).prop_map(|after| Event::Woken(Duration::from_millis(after))),
        1 => Just(Event::Left),
        1 => Just(Event::Refused),
        1 => Just(Event::Failed),
        1 => Just(Event::Crowded),
        1 => Just(Event::Interrupted),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_a_wait_sleeps_soundly_and_comes_to_its_end(
        limit in proptest::option::of(0_u64..20_000),
        fair_reentry: bool,
        events in proptest::collection::vec((any_event(), 0_u64..3000, 0.0..1.0_f64, any_reach()), 0..60),
    ) {
        let mut policy = Policy::new(at(0), limit.map(Duration::from_millis), OUTAGE, Known { fair_reentry, ..Known::default() });
        let first = policy.step(at(0));
        prop_assert_eq!(first, if fair_reentry { Step::Join { front: false } } else { Step::Try });
        let (mut now, mut interrupted) = (0, false);
        for (event, passed, chance, reach) in events {
            now += passed;
            interrupted |= event == Event::Interrupted;
            policy.on(event, at(now), chance, reach);
            let step = policy.step(at(now));
            prop_assert_eq!(step, policy.step(at(now)), "asking changes nothing");
            let late = limit.is_some_and(|limit| limit <= now);
            if late || interrupted {
                prop_assert!(matches!(step, Step::Leave | Step::End(_)), "{:?} after the end", step);
            }
            if let Step::Sleep(until) = step {
                prop_assert!(until > at(now) && until <= at(now) + LATER.1.mul_f64(1.15));
                prop_assert!(limit.is_none_or(|limit| until <= at(limit)));
            }
            if event == Event::Woken(Duration::ZERO) && !late && !interrupted && !matches!(step, Step::End(_)) {
                prop_assert_eq!(step, Step::Try);
            }
        }
        policy.on(Event::Interrupted, at(now), 0.0, Reach::Proven);
        policy.on(Event::Left, at(now), 0.0, Reach::Proven);
        let end = policy.step(at(now));
        prop_assert!(matches!(end, Step::End(_)), "{:?}", end);
        policy.on(Event::Woken(Duration::ZERO), at(now), 0.0, Reach::Proven);
        prop_assert_eq!(policy.step(at(now)), end, "the end is the end");
    }

    /// A waiter that is left alone with a free lock acquires it, whatever its position in the queue
    /// and whatever it knows.
    #[test]
    fn a_free_lock_is_found_by_every_waiter(
        before in 0_usize..511, reach in any_reach(), notifies: bool, chance in 0.0..1.0_f64, dead in 0_usize..511,
        removed in 0_usize..4, shared: bool,
    ) {
        let known = Known { shared, ..Known::default() };
        let mut policy = queued_for(known, before, TargetState::Held { notifies, left: None }, reach, chance);
        let (mut now, mut dead) = (0, dead);
        let took = loop {
            match policy.step(at(now)) {
                Step::Sleep(until) => now = until.since(at(0)).as_millis() as u64 + 1,
                Step::Inspect { target, queue } => {
                    // All waiters before this one are gone, except the dead, whose entries are
                    // removed now and then from the queue for a mutex.
                    let view = queue.then_some(QueueView::Behind(before.min(dead)));
                    dead = dead.saturating_sub(if shared { 0 } else { removed });
                    let state = target.then_some(TargetState::Free);
                    policy.on(Event::Inspected { view, state }, at(now), chance, reach);
                }
                Step::Try => break now,
                other => panic!("{other:?}"),
            }
            prop_assert!(now < 100_000);
        };
        // A long queue that moved fast until it stopped is expected to move on for a while.
        let bound = if before < 8 { 8_000 } else { 40_000 };
        prop_assert!(took <= bound, "after {} ms behind {}, {} dead", took, before, dead);
    }
}

/// Found by the simulation: a waiter whose queue had stood still measured a slow pace, and went to
/// sleep for half a minute.
#[test]
fn a_queue_that_stood_still_is_not_believed_to_be_slow_for_long() {
    let mut policy = queued(2, NOTIFYING, Reach::Proven);
    let first = sleeps(&mut policy, 0).as_millis() as u64;
    assert_eq!(policy.step(at(first)), Step::Inspect { target: true, queue: true });
    // An outage, after which one waiter fewer is before this one.
    let later = first + 60_000;
    policy.on(
        Event::Inspected { view: Some(QueueView::Behind(1)), state: Some(NOTIFYING) },
        at(later),
        1.0,
        Reach::Proven,
    );
    assert!(sleeps(&mut policy, later) < Duration::from_secs(5));
    // The same in the longest queue.
    let mut policy = queued(500, NOTIFYING, Reach::Proven);
    let first = sleeps(&mut policy, 0).as_millis() as u64;
    policy.step(at(first));
    policy.on(
        Event::Inspected { view: Some(QueueView::Behind(499)), state: Some(NOTIFYING) },
        at(later),
        1.0,
        Reach::Proven,
    );
    assert!(sleeps(&mut policy, later) < Duration::from_secs(12));
}

/// Found by the simulation: each time the first waiter of a process timed out, the next one began
/// its pause anew.
#[test]
fn a_place_that_is_taken_over_is_inspected_when_it_would_have_been() {
    let mut first = queued(1, NOTIFYING, Reach::Unreachable);
    let pause = sleeps(&mut first, 0);
    let mut next = policy(None);
    next.take_over(first.position().unwrap(), Reach::Unreachable);
    assert_eq!(next.step(at(pause.as_millis() as u64 / 2)), Step::Sleep(at(0) + pause));
    assert!(matches!(next.step(at(2000)), Step::Inspect { .. }));
}
