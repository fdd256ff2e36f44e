//! Permits that are held.

use std::fmt;

use super::operation::Wakes;
use super::snapshot::Seen;
use super::{REAPER, Semaphore, leave, local_waiters};
use crate::cas_backoff::{ROUNDS, back_off};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::lease_guard::{Kind, LeaseGuard, Outcome, Step};
use crate::guard::orphan::Reaper;
use crate::lease::Lease;
use crate::owner::Token;
use crate::store::{Op, Reply};
use crate::target::Target;
use crate::wait::Waker;
use crate::wait::entries::WaitId;
use crate::wait::queue::Queue;

/// One or several permits of a semaphore that are held.
pub type Permit = LeaseGuard<Permits>;

/// What is held of a semaphore.
pub struct Permits {
    pub(super) semaphore: Semaphore,
    pub(super) permits: u32,
    /// Which semaphore by that name they are of.
    pub(super) of: Token,
}

/// What was granted.
pub(super) struct Grant {
    pub(super) token: Token,
    pub(super) permits: u32,
    /// From when the lease counts.
    pub(super) counted_from: Moment,
    /// The token of the semaphore.
    pub(super) semaphore: Token,
}

impl Grant {
    pub(super) fn into_permit(self, semaphore: Semaphore) -> Permit {
        let Grant { token, permits, counted_from, semaphore: of } = self;
        let lease = semaphore.lease;
        LeaseGuard::new(Permits { semaphore, permits, of }, token, lease, counted_from)
    }
}

impl Kind for Permits {
    /// What is to be done for them, unless another caller of the batch does it.
    type Waiters = Wakes;
    const REAPER: &'static Reaper = &REAPER;
    const RELEASING: &'static str = "Releasing";

    fn target(&self) -> &Target {
        &self.semaphore.target
    }

    fn target_mut(&mut self) -> &mut Target {
        &mut self.semaphore.target
    }

    fn subject(&self) -> String {
        let subject = self.semaphore.subject();
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
        permit.kind.semaphore.has_holder(permit.token)
    }

    fn wake_next(permit: &Permit, wakes: Wakes) {
        permit.wake_waiters(wakes);
    }

    fn leave_the_queue(permit: &mut Permit) -> bool {
        permit.leave_the_line()
    }

    fn leave_behind(&self, ids: &[WaitId]) {
        let Target { context, key, .. } = &self.semaphore.target;
        local_waiters(context).leave_behind(key, ids);
    }
}

impl Permit {
    /// How many permits these are.
    pub fn permits(&self) -> u32 {
        self.kind.permits
    }

    /// After a suspiciously slow grant: counts on no more than the server's clock leaves.
    pub(super) fn cap_deadline_by_ttl(&mut self) -> Result<()> {
        let seen = self.kind.semaphore.look_closely()?;
        let now = || self.kind.semaphore.target.now();
        self.believe(seen.map_or_else(now, |seen| seen.keeps_until(self.token)))
    }

    /// Counts on them no longer than that.
    pub(super) fn believe(&mut self, until: Moment) -> Result<()> {
        self.deadline = self.deadline.min(until);
        if self.remaining().is_zero() {
            return Err(Error::new(
                ErrorKind::Unreachable,
                "The server took longer to answer than the lease lasts; nothing is held. Ask for a longer lease.",
            ));
        }
        Ok(())
    }

    /// We stood in the queue under these ids. Where no bell was heard, they are taken off at once:
    /// they would be rung in vain, and as nobody handed on to us, there may be room for others too.
    /// The same is done where there are several ids: a waiter that is rung twice joins again while
    /// its earlier line still stands, and other holders, which release while we hold our permits,
    /// would ring that line.
    pub(super) fn stood_in_line(&mut self, ids: Vec<WaitId>, unrung: bool) {
        self.stood.extend(ids);
        if unrung || self.stood.len() > 1 {
            self.leave_the_line();
        }
    }

    /// Takes our entries off the queue, if there are any left, and rings those next for whom there
    /// is room. False if the server did not answer: then the entries are taken off at a later
    /// contact. Where another thread of this process is doing so, it does it for us, too.
    pub(super) fn leave_the_line(&mut self) -> bool {
        let stood = std::mem::take(&mut self.stood);
        leave::leave(&self.kind.semaphore, stood)
    }

    /// Wakes the first waiters for whom there is room now.
    fn wake_waiters(&self, wakes: Wakes) {
        let Wakes { queue, capacity, freed, mut stood } = wakes;
        stood.extend(self.kind.semaphore.combiner().leaving().ids());
        let target @ Target { context, key, .. } = &self.kind.semaphore.target;
        let local = local_waiters(context);
        let at = Queue { target, key: &key.waiters() };
        let waker = Waker::new(target, local);
        let handed = queue.map(|queue| at.wake_several(queue, capacity, freed, &stood, &waker));
        let handed = handed.unwrap_or_default();
        local.released(key, handed, context.clock().now());
        if handed.stuck {
            local.leave_behind(key, &stood);
        }
    }
}

/// Tells the first waiters that permits may be available, for those that came back out of turn.
pub(super) fn wake_next(target: &Target) {
    let Target { context, key, .. } = target;
    let queue = Queue { target, key: &key.waiters() };
    let Ok(replies) = target.read(&[Op::Get { key }, Op::Get { key: queue.key }]) else {
        return;
    };
    let [item, Reply::Value(waiters)] = &replies[..] else { return };
    let capacity = match item {
        Reply::Value(item) => {
            let now = context.clock().now();
            Seen::read(key, item, now, now).map_or(0, |seen| seen.record.capacity(seen.now))
        }
        // Whoever comes finds out.
        _ => u32::MAX,
    };
    let waker = Waker::new(target, local_waiters(&target.context));
    queue.wake_several(waiters.clone(), capacity, capacity, &[], &waker);
}

/// Takes back the permits that this token holds, whatever else has changed. True when there were
/// any.
pub(super) fn reap(target: &Target, token: Token) -> Result<bool> {
    let (context, key) = (target.context.clone(), target.key.clone());
    let semaphore = Semaphore::new(context, key, None, Lease::new(crate::lease::MIN_LEASE)?)?;
    for round in 0..ROUNDS {
        let Some(mut seen) = semaphore.look()? else { return Ok(false) };
        if seen.record.held_by(token).is_none() {
            return Ok(false);
        }
        seen.record.give_back(token);
        if semaphore.write(seen).map_err(|failure| failure.error)?.done {
            return Ok(true);
        }
        back_off(&target.context, round)?;
    }
    Ok(false)
}
