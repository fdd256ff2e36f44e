//! Handles that a call has taken over from C: what they hold is released by a thread of the client.

use std::sync::Arc;

use memlock_core::{Pending, Report, Result};

use crate::calls::Calls;
use crate::renewal::{Effort, Leased};

/// A handle of something that is held.
pub(crate) trait Holds: Sized + 'static {
    fn leased(&self) -> &Leased;
    /// Where calls that are started with it are.
    fn calls(&self) -> &Arc<Calls>;
    fn into_leased(self) -> Leased;
}

/// A handle that nobody else frees. It is a pointer, because a renewal callback may read the handle
/// until the renewal has ended.
pub(crate) struct TakenOver<H: Holds>(*mut H);

// SAFETY: what a handle holds may be used by any thread, and only one has the handle now, except for the
// renewal callback, which may use it from the renewal thread in any case.
unsafe impl<H: Holds> Send for TakenOver<H> {}

impl<H: Holds> TakenOver<H> {
    /// # Safety
    /// `handle` came from [`give`](crate::boundary::give), and nothing but its callback uses it
    /// afterwards.
    pub(crate) unsafe fn from_c(handle: *mut H) -> TakenOver<H> {
        TakenOver(handle)
    }

    pub(crate) fn new(handle: H) -> TakenOver<H> {
        TakenOver(Box::into_raw(Box::new(handle)))
    }

    pub(crate) fn calls(&self) -> Arc<Calls> {
        Arc::clone(self.handle().calls())
    }

    /// Has it released by a thread of the client, also if the result is dropped. If no thread can
    /// be started, it is released here.
    pub(crate) fn release_in_background(self) -> Pending<Report> {
        let route = self.handle().leased().route();
        self.calls().client().call_by_route(route, move |skips| {
            self.release(if skips { Effort::UnlessSilent } else { Effort::Full })
        })
    }

    /// With the answers of memlock_unlock(). When this returns, the renewal callback is never
    /// called again.
    fn release(self, effort: Effort) -> Result<Report> {
        let stopped = self.handle().leased().stop_renewal(effort);
        self.into_handle().into_leased().release(effort, stopped)
    }

    fn handle(&self) -> &H {
        // SAFETY: it is freed by `into_handle` and `drop`, after which there is no `self`.
        unsafe { &*self.0 }
    }

    fn into_handle(self) -> Box<H> {
        let pointer = self.0;
        std::mem::forget(self);
        // SAFETY: it came from a `Box`, and is not used any more: no callback reads it either.
        unsafe { Box::from_raw(pointer) }
    }
}

/// The call was not carried out.
impl<H: Holds> Drop for TakenOver<H> {
    fn drop(&mut self) {
        let stopped = self.handle().leased().stop_renewal_on_drop();
        // SAFETY: as in `into_handle`.
        let handle = unsafe { Box::from_raw(self.0) };
        let _ = handle.into_leased().release_on_drop(stopped);
    }
}
