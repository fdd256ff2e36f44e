//! Locks that a server has forgotten.

use super::*;

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
