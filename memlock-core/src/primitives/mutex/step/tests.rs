//! The rows of the state table, with replies that no server gives on demand.

mod reclaim;
mod verify;

use std::time::Duration;

use super::*;
use crate::clock::Moment;
use crate::error::ErrorKind;
use crate::guard::lease_guard::Kind;
use crate::primitives::mutex::scripted::*;
use crate::store::{Epoch, Reply};

const NEXT: &[u8] = b"memlock/1 00000000000000000000000000000003 web-3 4711 1795170000 rings";

fn lock(recovers: Option<Epoch>) -> Lock {
    held_on(Server { recovers, ..Server::default() })
}

fn hand_off() -> Action {
    Action::HandOff(Successor { token: Token::from_bits(3), value: NEXT.to_vec(), lease: lease() })
}

/// What the step sends, in words.
fn sent(step: &OwnerStep) -> String {
    in_words(&step.ops())
}

/// The step goes on after these replies, which come at once, with this request.
#[track_caller]
fn goes_on(step: &mut OwnerStep, replies: impl IntoIterator<Item = Reply>, next: &str) {
    let ended = step.on(Ok(replies.into_iter().collect()), NOW, NOW);
    assert!(ended.is_none(), "{ended:?}");
    assert_eq!(sent(step), next);
}

/// The step ends with these replies, which come this much later.
#[track_caller]
fn ends(
    step: &mut OwnerStep,
    replies: impl IntoIterator<Item = Reply>,
    after: Duration,
) -> OwnerOutcome {
    step.on(Ok(replies.into_iter().collect()), NOW, NOW + after).unwrap().unwrap()
}

const AT_ONCE: Duration = Duration::ZERO;

fn fails(step: &mut OwnerStep, kind: ErrorKind, sent: bool) -> Option<ErrorKind> {
    step.on(Err(failure(kind, sent)), NOW, NOW).map(|ended| ended.unwrap_err().kind())
}

fn no_reply(step: &mut OwnerStep) -> Option<ErrorKind> {
    fails(step, ErrorKind::Unknown, true)
}

#[test]
fn a_change_that_is_carried_out_ends_the_step() {
    let held = lock(None);
    let mut release = OwnerStep::new(&held, Action::Release);
    assert_eq!(sent(&release), "delete 7");
    assert_eq!(ends(&mut release, [Reply::Deleted], AT_ONCE), OwnerOutcome::Taken(None));

    let mut extend = OwnerStep::new(&held, Action::Extend(Lease::new(2 * LEASE).unwrap()));
    assert_eq!(sent(&extend), "set 7");
    let outcome = ends(&mut extend, [stored(version(8))], Duration::from_millis(50));
    assert_eq!(outcome, OwnerOutcome::Taken(None));
    let mut held = held;
    extend.apply(&mut held);
    assert_eq!((held.kind.version, held.deadline), (version(8), lease_from(NOW, 2 * LEASE)));

    let mut next = OwnerStep::new(&held, hand_off());
    assert_eq!(sent(&next), "set 8");
    let outcome = ends(&mut next, [stored(version(9))], Duration::from_millis(50));
    assert_eq!(outcome, OwnerOutcome::HandedOff { version: version(9), fence: 9, sent: NOW });
}

fn lease_from(sent: Moment, lease: Duration) -> Moment {
    Lease::new(lease).unwrap().deadline(sent)
}

#[test]
fn a_release_reads_the_queue_that_there_may_be() {
    let mut held = lock(None);
    held.kind.notifies = true;
    let mut release = OwnerStep::new(&held, Action::Release);
    assert_eq!(sent(&release), "delete 7, get");
    let queue = Item { value: b"queue".to_vec(), version: version(1), remaining: None, fence: 0 };
    let replies = [Reply::Deleted, Reply::Value(queue.clone())];
    assert_eq!(ends(&mut release, replies, AT_ONCE), OwnerOutcome::Taken(Some(queue.clone())));

    // Of a mutex that another client holds, it is no concern.
    for (answer, read, left) in [
        (Reply::Missing, Reply::Missing, Some(queue.clone())),
        (Reply::VersionMismatch, value(THEIRS, version(8)), None),
    ] {
        let mut release = OwnerStep::new(&held, Action::Release).in_doubt();
        let replies = [read, answer, Reply::Value(queue.clone())];
        assert_eq!(ends(&mut release, replies, AT_ONCE), OwnerOutcome::Lost(left));
    }

    // A queue that cannot be read must not prevent the release.
    let mut release = OwnerStep::new(&held, Action::Release);
    assert!(release.wakes_ahead());
    assert_eq!(no_reply(&mut release), None);
    assert_eq!(sent(&release), "get, delete 7");
    assert!(!release.wakes_ahead());
}

#[test]
fn a_version_that_has_changed_is_read() {
    for action in [Action::Release, Action::Extend(lease()), hand_off()] {
        let held = lock(None);
        let change = if let Action::Release = action { "delete" } else { "set" };
        let mut step = OwnerStep::new(&held, action.clone());
        goes_on(&mut step, [Reply::VersionMismatch], &format!("get, {change} 7"));
        // A waiter has marked the record.
        let marked = [OURS, b" rings"].concat();
        let replies = [value(&marked, version(8)), Reply::VersionMismatch];
        let queue = if let Action::Release = action { ", get" } else { "" };
        goes_on(&mut step, replies, &format!("get, {change} 8{queue}"));

        let mut missing = OwnerStep::new(&held, action.clone());
        assert_eq!(ends(&mut missing, [Reply::Missing], AT_ONCE), OwnerOutcome::Lost(None));
        let mut others = OwnerStep::new(&held, action).in_doubt();
        let replies = [value(THEIRS, version(8)), Reply::VersionMismatch];
        assert_eq!(ends(&mut others, replies, AT_ONCE), OwnerOutcome::Lost(None));
    }
}

#[test]
fn a_mark_is_kept_when_the_record_is_written_again() {
    let mut held = lock(None);
    let mut step = OwnerStep::new(&held, Action::Extend(lease())).in_doubt();
    let marked = [OURS, b" rings"].concat();
    let _ = step.on(Ok(vec![value(&marked, version(8)), Reply::VersionMismatch]), NOW, NOW);
    let [_, Op::CompareAndSet { value, .. }] = step.ops()[..] else { panic!() };
    assert_eq!(value, marked);
    step.apply_renewal(&mut held);
    assert!(held.kind.notifies && held.kind.value == marked);
}

#[test]
fn what_others_change_all_the_time_is_unresolved() {
    let held = lock(None);
    let mut step = OwnerStep::new(&held, Action::Release);
    let (mut replies, mut ended) = (vec![Reply::VersionMismatch], None);
    for round in 0..ROUNDS {
        assert!(ended.is_none());
        ended = step.on(Ok(replies), NOW, NOW);
        replies = vec![value(OURS, version(8 + round as u64)), Reply::VersionMismatch];
    }
    assert_eq!(ended.unwrap().unwrap_err().kind(), ErrorKind::Unknown);
}

#[test]
fn an_item_that_was_missing_and_changed_is_read_again() {
    let held = lock(None);
    let mut step = OwnerStep::new(&held, Action::Release).in_doubt();
    let unclear = [Reply::Missing, Reply::VersionMismatch];
    goes_on(&mut step, unclear.clone(), "get, delete 7");
    goes_on(&mut step, unclear.clone(), "get, delete 7");
    assert_eq!(ends(&mut step, unclear, AT_ONCE), OwnerOutcome::Lost(None));
}

#[test]
fn an_earlier_release_without_a_reply_explains_what_is_missing() {
    let missing = [Reply::Missing, Reply::Missing];
    let mut release = OwnerStep::new(&lock(None), Action::Release);
    assert_eq!(no_reply(&mut release), None);
    assert_eq!(ends(&mut release, missing.clone(), AT_ONCE), OwnerOutcome::Taken(None));

    let mut late = OwnerStep::new(&lock(None), Action::Release);
    assert_eq!(no_reply(&mut late), None);
    assert_eq!(ends(&mut late, missing.clone(), LEASE), OwnerOutcome::Lost(None));

    let mut held = lock(None);
    held.release_in_doubt = true;
    let mut extend = OwnerStep::new(&held, Action::Extend(lease()));
    assert_eq!(sent(&extend), "get, set 7");
    assert_eq!(ends(&mut extend, missing, AT_ONCE), OwnerOutcome::Lost(None));

    // Another client has it since, in another life of the server: that says nothing.
    let mut release = OwnerStep::new(&held, Action::Release);
    let others = [value(THEIRS, Version::new(LATER, 1)), Reply::VersionMismatch];
    assert_eq!(ends(&mut release, others, AT_ONCE), OwnerOutcome::Lost(None));
}

#[test]
fn a_hand_off_that_had_arrived_is_found() {
    let mut step = OwnerStep::new(&lock(None), hand_off());
    assert_eq!(no_reply(&mut step), None);
    let replies = vec![value(NEXT, version(8)), Reply::VersionMismatch];
    let later = NOW + Duration::from_secs(1);
    let ended = step.on(Ok(replies), later, later).unwrap().unwrap();
    // Its lease counts from the request that was carried out: the first one, at the earliest.
    assert_eq!(ended, OwnerOutcome::HandedOff { version: version(8), fence: 9, sent: NOW });
}

#[test]
fn a_server_that_does_not_answer_leaves_a_step_in_doubt() {
    for action in [Action::Release, Action::Extend(lease()), hand_off()] {
        let mut held = lock(None);
        let releases = !matches!(action, Action::Extend(_));
        let mut step = OwnerStep::new(&held, action.clone());
        assert_eq!(no_reply(&mut step), None);
        assert!(sent(&step).starts_with("get, "));
        // The outcome of the first request is still not known if the second one is not sent.
        assert_eq!(fails(&mut step, ErrorKind::Unreachable, false), None);
        assert_eq!(fails(&mut step, ErrorKind::Unreachable, false), Some(ErrorKind::Unknown));
        step.apply(&mut held);
        assert_eq!((held.release_in_doubt, held.extension_in_doubt), (releases, !releases));

        let mut step = OwnerStep::new(&lock(None), action.clone());
        let refused = fails(&mut step, ErrorKind::Unreachable, false);
        assert_eq!(refused, Some(ErrorKind::Unreachable));

        // A release may still be in doubt from before.
        held.release_in_doubt = true;
        let mut step = OwnerStep::new(&held, action);
        let kind = if releases { ErrorKind::Unknown } else { ErrorKind::Unreachable };
        assert_eq!(fails(&mut step, ErrorKind::Unreachable, false), Some(kind));
    }
}

#[test]
fn a_guard_knows_after_a_call_what_is_in_doubt() {
    let mut held = held_on(Server { receives: true, ..Server::default() });
    assert_eq!(held.extend(2 * LEASE).unwrap_err().kind(), ErrorKind::Unknown);
    assert!(held.extension_in_doubt && held.server_until > NOW + 2 * LEASE);
    assert_eq!(held.kind.value, OURS);
    assert_eq!(held.release().unwrap_err().kind(), ErrorKind::Unknown);
    assert!(held.release_in_doubt);
    let mut held = lock(None);
    assert_eq!(held.release().unwrap_err().kind(), ErrorKind::Unreachable);
    assert!(!held.release_in_doubt);
}

#[test]
fn the_shorter_lease_counts_when_an_extension_is_in_doubt() {
    let mut held = lock(None);
    let before = held.deadline;
    let mut step = OwnerStep::new(&held, Action::Extend(Lease::new(LEASE / 3).unwrap()));
    assert_eq!(no_reply(&mut step), None);
    step.apply(&mut held);
    assert_eq!(held.lease.duration(), LEASE / 3);
    assert!(held.deadline <= before.max(NOW) && held.deadline <= NOW + LEASE / 3);

    let mut held = lock(None);
    let mut step = OwnerStep::new(&held, Action::Extend(Lease::new(2 * LEASE).unwrap()));
    assert_eq!(no_reply(&mut step), None);
    step.apply(&mut held);
    assert_eq!((held.lease.duration(), held.deadline), (LEASE, before));
}

#[test]
fn a_refused_change_may_have_removed_the_item() {
    for action in [Action::Release, Action::Extend(lease()), hand_off()] {
        let refused = || {
            let mut step = OwnerStep::new(&lock(None), action.clone());
            assert_eq!(fails(&mut step, ErrorKind::Protocol, false), None);
            assert_eq!(sent(&step), "get");
            step
        };
        let ended = refused().on(Ok(vec![value(OURS, version(7))]), NOW, NOW);
        assert_eq!(ended.unwrap().unwrap_err().kind(), ErrorKind::Protocol);
        assert!(!refused().wakes_ahead());
        let mut unread = refused();
        assert_eq!(
            [(); 3].map(|()| no_reply(&mut unread)),
            [None, None, Some(ErrorKind::Protocol)]
        );
        let unsent = fails(&mut refused(), ErrorKind::Unreachable, false);
        assert_eq!(unsent, Some(ErrorKind::Protocol));
        for gone in [Reply::Missing, value(THEIRS, version(9))] {
            assert_eq!(ends(&mut refused(), [gone], AT_ONCE), OwnerOutcome::Lost(None));
        }
    }
}

#[test]
fn an_extension_says_before_how_long_it_may_keep_the_lock() {
    let mut held = lock(None);
    let long = Lease::new(100 * LEASE).unwrap();
    let first = held.server_until;
    OwnerStep::new(&held, Action::Extend(long)).announce(&mut held);
    let until = held.server_until;
    assert!(until > NOW + 100 * LEASE + LATEST_ARRIVAL);
    held.server_until = first;
    OwnerStep::new(&held, Action::Extend(long)).in_doubt().announce(&mut held);
    assert_eq!(held.server_until, until);
    OwnerStep::new(&held, Action::Release).announce(&mut held);
    assert_eq!(held.server_until, until);
}

#[test]
fn a_store_without_a_reply_takes_nothing_away() {
    for action in [Action::Release, Action::Extend(lease()), hand_off(), Action::Check] {
        let mut step = OwnerStep::new(&lock(None), action);
        assert!(step.on(Ok(Vec::new()), NOW, NOW).is_none());
    }
}

#[test]
fn an_extension_settles_what_was_in_doubt() {
    let mut held = lock(None);
    (held.release_in_doubt, held.extension_in_doubt) = (true, true);
    let earlier = NOW + LATEST_ARRIVAL;
    held.kind.orphan = Some(earlier);
    let mut step = OwnerStep::new(&held, Action::Extend(lease()));
    let done = [value(OURS, version(7)), stored(version(8))];
    assert_eq!(ends(&mut step, done, AT_ONCE), OwnerOutcome::Taken(None));
    step.apply(&mut held);
    assert!(!held.release_in_doubt && !held.extension_in_doubt);
    // A request may still be under way; not so long after the last moment at which it could arrive.
    assert_eq!(held.kind.orphan, Some(earlier));
    let mut step = OwnerStep::new(&held, Action::Extend(lease()));
    let late = earlier + LATEST_ARRIVAL;
    assert!(step.on(Ok(vec![stored(version(9))]), late, late).is_some());
    step.apply(&mut held);
    assert_eq!(held.kind.orphan, None);

    // A check, too.
    let mut held = lock(Some(LATER));
    let mut check = OwnerStep::new(&held, Action::Check).putting_back().unwrap();
    assert_eq!(no_reply(&mut check), None);
    for (at, is_left) in [(NOW, true), (NOW + 100 * LEASE, false)] {
        let mut extend = OwnerStep::new(&held, Action::Extend(lease()));
        assert!(extend.on(Ok(vec![stored(version(8))]), at, at).is_some());
        extend.apply(&mut held);
        assert_eq!(held.kind.reap_until().is_some(), is_left);
    }
}

#[test]
fn a_release_that_got_no_reply_counts_in_every_life_within_the_guard() {
    let others = [value(THEIRS, Version::new(LATER, 1)), Reply::VersionMismatch];
    for (recovers, outcome) in
        [(Some(LATER), OwnerOutcome::Taken(None)), (None, OwnerOutcome::Lost(None))]
    {
        let mut held = lock(recovers);
        held.release_in_doubt = true;
        let mut release = OwnerStep::new(&held, Action::Release);
        assert_eq!(ends(&mut release, others.clone(), AT_ONCE), outcome);
    }
}

#[test]
fn only_a_free_mutex_has_a_next_waiter() {
    let mut held = lock(None);
    held.kind.notifies = true;
    let mut release = OwnerStep::new(&held, Action::Release).in_doubt();
    let queue = Item { value: b"queue".to_vec(), version: version(1), remaining: None, fence: 0 };
    let unclear = [Reply::Missing, Reply::VersionMismatch, Reply::Value(queue)];
    goes_on(&mut release, unclear.clone(), "get, delete 7, get");
    goes_on(&mut release, unclear.clone(), "get, delete 7, get");
    assert_eq!(ends(&mut release, unclear, AT_ONCE), OwnerOutcome::Lost(None));
}

/// What a step reports of its next request.
#[test]
fn a_step_says_what_its_next_request_may_do() {
    let says = |step: &OwnerStep| (step.changes(), step.only_removes());
    let held = lock(Some(LATER));
    let mut step = OwnerStep::new(&held, Action::Extend(lease()));
    assert_eq!(says(&step), (true, false));
    let _ = step.on(Ok(vec![Reply::VersionMismatch]), NOW, NOW);
    assert_eq!(says(&step), (true, false));
    let _ = step.on(Ok(vec![Reply::Missing, Reply::VersionMismatch]), NOW, NOW);
    assert_eq!((sent(&step).as_str(), says(&step)), ("add", (true, false)));
    let _ = step.on(Ok(vec![stored(Version::new(LATER, 1))]), NOW, NOW + LEASE);
    assert_eq!((sent(&step).as_str(), says(&step)), ("delete 1", (false, true)));
    for action in [Action::Check, Action::Verify] {
        assert_eq!(says(&OwnerStep::new(&held, action)), (false, false));
    }
}

#[test]
fn a_renewal_gives_no_less_than_a_concurrent_step() {
    let mut held = lock(None);
    let mut step = OwnerStep::new(&held, Action::Extend(lease()));
    let _ = ends(&mut step, [stored(version(8))], AT_ONCE);
    let (later, in_doubt) = (NOW + 2 * LEASE, true);
    (held.deadline, held.release_in_doubt) = (later, in_doubt);
    step.apply_renewal(&mut held);
    assert_eq!((held.deadline, held.release_in_doubt), (later, in_doubt));
    assert_eq!(held.kind.version, version(8));
}
