//! Renewing permits by their renewer: all that one process keeps of a semaphore, in one look and one
//! write.

use super::operation::{Extend, Kind, Operation, OperationOutcome, Renewing, Wanted};
use super::permit::Permit;
use super::snapshot::Seen;
use super::submit;
use super::{SLOW_LOOK, Semaphore};
use crate::clock::Moment;
use crate::error::Error;
use crate::guard::lease_guard::LATEST_ARRIVAL;
use crate::lease::Ttl;
use crate::mutation::{self, Mutation};
use crate::owner::Token;
use crate::store::{Failure, Op, Reply, Route};
use crate::target::Target;

/// A renewal on its way.
pub(crate) struct PermitRenewals {
    semaphore: Semaphore,
    pub(crate) permits: Vec<Renewing>,
    step: Step,
    /// A look took so long that it was repeated.
    looked_again: bool,
    /// Somebody else was faster to write it.
    refused: bool,
}

enum Step {
    Look,
    /// Write this over what was seen.
    Put {
        seen: Box<Seen>,
        value: Vec<u8>,
    },
    /// It was written, but reckoned from a clock that may have stood still. `first`: when a look at
    /// what came of it left, which was slow, too.
    Believe {
        first: Option<Moment>,
    },
}

/// What came of a step.
pub(crate) enum Progress {
    /// These have their new lease.
    All,
    /// These are not ours any more; the others have another step to take, if there are any.
    Gone(Vec<Token>),
}

impl PermitRenewals {
    pub(crate) fn route(&self) -> Route {
        self.semaphore.target.route
    }

    pub(crate) fn op(&self) -> Op<'_> {
        let key = &self.semaphore.target.key;
        match &self.step {
            Step::Put { seen, value } => {
                let ttl = Ttl::Until(seen.record.expires);
                Op::Put { key, version: Some(seen.version), flags: 0, value, ttl }
            }
            Step::Look | Step::Believe { .. } => Op::Get { key },
        }
    }

    /// Whether the next step changes anything.
    pub(crate) fn writes(&self) -> bool {
        matches!(self.step, Step::Put { .. })
    }

    /// Whether both are of one semaphore.
    pub(crate) fn is_of(&self, permit: &Permit) -> bool {
        self.semaphore.target.key == permit.kind.semaphore.target.key
    }

    /// The reply to a step that was sent then.
    pub(crate) fn take(&mut self, reply: &Reply, sent: Moment) -> Progress {
        match std::mem::replace(&mut self.step, Step::Look) {
            Step::Put { seen, .. } if *reply == Reply::Written => {
                // `touch` has counted it.
                self.semaphore.remember_written((seen.record.token, seen.record.serial));
                if !seen.is_slow() {
                    return Progress::All;
                }
                self.step = Step::Believe { first: None };
                Progress::Gone(Vec::new())
            }
            Step::Put { .. } => {
                self.refused = true;
                Progress::Gone(Vec::new())
            }
            step => {
                let mut seen = match self.semaphore.note(reply, sent) {
                    Ok(Some(seen)) => seen,
                    // There is no such semaphore any more.
                    _ => {
                        return Progress::Gone(
                            self.permits.drain(..).map(|permit| permit.token).collect(),
                        );
                    }
                };
                let gone: Vec<Renewing> = self
                    .permits
                    .extract_if(.., |permit| {
                        seen.record.held_by(permit.token).is_none()
                            && !mutation::has(Mutation::KeepGonePermits)
                    })
                    .collect();
                if let Step::Believe { first } = step {
                    if seen.is_slow() && first.is_none() {
                        self.step = Step::Believe { first: Some(seen.sent) };
                        return Progress::Gone(
                            gone.into_iter().map(|permit| permit.token).collect(),
                        );
                    }
                    seen.first = first;
                    self.believe(&seen);
                    if gone.is_empty() {
                        return Progress::All;
                    }
                }
                // The lease grows by the time that the look took, which may include a new
                // connection or a stop of this process: such a look is repeated once.
                let slow = seen.took > SLOW_LOOK && !mutation::has(Mutation::RenewFromSlowLooks);
                if slow && !std::mem::replace(&mut self.looked_again, true) {
                    return Progress::Gone(gone.into_iter().map(|permit| permit.token).collect());
                }
                let now = self.semaphore.target.now();
                let may_stand = seen.is_slow();
                for permit in &mut self.permits {
                    let (until, counted_from) = seen.lease(permit.lease, now);
                    seen.record.renew(permit.token, until, may_stand);
                    permit.deadline = permit.lease.deadline(counted_from);
                }
                seen.record.touch(seen.now);
                let value = seen.record.encode();
                self.step = Step::Put { seen: Box::new(seen), value };
                Progress::Gone(gone.into_iter().map(|permit| permit.token).collect())
            }
        }
    }

    /// Counts on no more than that shows.
    fn believe(&mut self, seen: &Seen) {
        for permit in &mut self.permits {
            permit.deadline = permit.deadline.min(seen.keeps_until(permit.token));
        }
    }

    /// Whether somebody else was faster: then it is to be renewed together with what else this
    /// process wants of the semaphore.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Renews them in one write with what other threads of this process want. Those that are left
    /// in `permits` afterwards are renewed, and those that are given are gone; others are not
    /// `wanted` any more.
    ///
    /// # Errors
    /// With `sent`, when they may be renewed all the same.
    pub(crate) fn combine(&mut self, wanted: Wanted) -> Result<Vec<Token>, Failure> {
        let renewing = std::mem::take(&mut self.permits);
        let extend = Extend { renewing, wanted: Some(wanted), gone: Vec::new() };
        let operation = Operation::new(Kind::Extend(extend), None);
        let completion = submit::submit(&self.semaphore, operation, None, &|| false);
        let unsettled = |error| Failure { error: Error::unsettled(error, "semaphore"), sent: true };
        match completion.outcome {
            OperationOutcome::Extended { asks } => {
                self.permits = completion.renewing;
                if asks && !mutation::has(Mutation::BelieveSlowRenewals) {
                    match self.semaphore.look_closely() {
                        Ok(Some(seen)) => self.believe(&seen),
                        Ok(None) => self.permits.clear(),
                        Err(error) => return Err(unsettled(Some(error))),
                    }
                }
                Ok(completion.gone)
            }
            OperationOutcome::Gone { .. } => {
                let gone = completion.renewing.iter().map(|permit| permit.token);
                Ok(gone.chain(completion.gone).collect())
            }
            OperationOutcome::Failed(error) => Err(Failure { error, sent: false }),
            OperationOutcome::Unsettled(error) => Err(unsettled(error)),
            // A child that a callback made: it keeps nothing.
            _ => Ok(Vec::new()),
        }
    }

    /// Takes another one of the same semaphore along.
    pub(crate) fn join(&mut self, permit: &mut Permit) -> bool {
        let renewing = permit.renewing();
        self.permits.extend(renewing);
        renewing.is_some()
    }
}

impl Permit {
    /// Begins a renewal. `None` when there is nothing to renew.
    pub(crate) fn renewal(&mut self) -> Option<PermitRenewals> {
        let permits = vec![self.renewing()?];
        let (semaphore, step) = (self.kind.semaphore.clone(), Step::Look);
        Some(PermitRenewals { semaphore, permits, step, looked_again: false, refused: false })
    }

    fn renewing(&mut self) -> Option<Renewing> {
        let now = self.kind.semaphore.target.now();
        if self.remaining().is_zero() && !mutation::has(Mutation::KeepPastTheEnd) {
            return None;
        }
        let lease = self.lease;
        self.server_until = self.server_until.max(lease.gone(now) + LATEST_ARRIVAL);
        Some(Renewing {
            token: self.token,
            lease,
            old_deadline: self.deadline,
            deadline: self.deadline,
        })
    }

    /// It was renewed.
    pub(crate) fn renewed(&mut self, deadline: Moment) {
        self.deadline = self.deadline.max(deadline);
    }

    pub(crate) fn semaphore(&self) -> &Semaphore {
        &self.kind.semaphore
    }
}

impl Semaphore {
    /// Whether this token holds permits, as the server says.
    ///
    /// # Errors
    /// As for any read.
    pub(crate) fn has_holder(&self, token: Token) -> crate::error::Result<bool> {
        Ok(self.look()?.is_some_and(|seen| seen.record.held_by(token).is_some()))
    }
}
