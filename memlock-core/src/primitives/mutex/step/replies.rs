//! What the replies to an owner's step mean, by the table of [`super`].

use std::time::Duration;

use super::{Action, Ended, LOOKS, OwnerOutcome, OwnerStep, State};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::guard::lease_guard::LATEST_ARRIVAL;
use crate::lease::Lease;
use crate::mutation::{self, Mutation};
use crate::owner::is_ours;
use crate::store::{Failure, Item, Replies, Reply, Stored, Version};

/// When a request was sent, and when its reply came.
#[derive(Clone, Copy)]
pub(super) struct Exchange {
    pub(super) sent: Moment,
    pub(super) came: Moment,
}

pub(super) fn taken(queue: Option<Item>) -> Ended {
    Some(Ok(OwnerOutcome::Taken(queue)))
}

pub(super) fn lost(queue: Option<Item>) -> Ended {
    Some(Ok(OwnerOutcome::Lost(queue)))
}

impl OwnerStep {
    /// Handles the replies to what was sent.
    pub(in super::super) fn on(&mut self, replies: Replies, sent: Moment, came: Moment) -> Ended {
        self.began.get_or_insert(sent);
        let at = Exchange { sent, came };
        let mut replies = match replies {
            Ok(replies) => replies.into_iter(),
            Err(failure) => return self.failed(failure),
        };
        let seen = if self.state == State::ReadAndAct { replies.next() } else { None };
        let Some(reply) = replies.next() else { return self.failed(Failure::no_reply()) };
        match self.state {
            State::Act | State::ReadAndAct => self.changed(seen, reply, replies.next(), at),
            State::PutBack { .. } => self.was_put_back(&reply, at),
            State::Remove(_) if reply == Reply::VersionMismatch => self.again(),
            State::Remove(_) => lost(None),
            State::Verify { first } => self.verify(&reply, first, at),
            State::Refused => match self.error.take() {
                Some(error) if self.is_ours(&reply) => self.unchanged(error),
                _ => lost(None),
            },
            State::Look => self.looked(&reply, came),
        }
    }

    fn is_ours(&self, reply: &Reply) -> bool {
        matches!(reply, Reply::Value(item) if is_ours(&item.value, self.token))
    }

    /// `seen`: what was read before the change, if the state says so.
    fn changed(
        &mut self,
        seen: Option<Reply>,
        answer: Reply,
        queue: Option<Reply>,
        at: Exchange,
    ) -> Ended {
        let queue = match queue {
            Some(Reply::Value(item)) => Some(item),
            _ => None,
        };
        let extends = matches!(self.action, Action::Extend(_));
        let is_free = answer == Reply::Missing;
        match (answer, seen) {
            (Reply::Deleted, _) => taken(queue),
            (Reply::Stored(stored), _) => self.stored(stored, at),
            (_, Some(Reply::Value(item))) => self.found(&item, queue.filter(|_| is_free), at.came),
            (_, Some(_)) => self.not_found(is_free, queue, at.came),
            (Reply::VersionMismatch, None)
                if !extends || !mutation::has(Mutation::KeepChangedIsGone) =>
            {
                self.again()
            }
            (Reply::Missing, None) if extends && mutation::has(Mutation::KeepPutsBack) => {
                self.version = Version::new(self.version.epoch(), 0);
                None
            }
            _ => lost(queue),
        }
    }

    pub(super) fn stored(&mut self, stored: Stored, at: Exchange) -> Ended {
        let Stored { version, fence } = stored;
        match self.action {
            Action::Extend(lease) => self.extended(version, lease, at),
            Action::HandOff(_) => self.handed_off(version, fence),
            Action::Release | Action::Check | Action::Verify => {
                self.confirm(version);
                taken(None)
            }
        }
    }

    /// Its lease counts from the first request, also if it was a later one that was carried out.
    fn handed_off(&self, version: Version, fence: u64) -> Ended {
        let sent = self.began?;
        Some(Ok(OwnerOutcome::HandedOff { version, fence, sent }))
    }

    fn extended(&mut self, version: Version, lease: Lease, at: Exchange) -> Ended {
        let guarantees = *self.target.context.guarantees();
        let late = mutation::has(Mutation::ExtensionFromReply);
        let sent = if late { at.came } else { at.sent };
        (self.deadline, self.lease) = (lease.deadline(sent), lease);
        self.confirm(version);
        // What was under way has arrived by now.
        let may_come = |until: &Moment| at.sent < *until + LATEST_ARRIVAL;
        self.orphan = self.orphan.filter(may_come);
        if let Some(confirmed) = &self.confirmed {
            confirmed.change(|last| last.in_doubt = last.in_doubt.filter(may_come));
        }
        // A release that is still under way carries an older version.
        (self.release_in_doubt, self.extension_in_doubt) = (false, false);
        let is_slow = guarantees.is_suspicious(at.came.since(at.sent));
        if !is_slow || mutation::has(Mutation::BelieveSlowRenewals) {
            return taken(None);
        }
        (self.state, self.failures) = (State::Verify { first: None }, 0);
        None
    }

    /// There was an item, and the change was not carried out.
    fn found(&mut self, item: &Item, queue: Option<Item>, now: Moment) -> Ended {
        if let Action::HandOff(successor) = &self.action
            && is_ours(&item.value, successor.token)
        {
            // An earlier request of this step has arrived.
            return self.handed_off(item.version, item.fence);
        }
        let mutant = match self.action {
            Action::Extend(_) => Mutation::KeepAnyones,
            _ => Mutation::BlindDelete,
        };
        if !is_ours(&item.value, self.token) && !mutation::has(mutant) {
            let same_life = item.version.epoch() == self.version.epoch();
            return self.ended(same_life, queue, now);
        }
        if self.proves_nothing(item.version, now) {
            self.state = State::Remove(item.version);
            return None;
        }
        let recovers = !self.target.recovers_for(item.version).is_zero();
        self.confirm(item.version);
        // The holder has put it back, on a server that recovers.
        if matches!(self.action, Action::HandOff(_)) && recovers {
            return Some(Ok(OwnerOutcome::Recovering));
        }
        self.notice_waiters(&item.value);
        self.again()
    }

    /// There was no item, and the change was not carried out. `same_life`: the version was of the
    /// server's present life.
    fn not_found(&mut self, same_life: bool, queue: Option<Item>, now: Moment) -> Ended {
        if same_life || self.looks == LOOKS {
            return self.ended(same_life, queue.filter(|_| same_life), now);
        }
        self.looks += 1;
        if self.may_put_back(now) {
            if !matches!(self.action, Action::Release) {
                return self.begin_put_back(now);
            }
            if self.forget() {
                return taken(queue);
            }
        }
        // Either another client acquired the lock in between, or the known version is of another life
        // of the server. The item shows which.
        self.again()
    }

    /// The item is gone, or belongs to another client. If an earlier release got no reply, it most
    /// likely removed the item, unless the server has begun another life since, or the lease had
    /// ended before. With a guard, another life takes nothing away from a holder whose lease still
    /// runs. The store answers "version mismatch" to a version of another life.
    fn ended(&self, same_life: bool, queue: Option<Item>, now: Moment) -> Ended {
        let same_life = same_life || self.target.context.guarantees().guard.is_some();
        let releases = !matches!(self.action, Action::Extend(_));
        let was_released = releases && self.release_in_doubt && same_life && now < self.deadline;
        if was_released { taken(queue) } else { lost(queue) }
    }

    /// What remains of the lease. `first`: when an earlier read was sent whose reply was slow.
    fn verify(&mut self, reply: &Reply, first: Option<Moment>, at: Exchange) -> Ended {
        let guarantees = self.target.context.guarantees();
        let left = match reply {
            Reply::Value(item) if is_ours(&item.value, self.token) => {
                item.remaining.unwrap_or(Duration::MAX)
            }
            // It was forgotten, or lost, since it was extended.
            _ if matches!(self.action, Action::Extend(_)) && at.came < self.deadline => {
                (self.lease, self.deadline) = self.before;
                let is_missing = *reply == Reply::Missing && self.looks < LOOKS;
                if !is_missing || !self.may_put_back(at.came) {
                    return lost(None);
                }
                self.looks += 1;
                return self.begin_put_back(at.came);
            }
            _ => Duration::ZERO,
        };
        let Some(kept) = guarantees.kept_until(left, at.sent, at.came, first) else {
            self.state = State::Verify { first: Some(at.sent) };
            return None;
        };
        self.deadline = self.deadline.min(kept);
        if at.came < self.deadline {
            return taken(None);
        }
        self.unverified(Error::new(
            ErrorKind::Unreachable,
            "The server took longer to answer than the lease lasts; nothing is held. Ask for a \
             longer lease.",
        ))
    }

    fn looked(&mut self, reply: &Reply, now: Moment) -> Ended {
        match reply {
            Reply::Value(item) if is_ours(&item.value, self.token) => {
                // It counts, or not, by the guard's deadline, which a renewal may have moved.
                self.confirm(item.version);
                taken(None)
            }
            Reply::Missing if self.looks < LOOKS && self.may_put_back(now) => {
                self.looks = LOOKS;
                self.begin_put_back(now)
            }
            // Whether it was put back is not known, so a lock that is not seen may be held.
            _ => self.error.take().map_or_else(|| lost(None), |error| Some(Err(error))),
        }
    }
}
