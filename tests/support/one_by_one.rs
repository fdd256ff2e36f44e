//! A server for tests that kill, freeze or configure it, one after the other.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard};

/// The server, once a test has needed it.
#[derive(Debug)]
pub struct OneByOne<T: 'static>(Mutex<Option<T>>);

/// The server, until the test ends.
#[derive(Debug)]
pub struct Lent<T: 'static>(MutexGuard<'static, Option<T>>);

impl<T: 'static> Default for OneByOne<T> {
    fn default() -> OneByOne<T> {
        OneByOne::new()
    }
}

impl<T: 'static> OneByOne<T> {
    /// None yet.
    pub const fn new() -> OneByOne<T> {
        OneByOne(Mutex::new(None))
    }

    /// Waits until no other test has it. It is started where there is none, or where a test has failed
    /// in the middle.
    pub fn lend(&'static self, start: impl FnOnce() -> T) -> Lent<T> {
        let mut server = self.0.lock().unwrap_or_else(|failed| {
            self.0.clear_poison();
            let mut server = failed.into_inner();
            *server = None;
            server
        });
        server.get_or_insert_with(start);
        Lent(server)
    }
}

impl<T> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it was started")
    }
}
