//! Every way in which a reply can be lost or late: what is granted is known, what is not known is
//! said, nothing leaks.

use std::cell::RefCell;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::{
    Client, ErrorKind, Extension, Permit, Release, RenewOptions, Request, Semaphore, Wait, Waited,
};
use memlock_tests::assert_safe;
use memlock_tests::proxy::{Fault, Match, Proxy};

use super::{Bench, LEASE, PATIENCE};

fn faults() -> [Fault; 7] {
    [
        Fault::SwallowReply,
        Fault::CutAfterRequest,
        Fault::CutReplyAfter(3),
        Fault::DelayReply(Duration::from_millis(900)),
        Fault::DropRequest,
        Fault::DelayRest(0, Duration::from_millis(900)),
        Fault::GarbleReply(b"NOT_FOUNDLING\r\n".to_vec()),
    ]
}

/// A client whose writes fail, beside one that inspects.
fn in_trouble(bench: &Bench) -> (Proxy, Semaphore, Semaphore) {
    let proxy = Proxy::start(bench.server.address());
    let client = Client::connect(&format!("{}?io_timeout=500ms", proxy.url())).unwrap();
    let witness = bench.semaphore(2);
    drop(witness.acquire().unwrap());
    (proxy, client.semaphore("s", 2, LEASE).unwrap(), witness)
}

fn available(witness: &Semaphore) -> u32 {
    witness.status().unwrap().unwrap().available
}

#[test]
fn a_grant_whose_reply_is_lost_is_found_and_kept() {
    for fault in faults() {
        let bench = Bench::new();
        let (proxy, semaphore, witness) = in_trouble(&bench);
        proxy.inject(Match::Putting, fault.clone());
        let mut permit =
            semaphore.try_acquire().unwrap().unwrap_or_else(|| panic!("{fault:?}: it was free"));
        assert_eq!(proxy.hits(), 1, "{fault:?}");
        assert_safe!(available(&witness) < 2, "{fault:?}: granted, and not counted");
        assert_eq!(available(&witness), 1, "{fault:?}: granted twice, or not at all");
        // A request that was only late.
        thread::sleep(Duration::from_millis(1000));
        assert_eq!(available(&witness), 1, "{fault:?}");
        assert_eq!(permit.release().unwrap(), Release::Released, "{fault:?}");
        assert_eq!(available(&witness), 2, "{fault:?}");
    }
}

/// The thread that calls back may be the leader of all threads of its process.
#[test]
fn a_callback_may_release_permits_of_the_semaphore_that_is_waited_for() {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let bench = Bench::new();
        let (proxy, semaphore, witness) = in_trouble(&bench);
        let held = RefCell::new(Some(semaphore.acquire().unwrap()));
        proxy.inject(Match::Putting, Fault::SwallowReply);
        let releases = || {
            if proxy.hits() > 0
                && let Some(mut permit) = held.take()
            {
                assert_eq!(permit.release().unwrap(), Release::Released);
            }
            false
        };
        let wait = Wait::at_most(PATIENCE).unless(&releases);
        let got = semaphore.acquire_with(Request::default(), &wait).unwrap();
        let Waited::Done(permit) = got else { panic!("{got:?}") };
        assert!(held.take().is_none(), "nobody was asked while the reply was missing");
        assert_eq!(available(&witness), 1);
        drop(permit);
        done.send(available(&witness)).unwrap();
    });
    assert_eq!(is_done.recv_timeout(PATIENCE), Ok(2));
}

#[test]
fn a_release_whose_reply_is_lost_is_settled() {
    for fault in faults() {
        let bench = Bench::new();
        let (proxy, semaphore, witness) = in_trouble(&bench);
        let mut permit = semaphore.acquire().unwrap();
        proxy.inject(Match::Putting, fault.clone());
        assert_eq!(permit.release().unwrap(), Release::Released, "{fault:?}");
        assert_eq!(available(&witness), 2, "{fault:?}");
        let next = witness.acquire().unwrap();
        thread::sleep(Duration::from_millis(1000));
        assert_safe!(available(&witness) < 2, "{fault:?}: another's permit was given back");
        assert_eq!(available(&witness), 1, "{fault:?}");
        drop(next);
    }
}

#[test]
fn an_extension_whose_reply_is_lost_is_settled() {
    for fault in faults() {
        let bench = Bench::new();
        let (proxy, semaphore, witness) = in_trouble(&bench);
        let mut permit = semaphore.acquire().unwrap();
        proxy.inject(Match::Putting, fault.clone());
        assert_eq!(permit.extend(2 * LEASE).unwrap(), Extension::Extended, "{fault:?}");
        assert!(permit.remaining() > LEASE, "{fault:?}");
        let holder = &witness.status().unwrap().unwrap().holders[0];
        assert!(holder.remaining > permit.remaining(), "{fault:?}: {holder:?}");
        assert_eq!(permit.release().unwrap(), Release::Released, "{fault:?}");
    }
}

#[test]
fn what_cannot_be_found_out_is_unknown_and_taken_back_at_the_next_contact() {
    let bench = Bench::new();
    let (proxy, semaphore, witness) = in_trouble(&bench);
    // What it reads first comes through; and from its first write on nothing does.
    let mut written = false;
    proxy.decide(move |burst| {
        written |= burst.starts_with(b"cas ");
        written.then_some(Fault::SwallowReply)
    });
    let error = semaphore.try_acquire().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert_eq!(available(&witness), 1);
    proxy.clear_rules();
    drop(semaphore.acquire().unwrap());
    assert_eq!(available(&witness), 2);
}

/// Permits whose extension has no known outcome.
fn in_doubt_about(proxy: &Proxy, permit: &mut Permit, lease: Duration, fault: Fault) {
    let mut written = false;
    proxy.decide(move |burst| {
        let writes = burst.starts_with(b"cas ");
        let faulty = if written { Fault::SwallowReply } else { fault.clone() };
        written |= writes;
        written.then_some(faulty)
    });
    let error = permit.extend(lease).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    proxy.clear_rules();
}

/// Its holder may die, and then they are to come back when the lease that is renewed is over.
#[test]
fn permits_are_renewed_for_their_lease_after_an_unknown_extension_to_a_longer_one() {
    let bench = Bench::new();
    let (proxy, semaphore, witness) = in_trouble(&bench);
    let mut permit = semaphore.acquire().unwrap();
    in_doubt_about(&proxy, &mut permit, 20 * LEASE, Fault::SwallowReply);
    let ends = || witness.status().unwrap().unwrap().holders[0].remaining;
    assert!(ends() > 10 * LEASE, "it was carried out");
    let kept = permit.renew(RenewOptions::default()).unwrap();
    let began = Instant::now();
    while ends() > 2 * LEASE {
        assert!(began.elapsed() < LEASE / 2, "{:?}", ends());
        thread::sleep(Duration::from_millis(10));
    }
    assert!(kept.is_held());
    assert_eq!(kept.release().unwrap(), Release::Released);
}

#[test]
fn an_extension_after_a_release_in_doubt_settles_that_they_are_held() {
    let bench = Bench::new();
    let (proxy, semaphore, witness) = in_trouble(&bench);
    let mut permit = semaphore.acquire().unwrap();
    let mut written = false;
    proxy.decide(move |burst| {
        written |= burst.starts_with(b"cas ");
        written.then_some(Fault::DropRequest)
    });
    assert_eq!(permit.release().unwrap_err().kind(), ErrorKind::Unknown);
    proxy.clear_rules();
    assert_eq!(permit.extend(LEASE).unwrap(), Extension::Extended);
    assert!(!permit.remaining().is_zero(), "they were extended");
    assert_eq!(permit.release().unwrap(), Release::Released);
    assert_eq!(available(&witness), 2);
}

/// Their holder got the answer that they are lost: they would not be given back until their earlier
/// lease is over.
#[test]
fn kept_permits_that_are_lost_after_an_unknown_extension_are_given_back() {
    let bench = Bench::new();
    let (proxy, semaphore, witness) = in_trouble(&bench);
    let mut permit = semaphore.acquire().unwrap();
    in_doubt_about(&proxy, &mut permit, Duration::from_secs(1), Fault::DropRequest);
    let kept = permit.renew(RenewOptions::default()).unwrap();
    assert!(!kept.is_held());
    let began = Instant::now();
    while available(&witness) < 2 {
        assert!(began.elapsed() < LEASE / 2, "they are still there");
        drop(semaphore.acquire().unwrap());
        thread::sleep(Duration::from_millis(10));
    }
}
