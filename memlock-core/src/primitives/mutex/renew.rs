//! Renewal of a lock by the renewal thread: the owner's step that a caller's extension is, one
//! request at a time, so that many renewals share a packet.

use super::lock::{Exclusive, Lock};
use super::resolve;
use super::step::{Action, OwnerOutcome, OwnerStep};
use crate::clock::Moment;
use crate::guard::renewal::renewable::{Check, PendingRenewal, Progress, Renewable, RenewableKind};
use crate::mutation::{self, Mutation};
use crate::owner::Token;
use crate::store::{Op, Reply};

/// A renewal under way.
struct LockRenewal {
    token: Token,
    step: OwnerStep,
    /// The end of the old lease: no request is sent after it.
    old_deadline: Moment,
}

impl PendingRenewal for LockRenewal {
    fn ops(&self) -> Vec<Op<'_>> {
        self.step.ops()
    }

    fn writes(&self) -> bool {
        self.step.changes()
    }

    fn lasts(&self, now: Moment) -> bool {
        now < self.old_deadline || self.step.only_removes()
    }

    fn announce(&self, guard: &mut dyn Renewable) {
        if let Some(lock) = guard.as_any().downcast_mut::<Lock>() {
            self.step.announce(lock);
        }
    }

    fn take(&mut self, replies: Vec<Reply>, sent: Moment, came: Moment) -> Progress {
        match self.step.on(Ok(replies), sent, came) {
            None => Progress::NotYet { gone: Vec::new() },
            Some(Ok(OwnerOutcome::Taken(_))) => Progress::Renewed,
            Some(Ok(_)) => Progress::NotYet { gone: vec![self.token] },
            Some(Err(_)) => Progress::InDoubt,
        }
    }

    fn apply(&self, guard: &mut dyn Renewable) {
        if let Some(lock) = guard.as_any().downcast_mut::<Lock>() {
            self.step.apply_renewal(lock);
        }
    }

    fn has(&self, token: Token) -> bool {
        self.token == token
    }
}

impl RenewableKind for Exclusive {
    fn fence(lock: &Lock) -> Option<u64> {
        Some(lock.fence())
    }

    fn check(lock: &Lock) -> Check {
        let step = OwnerStep::new(lock, Action::Check).only_looking();
        Box::new(move || resolve::check(step))
    }

    fn reclaimer(lock: &mut Lock) -> Option<Check> {
        let step = OwnerStep::new(lock, Action::Check).putting_back()?;
        step.announce(lock);
        Some(Box::new(move || resolve::check(step)))
    }

    fn begin(lock: &mut Lock, in_doubt: bool) -> Option<Box<dyn PendingRenewal>> {
        if lock.remaining().is_zero() && !mutation::has(Mutation::KeepPastTheEnd) {
            return None;
        }
        let step = OwnerStep::new(lock, Action::Extend(lock.lease));
        let step = if in_doubt { step.in_doubt() } else { step };
        let (token, old_deadline) = (lock.token, lock.deadline);
        Some(Box::new(LockRenewal { token, step, old_deadline }))
    }
}
