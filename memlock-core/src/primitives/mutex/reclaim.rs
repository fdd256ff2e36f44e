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

use super::lock::{Confirmation, Exclusive, Lock};
use crate::clock::Moment;
use crate::error::Result;
use crate::guard::confirmed::Confirmed;
use crate::guard::lease_guard::LATEST_ARRIVAL;
use crate::lease::TICK_LATENESS;
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::owner::{Token, is_ours};
use crate::store::{Admission, Epoch, Expiry, Failure, Op, Reply, Returns, Stored, Version};
use crate::target::Target;

/// A lock that may be put back.
pub(super) struct Reclaim<'a> {
    pub(super) target: &'a Target,
    pub(super) value: &'a [u8],
    pub(super) confirmed: &'a Confirmed<Confirmation>,
    /// The end of the lease that was confirmed then.
    pub(super) deadline: Moment,
}

/// The result of putting a lock back.
pub(super) enum Reclaimed {
    /// The lock is held, with this version.
    Back(Version),
    /// There is another item, which may be the holder's own: by an earlier request.
    Occupied,
    /// The lease ended before the reply came. The record was removed, as far as possible.
    TooLate,
    /// The lock was confirmed in this life of the server, which has lost it by other means since; or
    /// the server recovers no more; or the lease has ended.
    Refused,
}

/// The operation that puts a lock back, which was last confirmed in this life.
pub(super) fn op<'a>(key: &'a Key, value: &'a [u8], confirmed: Epoch, expiry: Expiry) -> Op<'a> {
    let admission = Admission::Reclaim(confirmed);
    Op::Add { key, value, expiry, returns: Returns::Version, admission }
}

/// Whether the server has the lock by this token. Where it was found is noted.
pub(super) fn is_there(
    target: &Target,
    token: Token,
    confirmed: Option<&Confirmed<Confirmation>>,
) -> Result<bool> {
    let item = target.get()?.filter(|item| is_ours(&item.value, token));
    if let (Some(item), Some(confirmed)) = (&item, confirmed) {
        confirmed.found(item.version);
    }
    Ok(item.is_some())
}

impl Reclaim<'_> {
    /// Puts the lock back for the rest of its lease.
    fn run(&self) -> std::result::Result<Reclaimed, Failure> {
        let key = &self.target.key;
        let rest = self.deadline.since(self.target.now());
        if rest.is_zero() && !mutation::has(Mutation::ReclaimLate) {
            return Ok(Reclaimed::Refused);
        }
        let expiry = Expiry::After(rest + TICK_LATENESS);
        let add = op(key, self.value, self.confirmed.get().life, expiry);
        Ok(match self.target.one(add)? {
            Reply::Stored(Stored { version, .. }) => {
                if self.target.now() < self.deadline || mutation::has(Mutation::TrustLateReclaims) {
                    self.confirmed.found(version);
                    return Ok(Reclaimed::Back(version));
                }
                // What cannot be removed ends with its lease.
                let _ = self.target.one(Op::Delete { key, version });
                Reclaimed::TooLate
            }
            Reply::Exists => Reclaimed::Occupied,
            _ => Reclaimed::Refused,
        })
    }

    /// Puts the lock back, which the server does not have. Returns whether it is held; the caller
    /// checks the deadline once more afterwards.
    pub(super) fn check(&self, token: Token) -> Result<bool> {
        let is_there = || is_there(self.target, token, Some(self.confirmed));
        match self.run() {
            Ok(Reclaimed::Back(_)) => Ok(true),
            Ok(Reclaimed::TooLate) => Ok(false),
            // Another thread may have been faster.
            Ok(Reclaimed::Occupied | Reclaimed::Refused) => is_there(),
            // Whether it was put back is not known, so a lock that is not seen may be held.
            Err(failure) => {
                self.confirmed.change(|last| last.in_doubt |= failure.sent);
                if is_there()? { Ok(true) } else { Err(failure.of_read()) }
            }
        }
    }
}

impl Lock {
    /// The lock, if it may be put back where a server has forgotten it.
    pub(super) fn reclaim(&self) -> Option<Reclaim<'_>> {
        let target = &self.kind.target;
        let confirmed = self.kind.confirmed.as_ref()?;
        let runs = target.now() < self.deadline || mutation::has(Mutation::ReclaimLate);
        let in_doubt = self.release_in_doubt && !mutation::has(Mutation::ReclaimReleased);
        let (value, deadline) = (&self.kind.value, self.deadline);
        (runs && !in_doubt).then_some(Reclaim { target, value, confirmed, deadline })
    }

    /// Whether a record of this holder's own, with this version, proves nothing: the lease has ended,
    /// and the record may have been added since, by a request that was late. Then other clients may
    /// have held the lock in between.
    pub(super) fn proves_nothing(&self, found: Version) -> bool {
        let Exclusive { target, version, orphan, confirmed, .. } = &self.kind;
        let is_of_another_life = confirmed.is_some() && found.epoch() != version.epoch();
        let in_doubt = confirmed.as_ref().is_some_and(|confirmed| confirmed.get().in_doubt);
        (is_of_another_life || in_doubt || orphan.is_some())
            && target.now() >= self.deadline
            && !mutation::has(Mutation::TrustLateReclaims)
    }

    /// Puts the lock back for the rest of its lease.
    pub(super) fn put_back(&mut self) -> std::result::Result<Reclaimed, Failure> {
        let Some(reclaim) = self.reclaim() else { return Ok(Reclaimed::Refused) };
        let ran = reclaim.run();
        let may_be_left = match &ran {
            Ok(reclaimed) => matches!(reclaimed, Reclaimed::TooLate),
            Err(failure) => failure.sent,
        };
        if may_be_left {
            self.may_come_back();
        }
        ran
    }

    /// A request that puts the lock back may be carried out after the release: what it leaves is
    /// removed then.
    pub(super) fn may_come_back(&mut self) {
        let until = self.kind.target.gone(self.lease) + LATEST_ARRIVAL;
        self.kind.orphan = self.kind.orphan.max(Some(until));
        self.server_until = self.server_until.max(until);
    }
}
