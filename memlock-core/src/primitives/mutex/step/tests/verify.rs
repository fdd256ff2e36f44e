//! Extensions and grants with slow replies.

use super::*;

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
