//! What every store with `guard=` promises: a young server grants nothing, all its clients agree, and
//! what is held survives its end.

use std::time::Duration;

use memlock_core::{Client, ErrorKind, Extension, Release, Request, Wait, Waited};

use crate::url;

/// Leases are as long, and outlast the restart, also on a busy machine.
const GUARD: Duration = Duration::from_secs(30);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that has just been started grants nothing new, and the guard is a promise of all clients.
///
/// # Panics
/// When a promise is broken.
pub fn is_agreed(url: &str) {
    let client = Client::connect(&url::with(url, "guard=3600s")).expect("a good URL");
    let lock = client.mutex("m", GUARD).expect("a good name").lock_with(&Wait::NEVER);
    assert!(matches!(lock, Ok(Waited::Recovering)), "{lock:?}");
    let semaphore = client.semaphore("s", 2, GUARD).expect("a good name");
    let permit = semaphore.acquire_with(Request::default(), &Wait::NEVER);
    assert!(matches!(permit, Ok(Waited::Recovering)), "{permit:?}");
    for other in ["", "guard=50s"] {
        let client = Client::connect(&url::with(url, other)).expect("a good URL");
        let error = client.mutex("m", GUARD).expect("a good name").try_lock().expect_err(other);
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("guard=3600s"), "{error}");
    }
}

/// A lock and a permit at this URL survive `crash`, after which the server has forgotten them. It
/// takes two guards.
///
/// # Panics
/// When a promise is broken.
pub fn survives(url: &str, crash: impl FnOnce()) {
    let guarded = url::with(url, "guard=30s&outage=60s");
    let [one, two] = [(); 2].map(|()| Client::connect(&guarded).expect("a good URL"));
    let mutex = one.mutex("m", GUARD).expect("a good name");
    let semaphore = one.semaphore("s", 2, GUARD).expect("a good name");
    let mut lock = mutex.lock_for(PATIENCE).expect("it answers").expect("it is granted");
    let mut permit = semaphore.acquire_for(PATIENCE).expect("it answers").expect("it is granted");
    let fence = lock.fence();
    assert_eq!(lock.extend(GUARD).expect("it answers"), Extension::Extended);
    assert_eq!(permit.extend(GUARD).expect("it answers"), Extension::Extended);
    crash();
    assert_eq!(lock.extend(GUARD).expect("it answers"), Extension::Extended);
    assert!(permit.check().expect("it answers"), "the permit is lost");
    let theirs = two.mutex("m", GUARD).expect("a good name");
    let tried = theirs.lock_with(&Wait::NEVER).expect("it answers");
    // On a busy machine the guard may be over, but not the lease.
    assert!(matches!(tried, Waited::Recovering | Waited::Busy), "{tried:?}");
    let both = Request { permits: 2, ..Request::default() };
    let of_theirs = two.semaphore("s", 2, GUARD).expect("a good name");
    let tried = of_theirs.acquire_with(both, &Wait::NEVER).expect("it answers");
    assert!(matches!(tried, Waited::Recovering | Waited::Busy), "{tried:?}");
    assert_eq!(lock.unlock().expect("it answers"), Release::Released);
    assert_eq!(permit.release().expect("it answers"), Release::Released);
    let next = theirs.lock_for(PATIENCE).expect("it answers").expect("it is granted");
    assert!(next.fence() > fence, "{} after {fence}", next.fence());
    let waited = of_theirs.acquire_with(both, &Wait::at_most(PATIENCE)).expect("it answers");
    assert!(waited.done().is_some(), "the permits are not granted again");
}
