//! What a behaviour is given: a place on a store, and clients in one language.

use std::sync::{Arc, OnceLock};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use memlock_core::Answer;
use memlock_core::clock::{Clock, SystemClock};
use memlock_core::store::{Guarantees, schemes};
use memlock_tests::assert_safe;
use memlock_tests::doors::{
    Door, Driver, For, Held, Language, Outcome, Remote, Rust, WaitingThread,
};

use memlock_tests::launch::{number, until};

use crate::stores::{Instance, Store};

/// A lease that no test outlasts.
pub(crate) const LEASE: Duration = Duration::from_secs(300);
/// For what must happen, however slow the machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// A waiter that is woken takes a few milliseconds; one that is not woken looks by itself after
/// 850 ms at the earliest. This is between the two, to be measured by a `Stopwatch`.
pub(crate) const WOKEN: Duration = Duration::from_millis(600);
/// A busy machine makes an attempt take longer, or in another order; what is wrong does so each
/// time.
pub(crate) const ATTEMPTS: usize = 5;

/// Measures it until it takes less than the limit.
#[track_caller]
pub(crate) fn within(limit: Duration, measure: impl FnMut() -> Duration) {
    let times = std::iter::repeat_with(measure).take(ATTEMPTS).take_while(|took| *took >= limit);
    let times: Vec<_> = times.collect();
    assert!(times.len() < ATTEMPTS, "never less than {limit:?}: {times:?}");
}

/// A wait that must not end by its limit.
pub(crate) const LONG: For = For::AtMost(PATIENCE);

pub(crate) struct Bench {
    pub(crate) language: Language,
    pub(crate) store: &'static Store,
    pub(crate) place: Instance,
    /// A short name that no other test of this run has.
    pub(crate) unique: String,
    driver: OnceLock<Arc<Driver>>,
}

impl Bench {
    pub(crate) fn new(language: Language, store: &'static Store) -> Bench {
        let unique = format!("t{}", number());
        let (place, driver) = ((store.place)(&unique), OnceLock::new());
        Bench { language, store, place, unique, driver }
    }

    /// Another client, in the same process as the others.
    pub(crate) fn open(&self) -> Box<dyn Door> {
        let url = &self.place.url;
        self.language.open_here(url).unwrap_or_else(|| {
            let driver = self.driver.get_or_init(|| self.language.driver());
            Box::new(Remote::open(driver, url).unwrap())
        })
    }

    /// Another client, for one that waits and must be woken. In Rust, no time passes for it: it
    /// never looks by itself, and a wake-up that is lost is a test that hangs and is ended.
    pub(crate) fn open_sleeper(&self) -> Box<dyn Door> {
        match self.language {
            Language::Rust => Box::new(Rust::frozen(&self.place.url).unwrap()),
            _ => self.open(),
        }
    }

    /// How often a sleeper's wait is tried until it is as it must be: in Rust once.
    pub(crate) fn attempts(&self) -> usize {
        if self.language == Language::Rust { 1 } else { ATTEMPTS }
    }

    /// That a sleeper is woken, by how long its wait takes. In Rust, that it ends.
    #[track_caller]
    pub(crate) fn is_woken(&self, mut wait: impl FnMut() -> Duration) {
        match self.language {
            Language::Rust => drop(wait()),
            _ => within(WOKEN, wait),
        }
    }

    /// A client in another process and in another language.
    pub(crate) fn elsewhere(&self) -> (Box<dyn Door>, Arc<Driver>) {
        let other = if self.language == Language::Cpp { Language::Python } else { Language::Cpp };
        let driver = other.driver();
        (Box::new(Remote::open(&driver, &self.place.url).unwrap()), driver)
    }

    /// What the store promises.
    pub(crate) fn guarantees(&self) -> Guarantees {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        schemes::connect(&self.place.store_url, &clock).unwrap().guarantees()
    }

    /// A busy machine may not run what holds it, renews it, or warns of its end, for some seconds.
    pub(crate) fn short_lease(&self) -> Duration {
        self.store.shortest_lease.max(Duration::from_secs(5))
    }

    /// For how long a lock of the shortest lease may exclude others, on a busy machine too.
    pub(crate) fn longest_exclusion(&self) -> Duration {
        self.store.shortest_lease + self.store.slack
    }

    /// On a store of one process, the locks of another process exclude no client here.
    pub(crate) fn is_of_one_process(&self) -> bool {
        if self.store.shared_between_processes {
            return false;
        }
        let (elsewhere, _driver) = self.elsewhere();
        let held = self.open().lock(b"of one process", LEASE, For::Never).unwrap();
        let theirs = elsewhere.lock(b"of one process", LEASE, For::Never).unwrap();
        theirs.release().unwrap();
        held.release().unwrap();
        true
    }
}

/// The answer alone. That every failure has a sentence is seen to by the doors.
pub(crate) fn answer<T>(outcome: Outcome<T>) -> Answer {
    outcome.err().map_or(Answer::Ok, |no| no.answer)
}

/// That the attempt is refused, because what it asks for is held.
#[track_caller]
pub(crate) fn is_busy<T>(outcome: Outcome<T>) {
    let said = answer(outcome);
    assert_safe!(said != Answer::Ok, "granted to a second holder");
    assert_eq!(said, Answer::Busy);
}

/// Repeats an attempt during which the machine stood still for longer than the lease.
#[track_caller]
pub(crate) fn granted<T>(mut attempt: impl FnMut() -> Outcome<T>) -> T {
    loop {
        match attempt() {
            Ok(granted) => return granted,
            Err(no) => assert!(no.sentence.contains("longer to answer than the lease"), "{no:?}"),
        }
    }
}

/// Acquires what must be free.
#[track_caller]
pub(crate) fn lock(door: &dyn Door, name: &[u8]) -> Box<dyn Held> {
    door.lock(name, LEASE, For::Never).unwrap()
}

/// Makes a call that waits, in a thread of its own. It sleeps in its wait by now, or has ended.
#[track_caller]
pub(crate) fn waits<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    call: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let thread = WaitingThread::default();
    let same = thread.clone();
    let waiter = scope.spawn(move || {
        same.is_this_one();
        call()
    });
    until("it sleeps", || thread.is_asleep() || waiter.is_finished());
    waiter
}
