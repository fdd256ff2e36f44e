//! Semaphores.

use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use memlock::*;
use memlock_core::Answer;

use super::super::{For, Held, Outcome, PermitHolder, PermitRequest, Renewed};
use super::calls::Calls;
use super::{C, done, duration, held, millis, read, renewed, seconds, set_up, text, wait_ms};

struct Semaphore {
    handle: *mut memlock_semaphore,
    calls: Arc<dyn Calls>,
}

// SAFETY: the header allows a semaphore in any number of threads.
unsafe impl Send for Semaphore {}
// SAFETY: as above.
unsafe impl Sync for Semaphore {}

pub(super) fn open(
    client: &C,
    name: &[u8],
    permits: Option<u32>,
    lease: Duration,
) -> Outcome<Box<dyn super::super::Semaphore>> {
    let (name, permits) = (text(name), permits.unwrap_or(0));
    let mut handle = ptr::null_mut();
    // SAFETY: the client is open, and the string and the place are valid.
    done(unsafe {
        let (client, name) = (client.get(), name.as_ptr());
        memlock_semaphore_open(client, name, permits, millis(lease), &mut handle)
    })?;
    Ok(Box::new(Semaphore { handle, calls: Arc::clone(&client.calls) }))
}

impl Semaphore {
    fn acquire_handle(&self, ask: PermitRequest, wait: For) -> Outcome<*mut memlock_permit> {
        let request = memlock_request {
            permits: ask.permits,
            priority: ask.priority,
            strict: i32::from(!ask.ages),
        };
        self.calls.acquire(self.handle, &request, wait_ms(wait))
    }
}

impl super::super::Semaphore for Semaphore {
    fn acquire(&self, ask: PermitRequest, wait: For) -> Outcome<Box<dyn Held>> {
        Ok(held::permit(self.acquire_handle(ask, wait)?, &self.calls))
    }

    fn acquire_renewed(
        &self,
        permits: u32,
        max_hold: Option<Duration>,
    ) -> Outcome<Box<dyn Renewed>> {
        let permit = self.acquire_handle(PermitRequest::of(permits), For::Ever)?;
        renewed::permit(permit, &self.calls, max_hold)
    }

    fn set_up(&self, life: Duration) -> Outcome<Answer> {
        // SAFETY: the semaphore is open.
        set_up(unsafe { memlock_semaphore_set_up(self.handle, millis(life)) })
    }

    fn tear_down(&self) -> Outcome<()> {
        // SAFETY: the semaphore is open.
        done(unsafe { memlock_semaphore_tear_down(self.handle) })
    }

    fn resize(&self, permits: u32) -> Outcome<()> {
        // SAFETY: the semaphore is open.
        done(unsafe { memlock_semaphore_resize(self.handle, permits) })
    }

    fn available(&self) -> Outcome<u32> {
        let mut available = 0;
        // SAFETY: the semaphore is open and the place is valid.
        done(unsafe { memlock_semaphore_available(self.handle, &mut available) })?;
        Ok(available)
    }

    fn holders(&self) -> Outcome<Vec<PermitHolder>> {
        const MOST: usize = 16;
        let mut count = 0;
        // SAFETY: made of numbers only.
        let mut holders: [memlock_holder; MOST] = unsafe { std::mem::zeroed() };
        // SAFETY: the semaphore is open, and there are so many places.
        done(unsafe {
            memlock_semaphore_holders(self.handle, holders.as_mut_ptr(), MOST, &mut count)
        })?;
        assert!(count <= MOST, "{count} holders");
        let known = |holder: &memlock_holder| PermitHolder {
            token: read(&holder.token),
            host: read(&holder.host),
            pid: holder.pid,
            permits: holder.permits,
            since: seconds(holder.since),
            remaining: duration(holder.remaining_ms),
        };
        Ok(holders[..count].iter().map(known).collect())
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        // SAFETY: the semaphore is used no more.
        unsafe { memlock_semaphore_close(self.handle) };
    }
}
