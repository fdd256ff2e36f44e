//! Releasing a mutex, and waking the next waiter.

use std::fmt;
use std::time::Duration;

use super::lock::{Exclusive, Lock};
use super::reserve::Reserver;
use super::resolve;
use super::step::{Action, OwnerStep};
use super::wake::{REAPER, local_waiters, wake_next, waker};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::guard::lease_guard::{Kind, Outcome, Step};
use crate::guard::orphan::Reaper;
use crate::notify::WakeMessage;
use crate::owner::value_start;
use crate::store::{Item, Op, Reply};
use crate::target::Target;
use crate::wait::Waker;
use crate::wait::local::MOMENT;
use crate::wait::queue::{Capacity, Queue};
use crate::wait_id::WaitId;

/// A wake-up message of a releaser that read the queue lists as many of the following waiters as
/// will have held the mutex within this time.
const AHEAD: Duration = Duration::from_secs(1);

impl Kind for Exclusive {
    /// The queue's item.
    type Waiters = Item;
    const REAPER: &'static Reaper = &REAPER;
    const RELEASING: &'static str = "Unlocking";
    const EXTENDING: &'static str = "Extending the lease of";
    const CHECKING: &'static str = "Checking";

    fn target(&self) -> &Target {
        &self.target
    }

    fn target_mut(&mut self) -> &mut Target {
        &mut self.target
    }

    fn debug(&self, debug: &mut fmt::DebugStruct<'_, '_>) {
        debug.field("fence", &self.fence);
    }

    fn drop_failed(&self, error: &Error) {
        log::warn!("A lock could not be released when it was dropped. {error}");
    }

    fn resolve(lock: &mut Lock, step: Step) -> Result<Outcome<Item>> {
        lock.resolve(match step {
            Step::Release => Action::Release,
            Step::Extend(lease) => Action::Extend(lease),
        })
        .map(Into::into)
    }

    fn hand_off(lock: &mut Lock) -> Option<Result<Outcome<Item>>> {
        lock.hand_off()
    }

    fn release_sql(lock: &mut Lock) -> Option<String> {
        let Target { context, key, .. } = &lock.kind.target;
        let statement = context.removal_sql(key, &value_start(lock.token))?;
        // The statement does not tell whether there are waiters.
        lock.kind.notifies = true;
        Some(statement)
    }

    fn is_there(lock: &Lock) -> Result<bool> {
        resolve::check(OwnerStep::new(lock, Action::Check))
    }

    fn wake_next(lock: &Lock, queue: Item) {
        lock.wake_waiters(queue);
    }

    fn leave_the_queue(lock: &mut Lock) -> bool {
        lock.leave_queue()
    }

    fn leave_behind(&self, ids: &[WaitId]) {
        local_waiters(&self.target.context).leave_behind(&self.target.key, ids);
    }

    fn reap_until(&self) -> Option<Moment> {
        self.orphan.max(self.confirmed.as_ref().and_then(|confirmed| confirmed.get().in_doubt))
    }
}

impl Lock {
    /// Wakes the waiter that is next as far as this holder knows, while the release is on its way,
    /// so that the waiter starts in the meantime. The release checks afterwards whether this was
    /// the right waiter. After a very short hold, no waiter is woken ahead: the process may be
    /// about to reacquire the mutex within a batch window.
    pub(super) fn wake_ahead(&self) -> Option<WaitId> {
        let Target { context, key, .. } = &self.kind.target;
        let held = context.clock().now().since(self.kind.tenure.began);
        if self.kind.woken_ahead.is_some() || held < MOMENT {
            return self.kind.woken_ahead;
        }
        let (address, id, successors) = self.kind.successors.split()?;
        let message = WakeMessage { successors, ..WakeMessage::default() };
        let woken = local_waiters(context).wake(key, id, Duration::ZERO)
            || context.notifier().send(address, id, message);
        woken.then_some(id)
    }

    /// Wakes the next waiter of the free mutex, unless it was woken ahead.
    fn wake_waiters(&self, item: Item) {
        let target @ Target { context, key, .. } = &self.kind.target;
        let local = local_waiters(context);
        let now = context.clock().now();
        // Only a process that was in the queue may reacquire the mutex without joining the queue
        // again.
        let entry_ids = !self.entry_ids.is_empty();
        let tenure = if entry_ids {
            local.batch_window(key, now, now.since(self.kind.tenure.began))
        } else {
            Duration::ZERO
        };
        let queue = Queue { target, key: &key.waiters() };
        // Waiters that are woken ahead precede waiters that joined in front in the meantime, so the
        // list covers a limited time.
        let held = now.since(self.kind.tenure.began);
        let named = AHEAD.as_micros() / held.as_micros().max(1);
        let named = usize::try_from(named).unwrap_or(usize::MAX).max(1);
        let waker = Waker {
            after: tenure,
            named,
            held,
            woken_ahead: self.kind.woken_ahead,
            ..waker(target)
        };
        let handed = queue.wake_next(item, Capacity::MUTEX, &self.entry_ids, &waker);
        local.released(key, handed, context.clock().now());
        if handed.stuck {
            local.leave_behind(key, &self.entry_ids);
        }
        if self.kind.unwoken && !handed.ours {
            context.notifier().may_have_missed();
        }
    }

    /// Called when the lock was lost and no waiter was woken. Removes this holder's entries from
    /// the queue, if any are left, and wakes the next waiter if the mutex is free. False if the
    /// server did not answer; the entries are then removed at a later contact.
    fn leave_queue(&mut self) -> bool {
        let entry_ids = std::mem::take(&mut self.entry_ids);
        let target @ Target { context, key, .. } = &self.kind.target;
        let queue = Queue { target, key: &key.waiters() };
        match queue.leave(&entry_ids, Op::get(key)) {
            Ok(seen) => {
                let free = match seen {
                    Some(Reply::Missing) => true,
                    Some(Reply::Value(item)) => Reserver { target }.withdraw_if(&item, &entry_ids),
                    _ => false,
                };
                if free {
                    wake_next(target);
                }
                true
            }
            Err(failure) => {
                log::debug!("The queue could not be left: {}", failure.error);
                local_waiters(context).leave_behind(key, &entry_ids);
                false
            }
        }
    }
}
