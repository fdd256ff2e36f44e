//! Renewal of permits by the renewal thread: all permits of a semaphore that one process renews, in
//! one read and one write.

use std::time::Duration;

use super::handle::{SLOW_LOOK, Semaphore};
use super::operation::{Extend, Kind, Operation, OperationOutcome, Renewing};
use super::permit::{Permit, Permits};
use super::snapshot::{Confirmation, Snapshot};
use super::submit;
use crate::clock::Moment;
use crate::error::Error;
use crate::guard::confirmed::Confirmed;
use crate::guard::lease_guard::LATEST_ARRIVAL;
use crate::guard::renewal::renewable::{
    Check, Joined, PendingRenewal, Progress, Renewable, RenewableKind, Wanted,
};
use crate::lease::{Lease, MIN_LEASE};
use crate::mutation::{self, Mutation};
use crate::owner::Token;
use crate::store::{Expiry, Failure, Op, Reply, Returns};
use crate::target::Target;

/// A renewal under way.
struct PermitRenewals {
    semaphore: Semaphore,
    permits: Vec<Renewing>,
    step: Step,
    /// Set when a read took so long that it was repeated.
    looked_again: bool,
    /// Set when another client was faster to write the record.
    refused: bool,
}

enum Step {
    Inspect,
    /// The record that was read is replaced by this one.
    Put {
        snapshot: Box<Snapshot>,
        value: Vec<u8>,
    },
    /// The record was written, but computed by a clock that may have been stopped. `first`: when a
    /// read of the result was sent that was slow, too.
    Believe {
        first: Option<Moment>,
    },
}

impl PendingRenewal for PermitRenewals {
    fn ops(&self) -> Vec<Op<'_>> {
        let key = &self.semaphore.target.key;
        vec![match &self.step {
            Step::Put { snapshot, value } => {
                let expiry = Expiry::At(Duration::from_secs(snapshot.record.expires));
                let (version, returns) = (snapshot.version, Returns::Nothing);
                Op::CompareAndSet { key, version, value, expiry, returns }
            }
            Step::Inspect | Step::Believe { .. } => Op::get(key),
        }]
    }

    fn writes(&self) -> bool {
        matches!(self.step, Step::Put { .. })
    }

    fn lasts(&self, now: Moment) -> bool {
        self.permits.iter().all(|permit| now < permit.old_deadline)
    }

    fn take(&mut self, replies: Vec<Reply>, sent: Moment, _came: Moment) -> Progress {
        let Some(reply) = replies.first() else { return Progress::InDoubt };
        match std::mem::replace(&mut self.step, Step::Inspect) {
            Step::Put { snapshot, .. } if *reply == Reply::Written => {
                // `touch` has counted this write.
                let there = snapshot.confirmation();
                self.semaphore.learn(there.number);
                self.semaphore.remember_written((there.of, snapshot.record.serial));
                for held in self.permits.iter_mut().filter_map(|it| it.reclaimable.as_mut()) {
                    held.confirm(there);
                }
                if !snapshot.is_slow() {
                    return Progress::Renewed;
                }
                self.step = Step::Believe { first: None };
                gone([])
            }
            Step::Put { .. } => {
                self.refused = true;
                gone([])
            }
            step => {
                let mut snapshot = match self.semaphore.note(reply, sent) {
                    Ok(Some(snapshot)) => snapshot,
                    Ok(None) if self.may_be_forgotten() => {
                        self.refused = true;
                        return gone([]);
                    }
                    // The semaphore does not exist any more.
                    _ => {
                        return gone(self.permits.drain(..));
                    }
                };
                let (life, at) = (snapshot.version.epoch(), self.semaphore.target.now());
                let is_forgotten = |permit: &Renewing| {
                    snapshot.record.held_by(permit.token).is_none()
                        && permit.reclaimable.as_ref().is_some_and(|held| held.fits(life, at))
                };
                if snapshot.recovers(at) && self.permits.iter().any(is_forgotten) {
                    self.refused = true;
                    return gone([]);
                }
                let lost: Vec<Renewing> = self
                    .permits
                    .extract_if(.., |permit| {
                        snapshot.record.held_by(permit.token).is_none()
                            && !mutation::has(Mutation::KeepGonePermits)
                    })
                    .collect();
                if let Step::Believe { first } = step {
                    if snapshot.is_slow() && first.is_none() {
                        self.step = Step::Believe { first: Some(snapshot.sent) };
                        return gone(lost);
                    }
                    snapshot.first = first;
                    self.verify(&snapshot);
                    if lost.is_empty() {
                        return Progress::Renewed;
                    }
                }
                // The lease grows by the time that the read took, which may include a new
                // connection or a stop of this process: such a read is repeated once.
                let slow =
                    snapshot.took > SLOW_LOOK && !mutation::has(Mutation::RenewFromSlowLooks);
                if slow && !std::mem::replace(&mut self.looked_again, true) {
                    return gone(lost);
                }
                let now = self.semaphore.target.now();
                let may_stand = snapshot.is_slow();
                for permit in &mut self.permits {
                    let (until, counted_from) = snapshot.lease(permit.lease, now);
                    snapshot.record.renew(permit.token, until, may_stand);
                    permit.deadline = permit.lease.deadline(counted_from);
                }
                snapshot.record.touch(snapshot.now);
                let value = snapshot.record.encode();
                self.step = Step::Put { snapshot: Box::new(snapshot), value };
                gone(lost)
            }
        }
    }

    fn is_refused(&self) -> bool {
        self.refused
    }

    /// The permits that remain in `permits` afterwards are renewed, and the returned ones are gone;
    /// all others are not `wanted` any more.
    fn combine(&mut self, wanted: Wanted) -> Result<Vec<Token>, Failure> {
        let renewing = std::mem::take(&mut self.permits);
        let extend = Extend { renewing, wanted: Some(wanted), gone: Vec::new(), keeps: false };
        let operation = Operation::new(Kind::Extend(extend), None);
        let completion = submit::submit(&self.semaphore, operation, None, &|| false);
        let unresolved =
            |error| Failure { error: Error::unresolved(error, "semaphore"), sent: true };
        match completion.outcome {
            OperationOutcome::Extended { asks } => {
                self.permits = completion.renewing;
                if asks && !mutation::has(Mutation::BelieveSlowRenewals) {
                    match self.semaphore.inspect_closely() {
                        Ok(Some(snapshot)) => self.verify(&snapshot),
                        Ok(None) => self.permits.clear(),
                        Err(error) => return Err(unresolved(Some(error))),
                    }
                }
                Ok(completion.gone)
            }
            OperationOutcome::Gone { .. } => {
                let gone = completion.renewing.iter().map(|permit| permit.token);
                Ok(gone.chain(completion.gone).collect())
            }
            OperationOutcome::Failed(error) => Err(Failure { error, sent: false }),
            OperationOutcome::Unresolved(error) => Err(unresolved(error)),
            // Of a simulated process that is being killed.
            _ => Ok(Vec::new()),
        }
    }

    fn join(&mut self, guard: &mut dyn Renewable) -> Joined {
        match guard.as_any().downcast_mut::<Permit>() {
            Some(permit) if permit.kind.semaphore.target.key == self.semaphore.target.key => {
                let Some(renewing) = permit.renewing() else { return Joined::Nothing };
                self.permits.push(renewing);
                Joined::Taken
            }
            _ => Joined::NotOfThis,
        }
    }

    fn apply(&self, guard: &mut dyn Renewable) {
        let renewed = self.permits.iter().find(|permit| permit.token == guard.token());
        if let (Some(renewed), Some(permit)) = (renewed, guard.as_any().downcast_mut::<Permit>()) {
            permit.deadline = permit.deadline.max(renewed.deadline);
        }
    }

    fn has(&self, token: Token) -> bool {
        self.permits.iter().any(|permit| permit.token == token)
    }
}

impl PermitRenewals {
    /// Whether the server may have forgotten the semaphore, rather than lost it by other means.
    fn may_be_forgotten(&self) -> bool {
        let Target { context, route, .. } = &self.semaphore.target;
        let now = self.semaphore.target.now();
        let held = || self.permits.iter().filter_map(|permit| permit.reclaimable.as_ref());
        let recovery = context.recovery(*route);
        recovery.is_some_and(|it| held().any(|held| held.fits(it.life, now)))
    }

    /// Caps the deadlines by this snapshot.
    fn verify(&mut self, snapshot: &Snapshot) {
        for permit in &mut self.permits {
            permit.deadline = permit.deadline.min(snapshot.keeps_until(permit.token));
        }
    }
}

/// Another step follows, but not for these permits.
fn gone(gone: impl IntoIterator<Item = Renewing>) -> Progress {
    Progress::NotYet { gone: gone.into_iter().map(|permit| permit.token).collect() }
}

impl RenewableKind for Permits {
    fn check(permit: &Permit) -> Check {
        let (semaphore, token) = (permit.kind.semaphore.clone(), permit.token);
        let confirmed = permit.kind.confirmed.clone();
        Box::new(move || semaphore.has_holder(token, &confirmed))
    }

    fn reclaimer(permit: &mut Permit) -> Option<Check> {
        let (semaphore, forgotten) = (permit.kind.semaphore.clone(), permit.forgotten()?);
        Some(Box::new(move || semaphore.put_back(forgotten.clone())))
    }

    fn begin(permit: &mut Permit, _in_doubt: bool) -> Option<Box<dyn PendingRenewal>> {
        let permits = vec![permit.renewing()?];
        let (semaphore, step) = (permit.kind.semaphore.clone(), Step::Inspect);
        Some(Box::new(PermitRenewals {
            semaphore,
            permits,
            step,
            looked_again: false,
            refused: false,
        }))
    }
}

impl Permit {
    fn renewing(&mut self) -> Option<Renewing> {
        if self.remaining().is_zero() && !mutation::has(Mutation::KeepPastTheEnd) {
            return None;
        }
        let lease = self.lease;
        self.server_until =
            self.server_until.max(self.kind.semaphore.target.gone(lease) + LATEST_ARRIVAL);
        Some(self.as_renewing())
    }

    fn as_renewing(&self) -> Renewing {
        Renewing {
            token: self.token,
            lease: self.lease,
            old_deadline: self.deadline,
            deadline: self.deadline,
            reclaimable: self.reclaimable(),
        }
    }

    /// What is to be put back, if the server may have forgotten it.
    pub(super) fn forgotten(&self) -> Option<Renewing> {
        let Target { context, route, .. } = &self.kind.semaphore.target;
        let is_young = context.recovery(*route).is_some();
        Some(self.as_renewing()).filter(|it| is_young && it.reclaimable.is_some())
    }
}

impl Semaphore {
    /// Whether this token holds permits, according to the server, which is noted.
    ///
    /// # Errors
    /// As for any read.
    pub(super) fn has_holder(
        &self,
        token: Token,
        confirmed: &Confirmed<Confirmation>,
    ) -> crate::error::Result<bool> {
        let snapshot = self.inspect()?.filter(|it| it.record.held_by(token).is_some());
        if let Some(snapshot) = &snapshot {
            confirmed.set(snapshot.confirmation());
        }
        Ok(snapshot.is_some())
    }

    /// Puts permits back for the rest of their lease, for a holder that only wants to know whether
    /// it holds them. False if they are lost.
    pub(super) fn put_back(&self, holder: Renewing) -> crate::error::Result<bool> {
        let rest = holder.deadline.since(self.target.now());
        let renewing = Renewing { lease: Lease::new(rest.max(MIN_LEASE))?, ..holder };
        let (renewing, gone) = (vec![renewing], Vec::new());
        // Another thread may be renewing them.
        let extend = Extend { renewing, wanted: None, gone, keeps: true };
        let operation = Operation::new(Kind::Extend(extend), None);
        let completion = submit::submit(self, operation, None, &|| false);
        match completion.outcome {
            OperationOutcome::Extended { .. } => Ok(!completion.renewing.is_empty()),
            OperationOutcome::Failed(error) => Err(error),
            OperationOutcome::Unresolved(error) => Err(Error::unresolved(error, "semaphore")),
            _ => Ok(false),
        }
    }
}
