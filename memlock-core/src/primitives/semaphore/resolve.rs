//! Releasing and extending: steps of the holder, and the resolution of their outcomes.

use std::time::Duration;

use super::operation::{Extend, Kind, Operation, OperationOutcome, Release, Renewing, Wakes};
use super::permit::Permit;
use super::snapshot::Confirmation;
use super::submit;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::lease_guard::{LATEST_ARRIVAL, Outcome, Step};
use crate::mutation::{self, Mutation};
use crate::owner::Token;

impl Permit {
    /// Performs a step that only the holder may take.
    pub(super) fn resolve(&mut self, step: Step) -> Result<Outcome<Wakes>> {
        let semaphore = self.kind.semaphore.clone();
        let kind = match step {
            Step::Release => {
                let (token, entry_ids) = (self.token, self.entry_ids.clone());
                Kind::Release(Release { token, entry_ids, reclaimable: self.reclaimable() })
            }
            Step::Extend(lease) => {
                // No deadline is needed: the caller's request itself shows that the extension is
                // wanted.
                let old_deadline = Moment::from_boot(Duration::MAX);
                let renewing = Renewing {
                    token: self.token,
                    lease,
                    old_deadline,
                    deadline: self.deadline,
                    reclaimable: self.reclaimable(),
                };
                let (renewing, gone) = (vec![renewing], Vec::new());
                Kind::Extend(Extend { renewing, wanted: None, gone, keeps: false })
            }
        };
        let completion = submit::submit(&semaphore, Operation::new(kind, None), None, &|| false);
        if let Some(doubt) = completion.in_doubt {
            if let Step::Extend(lease) = step {
                self.lease = self.lease.min(lease);
                self.extension_in_doubt = true;
            }
            match step {
                Step::Release => self.release_in_doubt = true,
                // The valid lease may from now on be the shorter one, or one that began at an
                // unknown time.
                Step::Extend(_) if doubt.slow => self.deadline = self.deadline.min(doubt.since),
                Step::Extend(lease) => {
                    self.deadline = self.deadline.min(lease.deadline(doubt.since))
                }
            }
        }
        let clock = semaphore.target.context.clock();
        if let Step::Extend(lease) = step {
            // The request may reach the server at any time until its reply is given up.
            self.server_until =
                self.server_until.max(semaphore.target.gone(lease) + LATEST_ARRIVAL);
        }
        match completion.outcome {
            OperationOutcome::Released { wakes } => Ok(Outcome::Taken(wakes)),
            OperationOutcome::Extended { asks } => match (completion.renewing.first(), step) {
                (Some(renewing), Step::Extend(lease)) => {
                    let late = mutation::has(Mutation::ExtensionFromReply);
                    let deadline =
                        if late { lease.deadline(clock.now()) } else { renewing.deadline };
                    (self.deadline, self.lease) = (deadline, lease);
                    // A release that is still under way carries an older version.
                    self.release_in_doubt = false;
                    let verified = if asks { self.verify_if_it_lasts() } else { Ok(()) };
                    self.extension_in_doubt = verified.is_err();
                    verified?;
                    Ok(Outcome::Taken(None))
                }
                _ => Ok(Outcome::Lost(None)),
            },
            OperationOutcome::Gone { instead } => Ok(self.gone(step, instead)),
            OperationOutcome::Failed(error)
                if matches!(step, Step::Release) && self.release_in_doubt && error.is_outage() =>
            {
                Err(Error::unresolved(Some(error), "semaphore"))
            }
            OperationOutcome::Failed(error) => Err(error),
            OperationOutcome::Unresolved(error) => Err(Error::unresolved(error, "semaphore")),
            // Of a simulated process that is being killed.
            _ => Ok(Outcome::Lost(None)),
        }
    }

    /// After an extension that may have been computed by a clock that was stopped: caps the
    /// deadline by what the server's clock leaves, or, if that cannot be read, by the present time.
    fn verify_if_it_lasts(&mut self) -> Result<()> {
        self.cap_deadline_by_ttl().map_err(|error| {
            self.deadline = self.deadline.min(self.kind.semaphore.target.now());
            error.told_as(ErrorKind::Unknown, |why| {
                format!("They were extended, but for how long is not known: {why}")
            })
        })
    }

    /// The permits are not in the record. If an earlier release got no reply, it most likely
    /// released them, unless the semaphore is another one, or the lease had ended before. With a
    /// guard, another life of the server takes nothing away from a holder whose lease still runs.
    fn gone(&self, step: Step, instead: Option<(Token, u32)>) -> Outcome<Wakes> {
        let Confirmation { of, life, .. } = self.kind.confirmed.get();
        let same = instead.filter(|(token, _)| *token == of);
        let target = &self.kind.semaphore.target;
        let in_time = target.now() < self.deadline;
        let is_new = target.context.recovery(target.route).is_some_and(|it| it.life != life);
        match (step, same) {
            (Step::Release, Some((_, capacity))) if self.release_in_doubt && in_time => {
                let queue = self.kind.semaphore.target.queue().ok().flatten();
                let wakes = Wakes {
                    queue,
                    capacity,
                    freed: self.kind.permits,
                    entry_ids: self.entry_ids.clone(),
                };
                Outcome::Taken(Some(wakes))
            }
            (Step::Release, None) if self.release_in_doubt && in_time && is_new => {
                Outcome::Taken(None)
            }
            _ => Outcome::Lost(None),
        }
    }
}
