//! The rows of the state table, with replies that no server gives on demand.

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
fn a_lock_may_be_there_for_as_long_as_a_check_may_have_put_it_back() {
    for (in_doubt, is_over) in [(None, true), (Some(NOW + LEASE), false)] {
        let mut held = lock(Some(LATER));
        held.server_until = NOW;
        held.kind.confirmed.as_ref().unwrap().change(|last| last.in_doubt = in_doubt);
        assert_eq!(held.let_go().is_ok(), is_over);
    }
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

/// When a reply comes that is suspiciously slow.
const SLOW: Moment = Moment::from_boot(Duration::from_millis(1_000_051));

/// It was extended so slowly that the server may have been stopped.
fn slowly_extended(held: &Lock, lease: Lease) -> OwnerStep {
    let mut step = OwnerStep::new(held, Action::Extend(lease));
    assert!(step.on(Ok(vec![stored(version(8))]), NOW, SLOW).is_none());
    assert_eq!(sent(&step), "get");
    step
}

/// The reply to the read that verifies it comes at once.
fn verified(step: &mut OwnerStep, reply: Reply) -> Ended {
    step.on(Ok(vec![reply]), SLOW, SLOW)
}

#[test]
fn a_slow_extension_is_verified() {
    // The item has its whole lease, less what the server's clock may be wrong by.
    let mut held = lock(None);
    let mut step = slowly_extended(&held, lease());
    let _ = verified(&mut step, value(OURS, version(8))).unwrap().unwrap();
    step.apply(&mut held);
    let kept = SLOW + (LEASE - Duration::from_secs(2));
    assert_eq!((held.deadline, held.extension_in_doubt), (kept, false));

    // A slow read is repeated. The server has not stood for longer than since the first one.
    let mut held = lock(None);
    let mut step = slowly_extended(&held, lease());
    let later = SLOW + Duration::from_secs(1);
    assert!(step.on(Ok(vec![value(OURS, version(8))]), SLOW, later).is_none());
    let last = later + Duration::from_secs(1);
    let _ = step.on(Ok(vec![value(OURS, version(8))]), later, last).unwrap().unwrap();
    step.apply(&mut held);
    assert_eq!(held.deadline, later + (LEASE - Duration::from_secs(4)));
}

#[test]
fn a_slow_extension_that_cannot_be_verified_is_unknown() {
    // Of two leases, the one that may count is certain.
    for (new, least) in [(2 * LEASE, LEASE), (LEASE / 2, LEASE / 2)] {
        let mut held = lock(None);
        let before = held.deadline;
        let new = Lease::new(new).unwrap();
        let mut step = slowly_extended(&held, new);
        let failed = [(); 3].map(|()| no_reply(&mut step));
        assert_eq!(failed, [None, None, Some(ErrorKind::Unknown)]);
        step.apply(&mut held);
        let guarantees = held.kind.target.context.guarantees();
        assert_eq!(held.deadline, guarantees.kept_by_either(before, lease(), new));
        assert!(held.extension_in_doubt && held.deadline <= NOW + least);
    }

    // Its lease has ended: the holder relies on nothing.
    let mut held = lock(None);
    let mut step = slowly_extended(&held, lease());
    let Reply::Value(item) = value(OURS, version(8)) else { panic!() };
    let over = Reply::Value(Item { remaining: Some(Duration::ZERO), ..item });
    let ended = verified(&mut step, over).map(|ended| ended.unwrap_err().kind());
    step.apply(&mut held);
    assert_eq!((ended, held.deadline), (Some(ErrorKind::Unknown), SLOW));

    // So it has if the reply came after its end.
    let mut held = lock(None);
    let mut step = slowly_extended(&held, lease());
    let late = NOW + LEASE;
    let ended = step.on(Ok(vec![Reply::Missing]), late, late).map(|it| it.unwrap_err().kind());
    step.apply(&mut held);
    assert!(ended == Some(ErrorKind::Unknown) && held.deadline <= late);
}

#[test]
fn a_slow_extension_may_find_the_lock_gone() {
    let lost = |ended: Ended| assert_eq!(ended.unwrap().unwrap(), OwnerOutcome::Lost(None));
    for reply in [Reply::Missing, value(THEIRS, version(9))] {
        lost(verified(&mut slowly_extended(&lock(None), lease()), reply));
    }
    lost(verified(&mut slowly_extended(&lock(Some(LATER)), lease()), value(THEIRS, version(9))));

    // It was forgotten.
    let mut held = lock(Some(LATER));
    let mut step = slowly_extended(&held, lease());
    assert!(verified(&mut step, Reply::Missing).is_none());
    assert_eq!(sent(&step), "add");
    let back = stored(Version::new(LATER, 1));
    assert_eq!(verified(&mut step, back).unwrap().unwrap(), OwnerOutcome::Taken(None));
    step.apply(&mut held);
    assert_eq!(held.deadline, lease().deadline(SLOW));

    // However often the server forgets it, the step ends.
    let mut step = OwnerStep::new(&lock(Some(LATER)), Action::Extend(lease()));
    let mut ended = None;
    for life in 0..=LOOKS {
        assert!(ended.is_none());
        let back = stored(Version::new(Epoch::new(1 + life as u64, 1), 1));
        assert!(step.on(Ok(vec![back]), NOW, SLOW).is_none());
        ended = verified(&mut step, Reply::Missing);
    }
    lost(ended);

    // From the end of the old lease on, it is not put back, though the extension was carried out.
    let mut step = OwnerStep::new(&lock(Some(LATER)), Action::Extend(lease()));
    let (sent, came) = (NOW + LEASE / 2, NOW + LEASE);
    assert!(step.on(Ok(vec![stored(version(8))]), sent, came).is_none());
    lost(step.on(Ok(vec![Reply::Missing]), came, came));
}

#[test]
fn a_slow_grant_is_verified() {
    let mut held = lock(None);
    let mut step = OwnerStep::new(&held, Action::Verify);
    assert_eq!(sent(&step), "get");
    let ended = step.on(Ok(vec![Reply::Missing]), NOW, NOW);
    assert_eq!(ended.unwrap().unwrap_err().kind(), ErrorKind::Unreachable);
    step.apply(&mut held);
    assert!(held.deadline <= NOW);
}

#[test]
fn a_forgotten_lock_is_put_back_by_whom_it_is_extended() {
    let mut held = lock(Some(LATER));
    let mut step = OwnerStep::new(&held, Action::Extend(lease()));
    goes_on(&mut step, [Reply::VersionMismatch], "get, set 7");
    let missing = [Reply::Missing, Reply::VersionMismatch];
    goes_on(&mut step, missing.clone(), "add");
    let [Op::Add { expiry, admission, .. }] = step.ops()[..] else { panic!() };
    assert_eq!((expiry, admission), (lease().into(), Admission::Reclaim(LIFE)));
    let back = Version::new(LATER, 1);
    assert_eq!(ends(&mut step, [stored(back)], AT_ONCE), OwnerOutcome::Taken(None));
    step.apply(&mut held);
    assert_eq!(held.kind.version, back);
    assert_eq!(held.kind.confirmed.as_ref().unwrap().get().life, LATER);
    assert_eq!(held.kind.orphan, None);

    // Another thread was faster, or the server gives locks again: the item shows which. It is not put
    // back more than twice.
    for (reply, again) in [(Reply::Exists, true), (Reply::NotAdmitted, false)] {
        let mut step = OwnerStep::new(&lock(Some(LATER)), Action::Extend(lease())).in_doubt();
        goes_on(&mut step, missing.clone(), "add");
        goes_on(&mut step, [reply.clone()], "get, set 7");
        if again {
            goes_on(&mut step, missing.clone(), "add");
            goes_on(&mut step, [reply], "get, set 7");
        }
        assert_eq!(ends(&mut step, missing.clone(), AT_ONCE), OwnerOutcome::Lost(None));
    }
    // In the same life it was lost by other means.
    let mut step = OwnerStep::new(&lock(Some(LATER)), Action::Extend(lease())).in_doubt();
    let lost = [Reply::Missing, Reply::Missing];
    assert_eq!(ends(&mut step, lost, AT_ONCE), OwnerOutcome::Lost(None));
}

#[test]
fn a_forgotten_lock_is_not_handed_off_and_needs_no_release() {
    let missing = [Reply::Missing, Reply::VersionMismatch];
    let mut held = lock(Some(LATER));
    let mut step = OwnerStep::new(&held, hand_off()).in_doubt();
    goes_on(&mut step, missing.clone(), "add");
    let [Op::Add { expiry, .. }] = step.ops()[..] else { panic!() };
    assert!(matches!(expiry, Expiry::After(rest) if rest >= LEASE - Duration::from_secs(1)));
    let back = Version::new(LATER, 1);
    assert_eq!(ends(&mut step, [stored(back)], AT_ONCE), OwnerOutcome::Recovering);
    step.apply(&mut held);
    assert_eq!(held.kind.version, back);
    // The holder has put it back before.
    let mut step = OwnerStep::new(&held, hand_off()).in_doubt();
    let there = [value(OURS, back), Reply::VersionMismatch];
    assert_eq!(ends(&mut step, there, AT_ONCE), OwnerOutcome::Recovering);

    let mut release = OwnerStep::new(&lock(Some(LATER)), Action::Release).in_doubt();
    assert_eq!(ends(&mut release, missing.clone(), AT_ONCE), OwnerOutcome::Taken(None));
    // A check has put it back meanwhile, and it was lost by other means.
    let held = lock(Some(LATER));
    held.kind.confirmed.as_ref().unwrap().note(back.epoch());
    let mut lost = OwnerStep::new(&held, Action::Release).in_doubt();
    goes_on(&mut lost, missing.clone(), "get, delete 7");
    // Of the same life it was lost; at the end of its lease it may have been lost before.
    let mut lost = OwnerStep::new(&lock(Some(LIFE)), Action::Release).in_doubt();
    goes_on(&mut lost, missing.clone(), "get, delete 7");
    let mut late = OwnerStep::new(&lock(Some(LATER)), Action::Release).in_doubt();
    assert!(late.on(Ok(missing.to_vec()), NOW, NOW + LEASE).is_none());
    assert_eq!(sent(&late), "get, delete 7");
}

#[test]
fn a_lock_whose_release_may_have_arrived_is_not_put_back() {
    let mut held = lock(Some(LATER));
    held.release_in_doubt = true;
    let missing = [Reply::Missing, Reply::VersionMismatch];
    for (action, change) in [(Action::Release, "delete"), (Action::Extend(lease()), "set")] {
        let mut step = OwnerStep::new(&held, action);
        goes_on(&mut step, missing.clone(), &format!("get, {change} 7"));
    }
    let mut check = OwnerStep::new(&held, Action::Check);
    assert_eq!(ends(&mut check, [Reply::Missing], AT_ONCE), OwnerOutcome::Lost(None));
    assert!(OwnerStep::new(&held, Action::Check).putting_back().is_none());
}

#[test]
fn a_lock_that_is_put_back_too_late_is_removed() {
    for (action, next) in [
        (Action::Extend(lease()), "get, set 7"),
        (hand_off(), "get, set 7"),
        (Action::Check, "get"),
    ] {
        let late = || {
            let mut step = OwnerStep::new(&lock(Some(LATER)), action.clone());
            let step_in_doubt = !matches!(action, Action::Check);
            step = if step_in_doubt { step.in_doubt() } else { step };
            goes_on(&mut step, [Reply::Missing, Reply::VersionMismatch], "add");
            let back = vec![stored(Version::new(LATER, 3))];
            assert!(step.on(Ok(back), NOW, NOW + LEASE).is_none());
            assert_eq!(sent(&step), "delete 3");
            assert!(step.only_removes());
            step
        };
        for gone in [Reply::Deleted, Reply::Missing] {
            assert_eq!(ends(&mut late(), [gone], LEASE), OwnerOutcome::Lost(None));
        }
        // A waiter has marked it.
        let mut step = late();
        assert!(step.on(Ok(vec![Reply::VersionMismatch]), NOW, NOW + LEASE).is_none());
        assert_eq!(sent(&step), next);
        let marked = vec![value(OURS, Version::new(LATER, 4)), Reply::VersionMismatch];
        if let Action::Check = action {
            // By the guard's deadline, which a renewal may have moved, it may count.
            assert_eq!(ends(&mut step, marked, LEASE), OwnerOutcome::Taken(None));
            let mut step = late();
            let confirmed = step.confirmed.clone().unwrap();
            let ended = step.on(Err(failure(ErrorKind::Unreachable, false)), NOW, NOW + LEASE);
            assert_eq!(ended.unwrap().unwrap(), OwnerOutcome::Lost(None));
            assert!(confirmed.get().in_doubt > Some(NOW + LEASE));
            continue;
        }
        assert!(step.on(Ok(marked), NOW, NOW + LEASE).is_none());
        assert_eq!(sent(&step), "delete 4");
        // What cannot be removed now is looked for later.
        for _ in 0..2 {
            assert_eq!(no_reply(&mut step), None);
            let there = vec![value(OURS, Version::new(LATER, 4)), Reply::VersionMismatch];
            assert!(step.on(Ok(there), NOW, NOW + LEASE).is_none());
        }
        assert_eq!(no_reply(&mut step), Some(ErrorKind::Unknown));
        let mut held = lock(Some(LATER));
        step.apply(&mut held);
        assert!(held.kind.orphan.is_some());
        assert!(!held.release_in_doubt && !held.extension_in_doubt);
    }
}

#[test]
fn what_puts_a_lock_back_without_a_reply_is_looked_for_later() {
    let missing = [Reply::Missing, Reply::VersionMismatch];
    let mut held = lock(Some(LATER));
    let mut step = OwnerStep::new(&held, hand_off()).in_doubt();
    let before = held.server_until;
    step.announce(&mut held);
    assert_eq!((held.kind.orphan, held.server_until), (None, before));
    goes_on(&mut step, missing, "add");
    // Before it is sent: a release may come first.
    step.announce(&mut held);
    assert!(held.kind.orphan.is_some() && held.server_until > before);
    assert_eq!(no_reply(&mut step), None);
    assert_eq!(sent(&step), "get, set 7");
    step.apply(&mut held);
    assert!(held.kind.orphan.is_some() && !held.release_in_doubt);
    // From the end of the lease on it may be of a request that arrived after other holders.
    let mut extend = OwnerStep::new(&held, Action::Extend(lease())).in_doubt();
    let there = vec![value(OURS, version(7)), Reply::VersionMismatch];
    assert!(extend.on(Ok(there), NOW, NOW + LEASE).is_none());
    assert_eq!(sent(&extend), "delete 7");
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
fn a_check_finds_the_lock_or_puts_it_back() {
    let mut step = OwnerStep::new(&lock(None), Action::Check);
    assert_eq!(sent(&step), "get");
    assert_eq!(ends(&mut step, [value(OURS, version(8))], AT_ONCE), OwnerOutcome::Taken(None));
    for reply in [Reply::Missing, value(THEIRS, version(8))] {
        let mut step = OwnerStep::new(&lock(None), Action::Check);
        assert_eq!(ends(&mut step, [reply], AT_ONCE), OwnerOutcome::Lost(None));
    }
    let mut step = OwnerStep::new(&lock(None), Action::Check);
    let failed = [(); 3].map(|()| no_reply(&mut step));
    assert_eq!(failed, [None, None, Some(ErrorKind::Unreachable)]);
    let mut step = OwnerStep::new(&lock(None), Action::Check);
    let unsent = fails(&mut step, ErrorKind::Unreachable, false);
    assert_eq!(unsent, Some(ErrorKind::Unreachable));

    let held = lock(Some(LATER));
    let mut step = OwnerStep::new(&held, Action::Check).only_looking();
    assert_eq!(ends(&mut step, [Reply::Missing], AT_ONCE), OwnerOutcome::Lost(None));
    let mut step = OwnerStep::new(&held, Action::Check);
    goes_on(&mut step, [Reply::Missing], "add");
    let back = Version::new(LATER, 1);
    assert_eq!(ends(&mut step, [stored(back)], AT_ONCE), OwnerOutcome::Taken(None));

    // What was not sent leaves nothing in doubt.
    let held = lock(Some(LATER));
    let mut step = OwnerStep::new(&held, Action::Check).putting_back().unwrap();
    assert_eq!(fails(&mut step, ErrorKind::Unreachable, false), None);
    assert_eq!(held.kind.reap_until(), None);
    // Whether it was put back is not known: a lock that is not seen may be held.
    let held = lock(Some(LATER));
    let mut step = OwnerStep::new(&held, Action::Check).putting_back().unwrap();
    assert_eq!(sent(&step), "add");
    assert_eq!(no_reply(&mut step), None);
    assert_eq!(sent(&step), "get");
    assert!(held.kind.confirmed.as_ref().unwrap().get().in_doubt > Some(NOW + LEASE));
    let ended = step.on(Ok(vec![Reply::Missing]), NOW, NOW).unwrap();
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Unreachable);
    // What it may have left is looked for after a release, and does not count after the lease.
    let until = held.kind.reap_until();
    assert!(until > Some(NOW + LEASE));
    let mut shorter = lock(Some(LATER));
    shorter.lease = Lease::new(LEASE / 3).unwrap();
    shorter.kind.confirmed = held.kind.confirmed.clone();
    let mut second = OwnerStep::new(&shorter, Action::Check).putting_back().unwrap();
    assert_eq!(no_reply(&mut second), None);
    assert_eq!(held.kind.reap_until(), until);
    let mut extend = OwnerStep::new(&held, Action::Extend(lease())).in_doubt();
    let there = vec![value(OURS, version(7)), Reply::VersionMismatch];
    assert!(extend.on(Ok(there), NOW, NOW + LEASE).is_none());
    assert_eq!(sent(&extend), "delete 7");
}

/// A check, and the renewal thread, which is faster.
#[test]
fn a_check_puts_nothing_back_that_was_released() {
    let missing = [Reply::Missing, Reply::VersionMismatch];
    let renewed = || {
        let mut held = lock(Some(LATER));
        let check = OwnerStep::new(&held, Action::Check).putting_back().unwrap();
        check.announce(&mut held);
        assert!(held.kind.orphan.is_some());
        let mut renewal = OwnerStep::new(&held, Action::Extend(lease())).in_doubt();
        goes_on(&mut renewal, missing.clone(), "add");
        let back = stored(Version::new(LATER, 1));
        assert_eq!(ends(&mut renewal, [back], AT_ONCE), OwnerOutcome::Taken(None));
        renewal.apply_renewal(&mut held);
        let mut release = OwnerStep::new(&held, Action::Release);
        assert_eq!(sent(&release), "delete 1");
        assert_eq!(ends(&mut release, [Reply::Deleted], AT_ONCE), OwnerOutcome::Taken(None));
        check
    };
    let of_life = |step: &OwnerStep| match step.ops()[..] {
        [Op::Add { admission, .. }] => admission,
        _ => panic!(),
    };
    // Its request is sent after the release: it is not admitted.
    assert_eq!(of_life(&renewed()), Admission::Reclaim(LATER));
    // It was sent before: it is not sent again.
    let mut check = OwnerStep::new(&lock(Some(LATER)), Action::Check);
    goes_on(&mut check, [Reply::Missing], "add");
    for mut check in [renewed(), check] {
        goes_on(&mut check, [Reply::Exists], "get");
        assert_eq!(ends(&mut check, [Reply::Missing], AT_ONCE), OwnerOutcome::Lost(None));
    }

    // A release of what was forgotten.
    let held = lock(Some(LATER));
    let check = OwnerStep::new(&held, Action::Check).putting_back().unwrap();
    let mut release = OwnerStep::new(&held, Action::Release).in_doubt();
    assert_eq!(ends(&mut release, missing, AT_ONCE), OwnerOutcome::Taken(None));
    assert_eq!(of_life(&check), Admission::Reclaim(LATER));
}

/// Within the packets of one round of the renewal thread.
#[test]
fn a_renewal_of_what_is_not_put_back_ends_at_its_fourth_packet() {
    for held in [lock(Some(LIFE)), lock(Some(LATER))] {
        let mut step = OwnerStep::new(&held, Action::Extend(lease()));
        let missing = [Reply::Missing, Reply::VersionMismatch];
        goes_on(&mut step, [Reply::VersionMismatch], "get, set 7");
        goes_on(&mut step, missing.clone(), "add");
        goes_on(&mut step, [Reply::NotAdmitted], "get, set 7");
        assert_eq!(ends(&mut step, missing, AT_ONCE), OwnerOutcome::Lost(None));
    }
}

#[test]
fn a_lock_is_put_back_for_the_shorter_lease_that_may_count() {
    let short = Lease::new(LEASE / 3).unwrap();
    let mut held = lock(Some(LATER));
    let mut step = OwnerStep::new(&held, Action::Extend(short)).in_doubt();
    goes_on(&mut step, [Reply::Missing, Reply::VersionMismatch], "add");
    assert_eq!(no_reply(&mut step), None);
    let back = Version::new(LATER, 1);
    goes_on(&mut step, [value(OURS, back), Reply::VersionMismatch], "get, set 1");
    assert_eq!(fails(&mut step, ErrorKind::Unreachable, false), None);
    assert_eq!(fails(&mut step, ErrorKind::Unreachable, false), Some(ErrorKind::Unknown));
    step.apply(&mut held);
    assert!(held.deadline <= NOW + LEASE / 3 && held.extension_in_doubt);
    assert_eq!((held.lease, held.kind.confirmed.as_ref().unwrap().get().life), (short, LATER));
}

#[test]
fn a_removal_that_is_not_sent_is_looked_for_later() {
    let mut held = lock(Some(LATER));
    let mut step = OwnerStep::new(&held, Action::Extend(lease())).in_doubt();
    goes_on(&mut step, [Reply::Missing, Reply::VersionMismatch], "add");
    step.announce(&mut held);
    assert!(step.on(Ok(vec![stored(Version::new(LATER, 3))]), NOW, NOW + LEASE).is_none());
    let ended = fails(&mut step, ErrorKind::Unreachable, false);
    step.apply(&mut held);
    assert_eq!(ended, Some(ErrorKind::Unknown));
    assert!(held.kind.orphan.is_some() && !held.release_in_doubt);
}

#[test]
fn a_full_server_does_not_make_a_lock_lost_that_it_has_forgotten() {
    let mut step = OwnerStep::new(&lock(Some(LATER)), Action::Extend(lease())).in_doubt();
    goes_on(&mut step, [Reply::Missing, Reply::VersionMismatch], "add");
    assert_eq!(fails(&mut step, ErrorKind::Protocol, false), Some(ErrorKind::Protocol));
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
