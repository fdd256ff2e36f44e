//! Semaphores.

use std::ptr;
use std::time::Duration;

use memlock::*;
use memlock_core::{Answer, Mismatch};

use super::super::{For, Held, Outcome, PermitHolder, PermitRequest, Renewed};
use super::{C, done, duration, held, millis, read, seconds, set_up, text};

struct Semaphore(*mut memlock_semaphore);

// SAFETY: the header allows a semaphore in any number of threads.
unsafe impl Send for Semaphore {}
// SAFETY: as above.
unsafe impl Sync for Semaphore {}

pub(super) fn open(
    client: &C,
    name: &[u8],
    permits: Option<u32>,
    lease: Duration,
    mismatch: Mismatch,
) -> Outcome<Box<dyn super::super::Semaphore>> {
    let (name, permits) = (text(name), permits.unwrap_or(0));
    let mismatch = match mismatch {
        Mismatch::Follow => MEMLOCK_MISMATCH_FOLLOW,
        Mismatch::Resize => MEMLOCK_MISMATCH_RESIZE,
        Mismatch::Refuse => MEMLOCK_MISMATCH_REFUSE,
    };
    let mut semaphore = ptr::null_mut();
    // SAFETY: the client is open, and the string and the place are valid.
    done(unsafe {
        let (client, name) = (client.get(), name.as_ptr());
        let lease = millis(lease);
        memlock_semaphore_open_with(client, name, permits, lease, mismatch, &mut semaphore)
    })?;
    Ok(Box::new(Semaphore(semaphore)))
}

impl Semaphore {
    fn acquire_handle(&self, ask: PermitRequest, wait: For) -> Outcome<*mut memlock_permit> {
        let request = memlock_request {
            permits: ask.permits,
            priority: ask.priority,
            strict: i32::from(!ask.ages),
        };
        let (wait, mut permit) = (wait.ms(), ptr::null_mut());
        // SAFETY: the semaphore is open, and the request and the place are valid.
        done(unsafe {
            memlock_semaphore_acquire_wait(self.0, &request, wait, ptr::null(), &mut permit)
        })?;
        Ok(permit)
    }
}

impl super::super::Semaphore for Semaphore {
    fn acquire(&self, ask: PermitRequest, wait: For) -> Outcome<Box<dyn Held>> {
        Ok(held::permit(self.acquire_handle(ask, wait)?))
    }

    fn acquire_renewed(
        &self,
        permits: u32,
        max_hold: Option<Duration>,
    ) -> Outcome<Box<dyn Renewed>> {
        held::permit(self.acquire_handle(PermitRequest::of(permits), For::Ever)?).renew(max_hold)
    }

    fn set_up(&self, life: Duration) -> Outcome<Answer> {
        // SAFETY: the semaphore is open.
        set_up(unsafe { memlock_semaphore_set_up(self.0, millis(life)) })
    }

    fn tear_down(&self) -> Outcome<()> {
        // SAFETY: the semaphore is open.
        done(unsafe { memlock_semaphore_tear_down(self.0) })
    }

    fn resize(&self, permits: u32) -> Outcome<()> {
        // SAFETY: the semaphore is open.
        done(unsafe { memlock_semaphore_resize(self.0, permits) })
    }

    fn permits(&self) -> Outcome<u32> {
        let mut permits = 0;
        // SAFETY: the semaphore is open and the place is valid.
        done(unsafe { memlock_semaphore_permits(self.0, &mut permits) })?;
        Ok(permits)
    }

    fn available(&self) -> Outcome<u32> {
        let mut available = 0;
        // SAFETY: the semaphore is open and the place is valid.
        done(unsafe { memlock_semaphore_available(self.0, &mut available) })?;
        Ok(available)
    }

    fn holders(&self) -> Outcome<Vec<PermitHolder>> {
        const MOST: usize = 16;
        let mut count = 0;
        // SAFETY: made of numbers only.
        let mut holders: [memlock_holder; MOST] = unsafe { std::mem::zeroed() };
        // SAFETY: the semaphore is open, and there are so many places.
        done(unsafe { memlock_semaphore_holders(self.0, holders.as_mut_ptr(), MOST, &mut count) })?;
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
        unsafe { memlock_semaphore_close(self.0) };
    }
}
