//! Renewed leases: a crash is no loss.

use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use memlock_core::{Loss, Notice, Release, RenewOptions, Renewal, Wait, Waited};
use memlock_tests::launch::poll_until;

use super::{Bench, PATIENCE};

/// Renewed after a third of it.
pub(crate) const LEASE: Duration = Duration::from_secs(9);

fn renewed(bench: &Bench, name: &str) -> (Renewal, Receiver<Notice>) {
    let (tell, told) = mpsc::channel();
    let on_notice = Some(Box::new(move |notice| _ = tell.send(notice)) as _);
    let lock = bench.client().mutex(name, LEASE).unwrap().lock().unwrap();
    let renewal = lock.renew(RenewOptions { max_hold: None, on_notice });
    (renewal.unwrap(), told)
}

/// On a busy machine, the lease may have been at risk.
#[track_caller]
pub(crate) fn is_told_of_no_loss(told: &Receiver<Notice>) {
    let loss = told.try_iter().find(|notice| matches!(notice, Notice::Lost(_)));
    assert_eq!(loss, None);
}

#[test]
fn a_renewed_lock_is_put_back_and_no_loss_is_reported() {
    let bench = Bench::start();
    let (renewal, told) = renewed(&bench, "m");
    let fence = renewal.fence();
    bench.restart();
    let found = poll_until(PATIENCE, || bench.server.plain().get("lock:m"));
    assert!(found.is_some(), "the renewal did not put it back");
    // No other client gets it when the recovery has ended.
    bench.ages();
    let tried = bench.client().mutex("m", LEASE).unwrap().lock_with(&Wait::NEVER).unwrap();
    assert!(matches!(tried, Waited::Busy), "{tried:?}");
    assert!(renewal.is_held() && renewal.check().unwrap());
    assert_eq!(renewal.fence(), fence);
    assert_eq!(renewal.release().unwrap(), Release::Released);
    is_told_of_no_loss(&told);
}

/// A check has put it back, and an operator took it away.
#[test]
fn a_renewed_lock_that_was_removed_after_it_was_put_back_is_lost() {
    let bench = Bench::start();
    let (renewal, _told) = renewed(&bench, "m");
    bench.restart();
    assert!(renewal.check().unwrap(), "{:?}", renewal.lost());
    assert!(bench.server.plain().delete("lock:m"));
    assert!(!renewal.check().unwrap());
    assert_eq!(renewal.lost(), Some(Loss::Gone));
    assert_eq!(bench.server.plain().get("lock:m"), None);
}

#[test]
fn a_check_of_a_renewed_lock_puts_it_back() {
    let bench = Bench::start();
    let (renewal, told) = renewed(&bench, "m");
    for _ in 0..3 {
        bench.restart();
        assert!(renewal.check().unwrap(), "{:?}", renewal.lost());
        assert!(bench.server.plain().get("lock:m").is_some());
    }
    assert_eq!(renewal.release().unwrap(), Release::Released);
    is_told_of_no_loss(&told);
}

#[test]
fn a_renewed_lock_is_released_where_the_server_has_forgotten_it() {
    let bench = Bench::start();
    let (renewal, told) = renewed(&bench, "m");
    bench.restart();
    assert_eq!(renewal.release().unwrap(), Release::Released);
    assert_eq!(bench.server.plain().get("lock:m"), None);
    is_told_of_no_loss(&told);
}

#[test]
fn a_server_that_is_away_for_longer_than_the_lease_ends_the_renewal() {
    let bench = Bench::start();
    let (renewal, told) = renewed(&bench, "m");
    bench.server.kill();
    assert_eq!(renewal.wait_lost(PATIENCE), Some(Loss::Expired));
    bench.restart();
    assert_eq!(renewal.release().unwrap(), Release::Lost);
    assert_eq!(bench.server.plain().get("lock:m"), None);
    let notices: Vec<Notice> = told.try_iter().collect();
    assert!(matches!(notices[..], [Notice::AtRisk(_), Notice::Lost(Loss::Expired)]), "{notices:?}");
}

/// All of them are due at about the same time, in one packet.
#[test]
fn many_renewed_locks_are_all_put_back() {
    const MANY: usize = 50;
    let bench = Bench::start();
    let client = bench.client();
    let renewals: Vec<Renewal> = (0..MANY)
        .map(|number| {
            let mutex = client.mutex(format!("m{number}"), 2 * LEASE).unwrap();
            mutex.lock().unwrap().renew(RenewOptions::default()).unwrap()
        })
        .collect();
    bench.restart();
    let is_there = |number| bench.server.plain().get(&format!("lock:m{number}")).is_some();
    let are_back = poll_until(PATIENCE, || (0..MANY).all(is_there).then_some(()));
    assert!(are_back.is_some(), "some of {MANY} are not put back");
    for renewal in renewals {
        assert_eq!(renewal.release().unwrap(), Release::Released);
    }
}
