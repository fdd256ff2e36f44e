//! A clock that can stand still: so that no look by the clock can help a waiter, and a wake-up
//! that is lost is a test that hangs and is ended.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use memlock_core::Client;
use memlock_core::clock::{Clock, Moment, SystemClock};
use memlock_core::store::schemes;

/// A clock that runs until it is stopped, and then stands still until it is moved.
#[derive(Debug)]
pub struct Frozen(Mutex<Option<Moment>>);

impl Frozen {
    /// A clock that shows the present time.
    pub fn clock() -> Arc<Frozen> {
        let clock = Frozen::running();
        clock.stop();
        clock
    }

    /// A client whose store goes by this clock, too.
    pub fn client(self: &Arc<Frozen>, url: &str) -> Client {
        let clock: Arc<dyn Clock> = Arc::clone(self) as _;
        Client::with_store(schemes::connect(url, &clock).expect("a good URL"), clock)
    }

    /// A clock that runs until it is stopped.
    pub fn running() -> Arc<Frozen> {
        Arc::new(Frozen(Mutex::new(None)))
    }

    /// Makes it stand still.
    pub fn stop(&self) {
        *self.0.lock().expect("nobody panics with it") = Some(SystemClock.now());
    }

    /// Lets so much time pass.
    pub fn advance(&self, time: Duration) {
        let mut shown = self.0.lock().expect("nobody panics with it");
        *shown = shown.map(|now| now + time);
    }
}

impl Clock for Frozen {
    fn now(&self) -> Moment {
        self.0.lock().expect("nobody panics with it").unwrap_or_else(|| SystemClock.now())
    }
    fn unix_seconds(&self) -> u64 {
        SystemClock.unix_seconds()
    }
    fn sleep(&self, duration: Duration) {
        SystemClock.sleep(duration);
    }
    fn random(&self, bytes: &mut [u8]) -> std::io::Result<()> {
        SystemClock.random(bytes)
    }
}
