//! Waking the waiters of a mutex, and reaping a grant whose reply was lost.

use super::lock::{HandoffRequest, Lock};
use super::reserve::Reserver;
use crate::context::Context;
use crate::error::Result;
use crate::guard::orphan::Reaper;
use crate::owner::{Token, is_ours};
use crate::store::{Op, Reply};
use crate::target::{ATTEMPTS, Target};
use crate::wait::Waker;
use crate::wait::local::LocalWaiters;
use crate::wait::queue::{Capacity, Queue};

/// How the orphaned grants of mutexes are reaped.
pub(super) static REAPER: Reaper = Reaper { reap, wake_next };

/// The threads of this process that wait for mutexes.
pub(super) fn local_waiters(context: &Context) -> &LocalWaiters<HandoffRequest, Lock> {
    context.extension(LocalWaiters::default)
}

/// Removes the item if it carries this token, whatever its version. True if it was removed.
fn reap(target: &Target, token: Token) -> Result<bool> {
    let key = &target.key;
    for _ in 0..ATTEMPTS {
        let seen = target.one(Op::get(key)).map_err(|failure| failure.error)?;
        let Reply::Value(item) = seen else { return Ok(false) };
        if !is_ours(&item.value, token) {
            return Ok(false);
        }
        let delete = Op::Delete { key, version: item.version };
        if target.one(delete).map_err(|failure| failure.error)? == Reply::Deleted {
            return Ok(true);
        }
        // Another client has written the item in between: read it again.
    }
    Ok(false)
}

/// Wakes the first waiter of a mutex that became free by other means than a release.
pub(super) fn wake_next(target: &Target) {
    let queue = Queue { target, key: &target.key.waiters() };
    if let Ok(Some(item)) = target.queue() {
        queue.wake_next(item, Capacity::MUTEX, &[], &waker(target));
    }
}

/// The waker for the waiters of a mutex without a holder.
pub(super) fn waker(target: &Target) -> Waker<'_, HandoffRequest, Lock> {
    let reserver = Box::new(Reserver { target });
    Waker { reserver: Some(reserver), ..Waker::new(target, local_waiters(&target.context)) }
}
