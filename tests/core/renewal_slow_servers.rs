//! Renewals that a server answers late: what they make of a lease, and the holder's notifications.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::store::{self, Failure, Reply};
use memlock_core::{Client, Error, ErrorKind, Loss, Notice, RenewOptions};
use memlock_tests::intercepted::{Replies, intercepted};
use memlock_tests::server::Memcached;

const SECOND: Duration = Duration::from_secs(1);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// What becomes of the renewer's step of that number; the last argument runs it on the server.
type Fate = Box<dyn Fn(usize, &dyn Fn() -> Replies) -> Replies + Send + Sync>;

/// A client of a real server, between which and the renewer something happens.
fn client(server: &Memcached, fate: Fate) -> Client {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let server = store::schemes::connect(&server.url(), &clock).unwrap();
    let step = AtomicUsize::new(0);
    let store = intercepted(server, move |server, route, ops| {
        if thread::current().name() != Some("memlock-renewer") {
            return server.run(route, ops);
        }
        fate(step.fetch_add(1, Ordering::SeqCst), &|| server.run(route, ops))
    });
    Client::with_store(store, clock)
}

#[test]
fn a_renewal_that_was_held_up_makes_no_permit_live_longer_than_its_lease_explains() {
    const LEASE: Duration = Duration::from_secs(6);
    let server = Memcached::start();
    // The server reads its clock late, as after connecting slowly or a stop of the process.
    let (asked, looks) = mpsc::channel();
    let client = client(
        &server,
        Box::new(move |step, run| {
            if step == 0 {
                thread::sleep(Duration::from_millis(2500));
            }
            let replies = run();
            _ = asked.send(replies.as_ref().is_ok_and(|replies| replies[0] == Reply::Written));
            replies
        }),
    );
    let semaphore = client.semaphore("s", 1, LEASE).unwrap();
    let kept = semaphore.acquire().unwrap().renew(RenewOptions::default()).unwrap();
    while !looks.recv_timeout(PATIENCE).unwrap() {}
    let holders = semaphore.status().unwrap().unwrap().holders;
    assert!(holders[0].remaining <= LEASE + 2 * SECOND, "{holders:?}");
    assert!(kept.is_held());
}

#[test]
fn a_renewal_that_makes_the_lease_no_longer_does_not_end_the_danger() {
    const LEASE: Duration = Duration::from_secs(4);
    let server = Memcached::start();
    let warned = Arc::new(AtomicBool::new(false));
    let (is_warned, (tell, told)) = (Arc::clone(&warned), mpsc::channel());
    let renewed = AtomicUsize::new(0);
    let client = client(
        &server,
        Box::new(move |_, run| {
            let unreachable = || Error::new(ErrorKind::Unreachable, "It cannot be connected to.");
            if !is_warned.load(Ordering::SeqCst) || renewed.load(Ordering::SeqCst) == 2 {
                return Err(Failure { error: unreachable(), sent: false });
            }
            let mut replies = run()?;
            match (renewed.fetch_add(1, Ordering::SeqCst), &mut replies[..]) {
                // So late that the server may have stood still,
                (0, [Reply::Stored(_)]) => thread::sleep(Duration::from_millis(100)),
                // and it has: by its clock there is hardly any time left.
                (1, [Reply::Value(item)]) => item.remaining = Some(2 * SECOND),
                other => panic!("{other:?}"),
            }
            Ok(replies)
        }),
    );
    let tell = Box::new(move |notice| {
        warned.store(true, Ordering::SeqCst);
        _ = tell.send(notice);
    });
    let renew = RenewOptions { on_notice: Some(tell), ..RenewOptions::default() };
    let kept = client.mutex("m", LEASE).unwrap().lock().unwrap().renew(renew).unwrap();
    let notice = || told.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(notice(), Notice::AtRisk(left) if left <= LEASE / 2));
    assert_eq!(notice(), Notice::Lost(Loss::Expired), "the risk is reported once");
    assert!(!kept.is_held());
}
