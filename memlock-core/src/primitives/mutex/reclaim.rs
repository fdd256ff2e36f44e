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

use super::lock::Lock;
use crate::clock::Moment;
use crate::error::Result;
use crate::guard::lease_guard::LATEST_ARRIVAL;
use crate::lease::TICK_LATENESS;
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::owner::{Token, is_ours};
use crate::store::{Admission, Expiry, Failure, Op, Reply, Returns, Stored, Version};
use crate::target::Target;

/// A lock that may be put back.
pub(super) struct Reclaim<'a> {
    pub(super) target: &'a Target,
    pub(super) value: &'a [u8],
    /// The version by which the holder last confirmed that it holds the lock.
    pub(super) version: Version,
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
    /// The server is the same as before, so that it has lost the lock by other means; or it recovers
    /// no more.
    Refused,
}

/// The operation that puts a lock back. `version`: the last confirmed one.
pub(super) fn op<'a>(key: &'a Key, value: &'a [u8], version: Version, expiry: Expiry) -> Op<'a> {
    let admission = Admission::Reclaim(version.epoch());
    Op::Add { key, value, expiry, returns: Returns::Version, admission }
}

/// Whether a record of a holder's own that was found at `now` proves nothing: the holder knows
/// another life of the server than the one that has it, and its lease has ended.
pub(super) fn proves_nothing(
    found: Version,
    known: Version,
    now: Moment,
    deadline: Moment,
) -> bool {
    found.epoch() != known.epoch() && now >= deadline && !mutation::has(Mutation::TrustLateReclaims)
}

impl Reclaim<'_> {
    /// Puts the lock back for the rest of its lease.
    fn run(&self) -> std::result::Result<Reclaimed, Failure> {
        let key = &self.target.key;
        let rest = self.deadline.since(self.target.now()) + TICK_LATENESS;
        let add = op(key, self.value, self.version, Expiry::After(rest));
        Ok(match self.target.one(add)? {
            Reply::Stored(Stored { version, .. }) => {
                if self.target.now() < self.deadline || mutation::has(Mutation::TrustLateReclaims) {
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
        let is_there = || {
            let item = self.target.get()?;
            Ok(item.is_some_and(|item| is_ours(&item.value, token)))
        };
        match self.run() {
            Ok(Reclaimed::Back(_)) => Ok(true),
            Ok(Reclaimed::TooLate) => Ok(false),
            // Another thread may have been faster.
            Ok(Reclaimed::Occupied | Reclaimed::Refused) => is_there(),
            // Whether it was put back is not known, so a lock that is not seen may be held.
            Err(failure) => match is_there()? {
                true => Ok(true),
                false => Err(failure.of_read()),
            },
        }
    }
}

impl Lock {
    /// The lock, if it may be put back where a server has forgotten it.
    pub(super) fn reclaim(&self) -> Option<Reclaim<'_>> {
        let target = &self.kind.target;
        let is_guarded = target.context.guarantees().guard.is_some();
        let runs = target.now() < self.deadline || mutation::has(Mutation::ReclaimLate);
        let in_doubt = self.release_in_doubt && !mutation::has(Mutation::ReclaimReleased);
        (is_guarded && runs && !in_doubt).then_some(Reclaim {
            target,
            value: &self.kind.value,
            version: self.kind.version,
            deadline: self.deadline,
        })
    }

    /// Puts the lock back for the rest of its lease.
    pub(super) fn put_back(&mut self) -> std::result::Result<Reclaimed, Failure> {
        let Some(reclaim) = self.reclaim() else { return Ok(Reclaimed::Refused) };
        let ran = reclaim.run();
        if matches!(&ran, Err(failure) if failure.sent) {
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
