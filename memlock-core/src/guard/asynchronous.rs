//! What a holder does without being blocked: a thread of the client does it.

use std::time::Duration;

use super::lease_guard::{Kind, LeaseGuard};
use super::outcome::{Extension, Release};
use crate::error::Result;
use crate::worker::{self, Pending};

/// A guard that a call was carried out with, and the result of the call.
pub type Returned<K, T> = (LeaseGuard<K>, Result<T>);

#[expect(private_bounds, reason = "sealed, as the guard is")]
impl<K: Kind + 'static> LeaseGuard<K> {
    /// As [`LeaseGuard::release`], without blocking the caller. The release is carried out also if the
    /// result is dropped. The guard comes back with the result: after an error the release can be
    /// repeated.
    pub fn release_async(self) -> Pending<Returned<K, Release>> {
        self.with(LeaseGuard::release)
    }

    /// As [`LeaseGuard::extend`], without blocking the caller. The guard comes back with the result. If
    /// the result is dropped, the lock is released.
    pub fn extend_async(self, lease: Duration) -> Pending<Returned<K, Extension>> {
        self.with(move |guard| guard.extend(lease))
    }

    /// As [`LeaseGuard::check`], without blocking the caller. The guard comes back with the result. If
    /// the result is dropped, the lock is released.
    pub fn check_async(self) -> Pending<Returned<K, bool>> {
        self.with(|guard| guard.check())
    }

    /// As dropping, without blocking the caller. If the program ends at once, the lock stays until its
    /// lease ends.
    pub fn let_go_async(self) {
        let target = self.kind.target();
        let (context, route) = (target.context.clone(), target.route);
        worker::discard(&context, route, self);
    }

    fn with<T: Send + 'static>(
        mut self,
        call: impl FnOnce(&mut LeaseGuard<K>) -> Result<T> + Send + 'static,
    ) -> Pending<Returned<K, T>> {
        let target = self.kind.target();
        let (context, route) = (target.context.clone(), target.route);
        worker::call(&context, route, move |skips| {
            if skips {
                self.kind.target_mut().context = self.kind.target().context.for_drop();
            }
            let called = call(&mut self);
            Ok((self.for_calls(), called))
        })
    }
}
