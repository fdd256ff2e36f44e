//! What C can call in two ways: blocking, or started and collected from an event loop.

use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;

use memlock::*;

use super::super::Outcome;
use super::{Client, done};

/// One of the ways. Handles that were acquired in it are released in it.
pub(super) trait Calls: Send + Sync {
    fn lock(
        &self,
        client: &Client,
        name: &CStr,
        lease_ms: i64,
        wait_ms: i64,
    ) -> Outcome<*mut memlock_lock>;

    fn acquire(
        &self,
        semaphore: *const memlock_semaphore,
        request: &memlock_request,
        wait_ms: i64,
    ) -> Outcome<*mut memlock_permit>;

    fn unlock(&self, lock: *mut memlock_lock) -> Outcome<()>;

    fn release(&self, permit: *mut memlock_permit) -> Outcome<()>;
}

pub(super) fn blocking() -> Arc<dyn Calls> {
    Arc::new(Blocking)
}

/// Needs no client for a release: a handle outlives its client.
struct Blocking;

impl Calls for Blocking {
    fn lock(
        &self,
        client: &Client,
        name: &CStr,
        lease_ms: i64,
        wait_ms: i64,
    ) -> Outcome<*mut memlock_lock> {
        let (name, mut lock) = (name.as_ptr(), ptr::null_mut());
        // SAFETY: the client is open, and the string and the place are valid.
        done(unsafe { memlock_mutex_lock(client.0, name, lease_ms, wait_ms, &mut lock) })?;
        Ok(lock)
    }

    fn acquire(
        &self,
        semaphore: *const memlock_semaphore,
        request: &memlock_request,
        wait_ms: i64,
    ) -> Outcome<*mut memlock_permit> {
        let mut permit = ptr::null_mut();
        // SAFETY: the semaphore is open, and the request and the place are valid.
        done(unsafe {
            memlock_semaphore_acquire_wait(semaphore, request, wait_ms, ptr::null(), &mut permit)
        })?;
        Ok(permit)
    }

    fn unlock(&self, lock: *mut memlock_lock) -> Outcome<()> {
        // SAFETY: the lock is held and given back here, once.
        done(unsafe { memlock_unlock(lock) })
    }

    fn release(&self, permit: *mut memlock_permit) -> Outcome<()> {
        // SAFETY: the permits are held and given back here, once.
        done(unsafe { memlock_permit_release(permit) })
    }
}
