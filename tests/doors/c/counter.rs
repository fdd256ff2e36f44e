//! Plain counters.

use std::ffi::CString;
use std::ptr;

use memlock::*;
use memlock_core::Answer;

use super::super::{For, Outcome};
use super::{C, done, set_up, text};

struct Counter {
    client: C,
    key: CString,
}

pub(super) fn of(client: &C, key: &str) -> Box<dyn super::super::Counter> {
    Box::new(Counter { client: client.clone(), key: text(key.as_bytes()) })
}

impl super::super::Counter for Counter {
    fn set_up(&self, permits: u64) -> Outcome<Answer> {
        // SAFETY: the client is open and the string is valid.
        set_up(unsafe { memlock_counter_set_up(self.client.get(), self.key.as_ptr(), permits) })
    }

    fn try_acquire(&self) -> Outcome<()> {
        // SAFETY: the client is open and the string is valid.
        done(unsafe { memlock_counter_try(self.client.get(), self.key.as_ptr()) })
    }

    fn retry(&self, wait: For) -> Outcome<()> {
        let (client, key) = (self.client.get(), self.key.as_ptr());
        // SAFETY: the client is open and the string is valid.
        done(unsafe { memlock_counter_retry(client, key, wait.ms(), ptr::null()) })
    }

    fn park(&self, priority: i64, wait: For) -> Outcome<()> {
        let (client, key) = (self.client.get(), self.key.as_ptr());
        // SAFETY: the client is open and the string is valid.
        done(unsafe { memlock_counter_park(client, key, priority, wait.ms(), ptr::null()) })
    }

    fn release(&self) -> Outcome<()> {
        // SAFETY: the client is open and the string is valid.
        done(unsafe { memlock_counter_release(self.client.get(), self.key.as_ptr()) })
    }

    fn available(&self) -> Outcome<u64> {
        let mut available = 0;
        let (client, key) = (self.client.get(), self.key.as_ptr());
        // SAFETY: the client is open, and the string and the place are valid.
        done(unsafe { memlock_counter_available(client, key, &mut available) })?;
        Ok(available)
    }
}
