//! What an owner knows of a step whose request failed, and how the step goes on.

use super::replies::{lost, taken};
use super::{Action, Ended, OwnerStep, ROUNDS, State};
use crate::error::{Error, ErrorKind};
use crate::mutation::{self, Mutation};
use crate::owner::{NOTIFIES, notifies};
use crate::store::{Failure, Version};
use crate::target::ATTEMPTS;

impl OwnerStep {
    pub(super) fn failed(&mut self, failure: Failure) -> Ended {
        match self.state {
            State::Remove(_) if matches!(self.action, Action::Check) => {
                self.note_check_in_doubt();
                lost(None)
            }
            State::Refused | State::Verify { .. } | State::Look => self.read_failed(failure),
            State::PutBack { .. } if matches!(self.action, Action::Check) => {
                if failure.sent {
                    self.note_check_in_doubt();
                }
                (self.error, self.failures) = (Some(failure.of_read()), 0);
                self.again()
            }
            State::Act | State::ReadAndAct | State::PutBack { .. } | State::Remove(_) => {
                self.change_failed(failure)
            }
        }
    }

    /// A check may leave a record on the server. It runs without the guard, so this is noted where all
    /// threads of the holder see it.
    fn note_check_in_doubt(&self) {
        if let Some(confirmed) = &self.confirmed {
            let until = Some(self.may_last_until());
            confirmed.change(|last| last.in_doubt = last.in_doubt.max(until));
        }
    }

    fn read_failed(&mut self, failure: Failure) -> Ended {
        self.failures += 1;
        if failure.sent && self.failures < ATTEMPTS {
            return None;
        }
        let error = failure.of_read();
        match (self.state, self.error.take()) {
            (State::Refused, Some(refused)) => self.unchanged(refused),
            (State::Verify { .. }, _) => self.unverified(error),
            _ => Some(Err(error)),
        }
    }

    fn change_failed(&mut self, Failure { error, sent }: Failure) -> Ended {
        let acts = matches!(self.state, State::Act | State::ReadAndAct);
        let removes = matches!(self.state, State::Remove(_));
        if sent && matches!(self.action, Action::Release) && mutation::has(Mutation::GuessReleased)
        {
            return taken(None);
        }
        if sent || removes {
            self.note_doubt();
        }
        if !sent && self.error.is_none() {
            if removes {
                return Some(Err(Error::unresolved(Some(error), "lock")));
            }
            if !acts || error.kind() != ErrorKind::Protocol {
                return self.unchanged(error);
            }
            (self.error, self.state) = (Some(error), State::Refused);
            return None;
        }
        self.failures += 1;
        if self.failures == ATTEMPTS {
            return Some(Err(Error::unresolved(Some(error), "lock")));
        }
        self.error = Some(error);
        self.again()
    }

    /// A change got no reply, or a removal was not even sent.
    fn note_doubt(&mut self) {
        if let State::PutBack { .. } | State::Remove(_) = self.state {
            self.orphan = self.orphan.max(Some(self.may_last_until()));
        }
        match (&self.action, self.state) {
            (_, State::Remove(_)) => {}
            (Action::Extend(_), _) if mutation::has(Mutation::HopeForTheLonger) => {}
            (&Action::Extend(lease), _) => {
                // The shorter lease may be the valid one from now on.
                let guarantees = self.target.context.guarantees();
                self.deadline = guarantees.kept_by_either(self.deadline, self.lease, lease);
                self.lease = self.lease.min(lease);
                self.extension_in_doubt = true;
            }
            (_, State::PutBack { .. }) => {}
            _ => self.release_in_doubt = true,
        }
    }

    /// The error of a step that ends with a request that was refused or not sent: it changed nothing,
    /// but an earlier release may have.
    pub(super) fn unchanged(&self, error: Error) -> Ended {
        let releases = matches!(self.action, Action::Release | Action::HandOff(_));
        let in_doubt = releases && self.release_in_doubt;
        Some(Err(if in_doubt { Error::unresolved(Some(error), "lock") } else { error }))
    }

    /// For how long the server keeps the lock is not known.
    pub(super) fn unverified(&mut self, error: Error) -> Ended {
        if !matches!(self.action, Action::Extend(_)) {
            return Some(Err(error));
        }
        let (lease, deadline) = self.before;
        let guarantees = self.target.context.guarantees();
        let least = guarantees.kept_by_either(deadline, lease, self.lease);
        self.deadline = self.deadline.min(least);
        self.extension_in_doubt = true;
        Some(Err(error.told_as(ErrorKind::Unknown, |why| {
            format!("It was extended, but for how long is not known: {why}")
        })))
    }

    /// The step is repeated, after a read.
    pub(super) fn again(&mut self) -> Ended {
        self.rounds += 1;
        if self.rounds == ROUNDS {
            return Some(Err(Error::unresolved(self.error.take(), "lock")));
        }
        self.state = match self.action {
            Action::Check | Action::Verify => State::Look,
            _ => State::ReadAndAct,
        };
        self.choose_queue();
        None
    }

    /// A release reads the queue, if there may be one; but a queue that cannot be read must not
    /// prevent the release.
    pub(super) fn choose_queue(&mut self) {
        let reads = matches!(self.action, Action::Release) && self.notifies && self.failures == 0;
        self.queue = reads.then(|| self.target.key.waiters());
    }

    /// The server has the lock with this version.
    pub(super) fn confirm(&mut self, version: Version) {
        self.version = version;
        if let Some(confirmed) = &self.confirmed {
            confirmed.note(version.epoch());
        }
    }

    /// Notes whether a waiter has marked the record.
    pub(super) fn notice_waiters(&mut self, value: &[u8]) {
        if !self.notifies && notifies(value) {
            self.notifies = true;
            self.value.extend_from_slice(NOTIFIES);
        }
    }
}
