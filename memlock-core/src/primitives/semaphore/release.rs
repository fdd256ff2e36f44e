//! Releasing permits, and waking waiters.

use std::fmt;

use super::operation::Wakes;
use crate::error::{Error, Result};
use crate::guard::lease_guard::{Kind, Outcome, Step};
use crate::guard::orphan::Reaper;
use crate::store::Op;
use crate::subject::Subject;
use crate::target::Target;
use crate::wait::Waker;
use crate::wait::queue::Queue;
use crate::wait_id::WaitId;

use super::permit::{Permit, Permits};
use super::wake::{REAPER, local_waiters, wake_next};

impl Kind for Permits {
    /// What is needed to wake waiters, unless another caller of the batch wakes them.
    type Waiters = Wakes;
    const REAPER: &'static Reaper = &REAPER;
    const RELEASING: &'static str = "Releasing permits of";
    const EXTENDING: &'static str = "Extending the lease of permits of";
    const CHECKING: &'static str = "Checking permits of";

    fn target(&self) -> &Target {
        &self.semaphore.target
    }

    fn target_mut(&mut self) -> &mut Target {
        &mut self.semaphore.target
    }

    fn what(&self, subject: &Subject) -> String {
        match self.permits {
            1 => format!("permit of the {subject}"),
            permits => format!("hold on {permits} permits of the {subject}"),
        }
    }

    fn debug(&self, debug: &mut fmt::DebugStruct<'_, '_>) {
        debug.field("permits", &self.permits);
    }

    fn drop_failed(&self, error: &Error) {
        log::warn!("Permits could not be released when they were dropped. {error}");
    }

    fn resolve(permit: &mut Permit, step: Step) -> Result<Outcome<Wakes>> {
        permit.resolve(step)
    }

    fn is_there(permit: &Permit) -> Result<bool> {
        let semaphore = &permit.kind.semaphore;
        match semaphore.has_holder(permit.token, &permit.kind.confirmed)? {
            true => Ok(true),
            false => permit.forgotten().map_or(Ok(false), |it| semaphore.put_back(it)),
        }
    }

    fn wake_next(permit: &Permit, wakes: Wakes) {
        permit.wake_waiters(wakes);
    }

    fn leave_the_queue(permit: &mut Permit) -> bool {
        permit.leave_queue()
    }

    fn leave_behind(&self, ids: &[WaitId]) {
        let Target { context, key, .. } = &self.semaphore.target;
        local_waiters(context).leave_behind(key, ids);
    }
}

impl Permit {
    /// Records the ids of this holder's entries in the queue. If no wake-up was received, the
    /// entries are removed immediately: they would be woken in vain, and since no releaser handed
    /// over to this holder, there may be capacity for other waiters, too. The same applies if there
    /// are several ids: a waiter that is woken twice joins again while its earlier entry is still
    /// there, and other holders, which release while this one holds its permits, would wake that
    /// entry.
    pub(super) fn remember_entries(&mut self, ids: Vec<WaitId>, unwoken: bool) {
        self.entry_ids.extend(ids);
        if unwoken || self.entry_ids.len() > 1 {
            self.leave_queue();
        }
    }

    /// Removes this holder's entries from the queue, if any are left, and wakes the next waiters
    /// for which there is capacity. False if the server did not answer; the entries are then
    /// removed at a later contact.
    pub(super) fn leave_queue(&mut self) -> bool {
        let entry_ids = std::mem::take(&mut self.entry_ids);
        let target @ Target { context, key, .. } = &self.kind.semaphore.target;
        if let Err(failure) =
            (Queue { target, key: &key.waiters() }).leave(&entry_ids, Op::get(key))
        {
            log::debug!("The queue could not be left: {}", failure.error);
            local_waiters(context).leave_behind(key, &entry_ids);
            return false;
        }
        wake_next(target);
        true
    }

    /// Wakes the first waiters for which there is capacity now.
    fn wake_waiters(&self, wakes: Wakes) {
        let Wakes { queue, capacity, freed, entry_ids } = wakes;
        let target @ Target { context, key, .. } = &self.kind.semaphore.target;
        let local = local_waiters(context);
        let at = Queue { target, key: &key.waiters() };
        let waker = Waker::new(target, local);
        let handed = queue.map(|queue| at.wake_several(queue, capacity, freed, &entry_ids, &waker));
        let handed = handed.unwrap_or_default();
        local.released(key, handed, context.clock().now());
        if handed.stuck {
            local.leave_behind(key, &entry_ids);
        }
    }
}
