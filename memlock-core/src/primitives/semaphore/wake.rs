//! Waking the waiters of a semaphore, and reaping permits whose grant got no reply.

use super::handle::Semaphore;
use super::snapshot::Snapshot;
use crate::cas_backoff::{ROUNDS, back_off};
use crate::error::Result;
use crate::guard::orphan::Reaper;
use crate::owner::Token;
use crate::store::{Op, Reply};
use crate::target::Target;
use crate::wait::Waker;
use crate::wait::queue::Queue;

use super::operation::Acquisition;
use super::permit::Permit;
use crate::context::Context;
use crate::wait::local::LocalWaiters;

/// How the orphaned grants of semaphores are reaped.
pub(super) static REAPER: Reaper = Reaper { reap, wake_next };

/// The threads of this process that wait for permits.
pub(super) fn local_waiters(context: &Context) -> &LocalWaiters<Acquisition, Permit> {
    context.extension(LocalWaiters::default)
}

/// Wakes the first waiters after permits became available by other means than a release.
pub(super) fn wake_next(target: &Target) {
    let Target { context, key, .. } = target;
    let queue = Queue { target, key: &key.waiters() };
    let Ok(replies) = target.read(&[Op::get(key), Op::get(queue.key)]) else {
        return;
    };
    let [item, Reply::Value(waiters)] = &replies[..] else { return };
    let capacity = match item {
        Reply::Value(item) => {
            let now = context.clock().now();
            Snapshot::read(target, item, now, now).map_or(0, |snapshot| snapshot.capacity(now))
        }
        _ if context.recovery(target.route).is_some() => 0,
        // The next waiter finds out.
        _ => u32::MAX,
    };
    let waker = Waker::new(target, local_waiters(&target.context));
    queue.wake_several(waiters.clone(), capacity, capacity, &[], &waker);
}

/// Removes the permits of this token, whatever else has changed. True if there were any.
pub(super) fn reap(target: &Target, token: Token) -> Result<bool> {
    let (context, key) = (target.context.clone(), target.key.clone());
    let semaphore = Semaphore::new(context, key, None, crate::lease::MIN_LEASE)?;
    for round in 0..ROUNDS {
        let Some(mut snapshot) = semaphore.inspect()? else { return Ok(false) };
        if snapshot.record.held_by(token).is_none() {
            return Ok(false);
        }
        snapshot.record.give_back(token);
        if semaphore.write(snapshot).map_err(|failure| failure.error)?.done {
            return Ok(true);
        }
        back_off(&target.context, round)?;
    }
    Ok(false)
}
