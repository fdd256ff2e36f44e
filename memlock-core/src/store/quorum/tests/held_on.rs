//! A release that fails, after which the lock is held on.

use super::*;

/// Nothing is sent of the release.
fn release_in_vain(bench: &Bench, lock: &mut Lock) {
    bench.all_are_down(true);
    let error = lock.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    bench.all_are_down(false);
    pass();
}

/// Nothing was sent of the release, so the lock is held on. Then one server at a time is started anew.
#[test]
fn after_a_release_of_which_nothing_was_sent_members_vote_again() {
    let bench = Bench::new(3);
    let mut lock = hold(&bench);
    release_in_vain(&bench, &mut lock);
    assert!(!lock.remaining().is_zero());
    assert_eq!(lock.extend(LEASE), Ok(Extension::Extended));
    for member in 0..2 {
        drop_vote(&bench, member, "m");
        bench.members[member].abstains.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            assert_eq!(
                lock.extend(LEASE),
                Ok(Extension::Extended),
                "after the restart of {member}"
            );
        }
        bench.members[member].abstains.store(false, Ordering::SeqCst);
        for _ in 0..3 {
            assert_eq!(
                lock.extend(LEASE),
                Ok(Extension::Extended),
                "after the recovery of {member}"
            );
        }
        assert!(bench.has(member, "m"), "member {member} has no vote, though it was asked 6 times");
    }
}

/// The extension has confirmed all votes.
#[test]
fn after_a_release_in_doubt_and_an_extension_members_vote_again() {
    let bench = Bench::new(3);
    let mut lock = hold(&bench);
    for member in &bench.members {
        member.loses_requests.store(true, Ordering::SeqCst);
    }
    let error = lock.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    for member in &bench.members {
        member.loses_requests.store(false, Ordering::SeqCst);
    }
    pass();
    assert_eq!(lock.extend(LEASE), Ok(Extension::Extended));
    assert!(!lock.remaining().is_zero());
    drop_vote(&bench, 0, "m");
    bench.members[0].abstains.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        assert_eq!(lock.extend(LEASE), Ok(Extension::Extended));
    }
    assert_eq!(lock.check(), Ok(true));
    bench.members[0].abstains.store(false, Ordering::SeqCst);
    for _ in 0..3 {
        assert_eq!(lock.extend(LEASE), Ok(Extension::Extended));
    }
    assert!(bench.has(0, "m"), "member 0 has no vote");
}

/// Servers are started anew one after the other, each when the last one votes again.
#[test]
fn after_a_failed_release_a_rolling_restart_costs_no_lock() {
    let bench = Bench::new(3);
    let mut lock = hold(&bench);
    release_in_vain(&bench, &mut lock);
    for member in 0..2 {
        assert_eq!(lock.extend(LEASE), Ok(Extension::Extended), "before {member}");
        drop_vote(&bench, member, "m");
        bench.members[member].abstains.store(true, Ordering::SeqCst);
        assert_eq!(lock.extend(LEASE), Ok(Extension::Extended), "after the restart of {member}");
        bench.members[member].abstains.store(false, Ordering::SeqCst);
        assert_eq!(lock.extend(LEASE), Ok(Extension::Extended), "after the recovery of {member}");
    }
}

#[test]
fn a_check_puts_back_after_a_failed_release() {
    let bench = Bench::new(3);
    let mut lock = hold(&bench);
    release_in_vain(&bench, &mut lock);
    for member in 0..3 {
        drop_vote(&bench, member, "m");
        bench.members[member].abstains.store(true, Ordering::SeqCst);
    }
    assert!(!lock.remaining().is_zero());
    assert_eq!((lock.check(), lock.extend(LEASE)), (Ok(true), Ok(Extension::Extended)));
}

/// Another client may have had the vote of the member that carried the release out.
#[test]
fn a_vote_that_a_release_in_doubt_removed_is_not_put_back() {
    let bench = Bench::new(3);
    let mut lock = hold(&bench);
    let lose = |lose| {
        bench.members[0].loses_requests.store(lose, Ordering::SeqCst);
        bench.members[1].loses_requests.store(lose, Ordering::SeqCst);
        bench.members[2].loses_replies.store(lose, Ordering::SeqCst);
    };
    lose(true);
    assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::Unknown);
    lose(false);
    assert!(!bench.has(2, "m"), "it has carried it out");
    pass();
    assert_eq!(lock.extend(LEASE), Ok(Extension::Extended));
    bench.members[2].abstains.store(true, Ordering::SeqCst);
    bench.members[1].is_down.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let extended = lock.extend(LEASE);
        assert!(
            !matches!(extended, Ok(Extension::Extended)),
            "by one vote, and one that was given up"
        );
        pass();
    }
    bench.members[2].abstains.store(false, Ordering::SeqCst);
    bench.members[1].is_down.store(false, Ordering::SeqCst);
    pass();
    assert_eq!(lock.extend(LEASE), Ok(Extension::Extended));
}

/// One member has carried the release out, one has lost the request, and one is down from then on: no
/// majority can tell.
#[test]
fn the_votes_of_a_lock_that_was_given_up_are_removed_without_a_majority() {
    let bench = Bench::new(3);
    let client = bench.open();
    let mut lock = client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    for member in &bench.members[..2] {
        member.loses_requests.store(true, Ordering::SeqCst);
    }
    assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::Unknown);
    bench.members[0].loses_requests.store(false, Ordering::SeqCst);
    bench.members[1].is_down.store(true, Ordering::SeqCst);
    lock.abandon();
    pass();
    // The client goes on with something else.
    drop(client.mutex("other", LEASE).unwrap().try_lock().unwrap().unwrap());
    assert!(!bench.has(0, "m"));
    let next = bench.elsewhere();
    next.members[1].is_down.store(true, Ordering::SeqCst);
    drop(next.open().mutex("m", LEASE).unwrap().try_lock().unwrap().expect("nobody holds it"));
}
