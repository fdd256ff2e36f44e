//! Servers that were stopped, and whose clocks were late when they stored a vote: it ends too early.

use super::*;

/// The client cannot reach member 2, and member 1 was stopped when it stored the vote.
fn a_vote_by_a_late_clock(extends: bool) {
    let here = Bench::new(3);
    let (client, other) = (here.open(), here.elsewhere().open());
    let lease = Duration::from_secs(6);
    here.members[2].is_down.store(true, Ordering::SeqCst);
    let stop = || {
        here.members[1].stale.store(4000, Ordering::SeqCst);
        here.members[1].slow.store(100, Ordering::SeqCst);
    };
    if !extends {
        stop();
    }
    let mut lock = client.mutex("m", lease).unwrap().try_lock().unwrap().unwrap();
    if extends {
        stop();
        assert_eq!(lock.extend(lease).unwrap(), Extension::Extended);
    }
    here.members[1].slow.store(0, Ordering::SeqCst);
    // Its clock may have stood from the first request to the second reply, which may be late.
    let expected = Duration::from_millis(4500)..Duration::from_millis(5850);
    assert!(expected.contains(&lock.remaining()), "{:?}", lock.remaining());
    std::thread::sleep(Duration::from_millis(3000));
    let other = other.mutex("m", lease).unwrap();
    assert!(other.try_lock().unwrap().is_none());
    assert!(lock.check().unwrap());
    std::thread::sleep(lock.remaining().saturating_sub(Duration::from_millis(100)));
    let got = other.try_lock().unwrap();
    assert!(got.is_none() || lock.remaining().is_zero());
}

#[test]
fn a_member_that_was_slow_to_grant_is_asked_once_more() {
    a_vote_by_a_late_clock(false);
}

#[test]
fn a_member_that_was_slow_to_extend_is_asked_once_more() {
    a_vote_by_a_late_clock(true);
}

/// An extension to a shorter lease had no reply: the server may have carried it out by a late clock.
#[test]
fn a_shorter_lease_without_a_reply_may_have_ended_early() {
    let here = Bench::new(3);
    let there = here.elsewhere();
    let seconds = Duration::from_secs;
    let (client, other) = (here.open(), there.open());
    here.members[2].is_down.store(true, Ordering::SeqCst);
    let mut lock = client.mutex("m", seconds(20)).unwrap().try_lock().unwrap().unwrap();
    // Member 1 is stopped, from now on for 2 s.
    std::thread::sleep(seconds(2));
    here.members[1].stale.store(2000, Ordering::SeqCst);
    here.members[1].loses_replies.store(true, Ordering::SeqCst);
    let error = lock.extend(seconds(3)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    here.members[1].stale.store(0, Ordering::SeqCst);
    here.members[1].loses_replies.store(false, Ordering::SeqCst);
    let left = lock.remaining();
    std::thread::sleep(left + Duration::from_millis(900));
    assert!(lock.remaining().is_zero());
    let second = other.mutex("m", seconds(20)).unwrap().try_lock().unwrap().expect("free");
    drop_vote(&here, 1, "m");
    here.members[1].abstains.store(true, Ordering::SeqCst);
    there.members[1].abstains.store(true, Ordering::SeqCst);
    let extended = lock.extend(seconds(3));
    assert!(
        lock.remaining().is_zero() || second.remaining().is_zero(),
        "two holders: {extended:?}"
    );
}

/// The member was started anew, and was so slow to take its vote back that it was to confirm it once
/// more; that had no reply. It votes for nobody else all the while.
#[test]
fn what_is_put_back_slowly_is_held_as_long_as_before() {
    let here = Bench::new(3);
    let lease = Duration::from_secs(6);
    here.members[2].is_down.store(true, Ordering::SeqCst);
    let client = here.open();
    let mut lock = client.mutex("m", lease).unwrap().try_lock().unwrap().unwrap();
    let until = crate::clock::SystemClock.now() + lock.remaining();
    drop_vote(&here, 1, "m");
    here.members[1].abstains.store(true, Ordering::SeqCst);
    here.members[1].slow.store(60, Ordering::SeqCst);
    // It is missing, it is put back, and it is confirmed.
    let lost = here.members[1].requests.load(Ordering::SeqCst) + 3;
    here.members[1].loses_from.store(lost, Ordering::SeqCst);
    let error = lock.extend(lease).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    here.members[1].slow.store(0, Ordering::SeqCst);
    here.members[1].loses_from.store(usize::MAX, Ordering::SeqCst);
    assert!(here.has(1, "m"));
    let left = until.since(crate::clock::SystemClock.now());
    assert!(lock.remaining() + Duration::from_millis(100) > left, "{:?}", lock.remaining());
    pass();
    assert!(lock.check().unwrap());
    assert_eq!(lock.extend(lease), Ok(Extension::Extended));
    assert!(lock.remaining() > lease - Duration::from_millis(500), "{:?}", lock.remaining());
}

/// The members may have carried it out by late clocks, but for no shorter lease than before.
#[test]
fn a_check_without_a_reply_costs_no_lock() {
    let bench = Bench::new(3);
    let quorum = bench.quorum().unwrap();
    let key = crate::name::Keyspace::default().lock(b"m");
    let value = b"memlock/1 000000000000000000000000000000aa host 1 1";
    let add = |admission, millis| {
        let expiry = Expiry::After(Duration::from_millis(millis));
        let returns = crate::store::Returns::Version;
        quorum.run(Route::of(&key), &[Op::Add { key: &key, value, expiry, returns, admission }])
    };
    add(Admission::Grant, 6000).unwrap();
    std::thread::sleep(Duration::from_millis(3700));
    let lose = |lose| {
        bench.members.iter().for_each(|member| member.loses_replies.store(lose, Ordering::SeqCst));
    };
    lose(true);
    add(Admission::Reclaim(EPOCH), 2300).unwrap_err();
    lose(false);
    pass();
    assert!(matches!(add(Admission::Reclaim(EPOCH), 1200).unwrap()[..], [Reply::Stored(_)]));
}
