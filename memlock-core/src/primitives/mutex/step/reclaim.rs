//! Reclaiming: a server was started anew and has forgotten the lock, and its holder puts it back.
//!
//! | the lock | what is true | what may change it |
//! | --- | --- | --- |
//! | held, confirmed in an earlier life of the server | until its deadline no other client is granted it: every life since is younger than the guard, and no lease is longer | its holder, by adding its record in this life, only if the server recovers |
//! | added again, and the reply came before the deadline | held, as before; versions are those of this life | its holder |
//! | added again, and the reply came later, or not at all | the request may have been carried out after others have held the lock | its holder: found before the deadline, the record counts once it is replaced by its version; found later, it is removed by its version, and the lock is lost |
//!
//! A lock whose release may have been carried out is not put back: another client may have acquired
//! it since, in the earlier life.

use super::replies::Exchange;
use super::{Action, Ended, LOOKS, OwnerOutcome, OwnerStep, State};
use crate::clock::Moment;
use crate::lease::TICK_LATENESS;
use crate::mutation::{self, Mutation};
use crate::store::{Epoch, Expiry, Reply, Version};
use crate::target::Target;

impl OwnerStep {
    /// A check that does not put the lock back.
    pub(in super::super) fn only_looking(self) -> OwnerStep {
        OwnerStep { looks: LOOKS, ..self }
    }

    /// A check that begins by putting the lock back, which was found missing. `None` if it may not
    /// be put back.
    pub(in super::super) fn putting_back(mut self) -> Option<OwnerStep> {
        let now = self.target.now();
        self.may_put_back(now).then(|| {
            self.looks = LOOKS;
            let _ = self.begin_put_back(now);
            self
        })
    }

    /// Whether a record of this owner's own, with this version, proves nothing: the lease has ended,
    /// and the record may have been added since, by a request that was late. Then other clients may
    /// have held the lock in between.
    pub(super) fn proves_nothing(&self, found: Version, now: Moment) -> bool {
        let is_of_another_life = self.confirmed.is_some() && found.epoch() != self.version.epoch();
        let in_doubt = self.confirmed.as_ref().is_some_and(|it| it.get().in_doubt.is_some());
        (is_of_another_life || in_doubt || self.orphan.is_some())
            && now >= self.deadline
            && !mutation::has(Mutation::TrustLateReclaims)
    }

    /// Whether the lock may be put back, should the server have forgotten it.
    pub(super) fn may_put_back(&self, now: Moment) -> bool {
        let runs = now < self.deadline || mutation::has(Mutation::ReclaimLate);
        let in_doubt = self.release_in_doubt && !mutation::has(Mutation::ReclaimReleased);
        self.confirmed.is_some() && runs && !in_doubt
    }

    /// The next request puts the lock back: for the new lease, or for the rest of the old one.
    pub(super) fn begin_put_back(&mut self, now: Moment) -> Ended {
        let expiry = match self.action {
            Action::Extend(lease) => lease.into(),
            _ => Expiry::After(self.deadline.since(now) + TICK_LATENESS),
        };
        self.state = State::PutBack { expiry };
        None
    }

    /// In which life of the server any thread has confirmed the lock last: a request that puts it back
    /// in that life is not admitted.
    pub(super) fn life(&self) -> Epoch {
        self.confirmed.as_ref().map_or(self.version.epoch(), |confirmed| confirmed.get().life)
    }

    /// Whether the server has begun another life since the lock was confirmed, in which it gives no
    /// new grants yet: no other client can have had the lock. If so, the lock is not put back there.
    pub(super) fn forget(&self) -> bool {
        let Target { context, route, .. } = &self.target;
        let recovery = context.recovery(*route).filter(|recovery| recovery.life != self.life());
        if let (Some(recovery), Some(confirmed)) = (recovery, &self.confirmed) {
            confirmed.note(recovery.life);
        }
        recovery.is_some()
    }

    pub(super) fn was_put_back(&mut self, reply: &Reply, at: Exchange) -> Ended {
        if let &Reply::Stored(stored) = reply {
            if at.came >= self.deadline && !mutation::has(Mutation::TrustLateReclaims) {
                self.state = State::Remove(stored.version);
                return None;
            }
            if matches!(self.action, Action::HandOff(_)) {
                self.confirm(stored.version);
                return Some(Ok(OwnerOutcome::Recovering));
            }
            return self.stored(stored, at);
        }
        if *reply != Reply::Exists {
            self.looks = LOOKS;
        }
        self.again()
    }
}
