//! A guard: a lock or permits held for a lease, their deadline, and the operations of their holder.
//!
//! | a guard | what is true | what may change it |
//! | --- | --- | --- |
//! | held, before its deadline | this process holds the lock | its holder, by releasing or extending it |
//! | in a transaction | the caller runs the release as a part of a transaction: as in doubt, until the transaction has ended | its holder, by releasing or extending it |
//! | in doubt | a release or an extension was sent, and its outcome is unknown: the holder may rely on the shorter of both results | its holder, by repeating the step; after a drop, any call that contacts the server |
//! | past its deadline | the lock must not be relied on; the server drops it a little later | its holder, by extending it, if there was no other holder in between |
//! | lost | the lock was gone, or had another owner | nothing |
//! | released | the guard holds nothing | nothing |
//!
//! A child made by `fork` holds nothing of its parent's, and its copy of a guard does nothing.

use std::fmt;
use std::time::Duration;

use super::orphan::{self, Reaper};
use super::outcome::{Extension, Release};
use super::sentences::{LeaseState, ended};
use crate::clock::Moment;
use crate::error::{Answer, Error, ErrorKind, Result};
use crate::fork;
use crate::lease::Lease;
use crate::mutation::{self, Mutation};
use crate::owner::Token;
use crate::report::Report;
use crate::subject::Subject;
use crate::target::Target;
use crate::wait_id::WaitId;

/// How long a request may take to arrive at the server: for this long, its orphaned grant is looked
/// for.
pub(crate) const LATEST_ARRIVAL: Duration = Duration::from_secs(10);

/// A lock or permits held for a lease: a [`Lock`](crate::Lock) or a [`Permit`](crate::Permit).
/// Dropping the guard releases them on a best-effort basis; [`LeaseGuard::release`] returns the
/// outcome.
///
/// In a child made by `fork` the guard is inert: the child holds nothing, and neither releasing nor
/// dropping the guard there affects what the parent holds.
///
/// The methods' documentation says "the lock" for both.
#[must_use = "it is released as soon as it is dropped"]
#[expect(
    private_bounds,
    reason = "sealed: the primitives of this library have guards, and no others"
)]
pub struct LeaseGuard<K: Kind> {
    pub(crate) kind: K,
    pub(crate) token: Token,
    /// The lease to which the deadline belongs: that of the last extension.
    pub(crate) lease: Lease,
    pub(crate) deadline: Moment,
    /// The time by which the item has expired on the server, whichever requested lease took effect.
    pub(crate) server_until: Moment,
    /// The generation of the process that acquired the guard.
    pub(crate) process: u64,
    held: bool,
    /// Whether the guard was found lost.
    pub(crate) lost: bool,
    /// A release was sent, and its outcome is unknown.
    pub(crate) release_in_doubt: bool,
    /// The server may keep the item for longer than its holder relies on: the outcome of an
    /// extension is unknown.
    pub(crate) extension_in_doubt: bool,
    /// A release has failed: the drop does not try again.
    release_failed: bool,
    /// The ids of the queue entries, which are removed at the release.
    pub(crate) entry_ids: Vec<WaitId>,
}

/// A step that only the holder may take.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Release,
    Extend(Lease),
}

/// The outcome of a step.
pub(crate) enum Outcome<W> {
    /// The step was carried out. After a release: the waiters to wake, if any.
    Taken(Option<W>),
    /// The guard was no longer held. The waiters to wake, if they are known.
    Lost(Option<W>),
}

/// The parts of a guard that are specific to one primitive.
pub(crate) trait Kind: Sized + Send + Sync {
    /// What a release reads of the waiters.
    type Waiters;
    /// How an orphaned grant is reaped.
    const REAPER: &'static Reaper;
    /// The operations, for messages.
    const RELEASING: &'static str;
    const EXTENDING: &'static str;
    const CHECKING: &'static str;

    fn target(&self) -> &Target;
    fn target_mut(&mut self) -> &mut Target;
    /// The part of the subject that the holder has, for messages, such as `permit of the semaphore …`.
    fn what(&self, subject: &Subject) -> String {
        subject.to_string()
    }
    /// Adds fields to the debug output, after the key.
    fn debug(&self, debug: &mut fmt::DebugStruct<'_, '_>);

    /// Logs that the guard could not be released when it was dropped.
    fn drop_failed(&self, error: &Error);

    /// Takes a step, and resolves its outcome.
    fn resolve(guard: &mut LeaseGuard<Self>, step: Step) -> Result<Outcome<Self::Waiters>>;
    /// Hands off to a waiter of this process instead of releasing. `None` if there is no such
    /// waiter.
    fn hand_off(_guard: &mut LeaseGuard<Self>) -> Option<Result<Outcome<Self::Waiters>>> {
        None
    }
    /// The SQL statement that releases the guard in a transaction of the caller's: see
    /// [`LeaseGuard::release_sql`].
    fn release_sql(_guard: &mut LeaseGuard<Self>) -> Option<String> {
        None
    }
    /// Reads from the server whether this guard's token still holds the item.
    fn is_there(guard: &LeaseGuard<Self>) -> Result<bool>;
    /// Wakes the waiters whose turn has come by this release.
    fn wake_next(guard: &LeaseGuard<Self>, waiters: Self::Waiters);
    /// Removes this guard's entries from the queue, and wakes the next waiters. False if the server
    /// did not answer: the entries are then removed at a later contact.
    fn leave_the_queue(guard: &mut LeaseGuard<Self>) -> bool;
    /// Leaves these entries to be removed at a later contact.
    fn leave_behind(&self, ids: &[WaitId]);
    /// The time until which to look for what an earlier request may have left: of the acquisition,
    /// or one that puts the lock back.
    fn reap_until(&self) -> Option<Moment> {
        None
    }
}

#[expect(private_bounds, reason = "sealed, as the guard is")]
impl<K: Kind> LeaseGuard<K> {
    /// A guard that was granted by a request, whose lease counts from the time when the request was
    /// sent.
    pub(crate) fn new(kind: K, token: Token, lease: Lease, counted_from: Moment) -> LeaseGuard<K> {
        kind.target().context.begin_hold();
        LeaseGuard {
            server_until: kind.target().context.guarantees().gone(lease, kind.target().now()),
            kind,
            token,
            lease,
            deadline: lease.deadline(counted_from),
            process: fork::generation(),
            held: true,
            lost: false,
            release_in_doubt: false,
            extension_in_doubt: false,
            release_failed: false,
            entry_ids: Vec::new(),
        }
    }

    /// The name of the primitive, for humans; for a name beyond 200 bytes, the server's key.
    pub fn name(&self) -> String {
        self.kind.target().name()
    }

    /// The server, for humans, such as `memcached at 10.0.0.7:11211`.
    pub fn server(&self) -> String {
        self.kind.target().server()
    }

    /// A message about the outcome of a release or an extension: what it concerns, and why it was
    /// lost.
    pub fn report(&self, answer: impl Into<Answer>) -> Report {
        let state = || LeaseState {
            ours: self.process == fork::generation(),
            lease: self.lease.duration(),
            deadline: Some(self.deadline),
            now: self.kind.target().now(),
            loss: None,
        };
        ended(answer.into(), self.kind.target(), |subject| self.kind.what(subject), state)
    }

    /// The time for which the lock is guaranteed to be held, unless the server loses it; zero if it
    /// is not held. No I/O.
    pub fn remaining(&self) -> Duration {
        self.deadline().since(self.kind.target().now())
    }

    /// The time until which the lock is guaranteed to be held, on the boot clock; in the past if
    /// the lock is not held. No I/O.
    pub fn deadline(&self) -> Moment {
        let certain = self.is_ours_to_use() && !self.release_in_doubt;
        if certain { self.deadline } else { Moment::from_boot(Duration::ZERO) }
    }

    /// The time until which the lock is guaranteed to be held while an extension by `lease` is in
    /// progress: the server may have been stopped, and carries the extension out at any moment. No
    /// I/O.
    pub fn deadline_while_extending(&self, lease: Duration) -> Moment {
        let guarantees = self.kind.target().context.guarantees();
        let by_either = |lease| guarantees.kept_by_either(self.deadline(), self.lease, lease);
        Lease::new(lease).map_or(self.deadline(), by_either)
    }

    /// The token that identifies this acquisition on the server.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Reads from the server whether the lock is held. One round trip. Once the lease has ended,
    /// the answer is false, without a request: the lock must not be relied on any more, although
    /// releasing and extending it may still succeed.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) or
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol), as for any read.
    pub fn check(&self) -> Result<bool> {
        if self.remaining().is_zero() {
            return Ok(false);
        }
        let there = K::is_there(self);
        let there = there.map_err(|error| self.kind.target().said(K::CHECKING, error))?;
        Ok(there && !self.remaining().is_zero())
    }

    /// Releases the lock in one round trip; releases permits, all together, in one round trip, or
    /// in two if others have used the semaphore meanwhile. Repeating a release changes nothing. The
    /// server decides, also if the lease has ended: see [`Release::Released`].
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable): nothing was changed, the lock is
    /// still held, and the release can be repeated.
    /// [`ErrorKind::Unknown`](crate::ErrorKind::Unknown): the request was sent, and neither the
    /// reply nor the item could be read; the release can be repeated, too.
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol): the server refused the request or sent
    /// an invalid reply; the release can be repeated, too. If the guard is dropped instead, the
    /// lock is released at the next contact with the server, or ends with its lease.
    pub fn release(&mut self) -> Result<Release> {
        if !self.is_ours_to_use() {
            return Ok(if self.was_lost() { Release::Lost } else { Release::NotHeld });
        }
        let outcome = match K::hand_off(self) {
            Some(handed_off) => handed_off,
            None => K::resolve(self, Step::Release),
        };
        self.release_failed = outcome.is_err();
        let outcome = outcome.map_err(|error| self.kind.target().said(K::RELEASING, error))?;
        self.ends();
        let released = match &outcome {
            Outcome::Taken(_) => Release::Released,
            Outcome::Lost(_) => Release::Lost,
        };
        match outcome {
            Outcome::Taken(Some(waiters)) | Outcome::Lost(Some(waiters)) => {
                K::wake_next(self, waiters);
            }
            Outcome::Taken(None) => {}
            Outcome::Lost(None) => _ = K::leave_the_queue(self),
        }
        let target = self.kind.target();
        orphan::reap(target);
        self.remember_orphan();
        Ok(released)
    }

    /// The SQL statement that releases the lock as a part of the caller's own transaction, on the
    /// database that the lock is on. It changes one row if the lock was held, and none if it was
    /// lost: then roll back. From the statement to the end of the transaction no other holder can
    /// acquire the lock, whatever happens to its lease. No I/O.
    ///
    /// Afterwards the lock must not be relied on beyond the transaction: [`LeaseGuard::remaining`]
    /// is zero. When the transaction has ended, call [`LeaseGuard::release`]. After a commit it
    /// answers [`Release::Released`], and wakes the next waiter, which otherwise finds the lock free
    /// within about a second; after a rollback it releases the lock. To keep the lock after a
    /// rollback, call [`LeaseGuard::extend`] instead.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if the lock is not on a database, or the guard
    /// holds permits; [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if it holds nothing.
    pub fn release_sql(&mut self) -> Result<String> {
        let is_held = self.is_ours_to_use();
        match K::release_sql(self) {
            Some(statement) if is_held => {
                self.release_in_doubt = true;
                Ok(statement)
            }
            _ => Err(no_release_sql(self.kind.target(), K::RELEASING, is_held)),
        }
    }

    /// Replaces the lease by a new one, counted from now, if the server still has the lock for this
    /// guard: a lock in one round trip, permits in one or two. A fence does not change.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a lease out of range.
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable): nothing was changed, and the old
    /// lease still runs, unless an earlier release is carried out.
    /// [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) and
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol): the lease may or may not have been
    /// extended; rely on the shorter of the two leases, as [`LeaseGuard::remaining`] does.
    pub fn extend(&mut self, lease: Duration) -> Result<Extension> {
        let lease = self.kind.target().lease(K::EXTENDING, lease)?;
        if !self.is_ours_to_use() {
            return Ok(if self.was_lost() { Extension::Lost } else { Extension::NotHeld });
        }
        match K::resolve(self, Step::Extend(lease)) {
            Ok(Outcome::Taken(_)) => {
                self.release_failed = false;
                Ok(Extension::Extended)
            }
            Ok(Outcome::Lost(_)) => {
                self.lost = true;
                self.ends();
                K::leave_the_queue(self);
                self.remember_orphan();
                Ok(Extension::Lost)
            }
            Err(error) => {
                let error = if self.release_in_doubt { after_release(error) } else { error };
                Err(self.kind.target().said(K::EXTENDING, error))
            }
        }
    }

    /// Gives up the lock without waiting for the server: it is released at the client's next
    /// contact with the server, or ends with its lease. For use when a release failed and will not
    /// be repeated.
    pub fn abandon(mut self) {
        self.give_up();
    }

    /// Releases the lock as dropping does: a server that did not answer recently is not contacted,
    /// and a release that has failed before is not repeated. The guard holds nothing afterwards in
    /// any case.
    ///
    /// # Errors
    /// Why the lock was not released, or may not have been: it is released at the next contact with
    /// the server, or ends with its lease.
    pub fn let_go(&mut self) -> Result<Release> {
        if !self.is_ours_to_use() {
            return Ok(if self.was_lost() { Release::Lost } else { Release::NotHeld });
        }
        let tries = self.begin_drop();
        // After this time the server has removed the item.
        if self.may_last_until() <= self.kind.target().now() {
            K::leave_the_queue(self);
            self.ends();
            return Ok(Release::Lost);
        }
        let released =
            tries.and_then(|()| self.release().inspect_err(|error| self.kind.drop_failed(error)));
        self.give_up();
        released
    }

    /// If the guard still holds the lock, remembers it, to be released at a later contact.
    pub(crate) fn give_up(&mut self) {
        if self.is_ours_to_use() {
            self.ends();
            orphan::remember(self.kind.target(), K::REAPER, self.token, self.may_last_until());
        }
    }

    /// The time by which nothing of this guard is on the server any more.
    fn may_last_until(&self) -> Moment {
        self.kind.reap_until().map_or(self.server_until, |until| until.max(self.server_until))
    }

    /// Called before a drop: from now on, a silent server is not contacted.
    ///
    /// # Errors
    /// If the lock has to be left behind, because its server is silent now, or a release has failed
    /// before.
    pub(crate) fn begin_drop(&mut self) -> Result<()> {
        let target = self.kind.target_mut();
        *target = target.for_drop();
        let tries = match self.release_failed {
            true => Err(Error::new(
                ErrorKind::Unknown,
                "An earlier release failed, and it is not repeated when the lock is dropped.",
            )),
            false => target.skip_if_silent().map_err(|failure| failure.error),
        };
        tries.map_err(|error| self.kind.target().said(K::RELEASING, error))
    }

    /// Records that the guard is lost. `in_doubt`: the last request may have reached the server all
    /// the same. `ask`: whether the server may be contacted; otherwise the cleanup there is
    /// postponed. False if the server did not answer, or was not contacted.
    pub(crate) fn lose(&mut self, in_doubt: bool, ask: bool) -> bool {
        if in_doubt && self.is_ours_to_use() {
            orphan::remember(self.kind.target(), K::REAPER, self.token, self.may_last_until());
        } else if self.is_ours_to_use() {
            self.remember_orphan();
        }
        self.lost = true;
        self.ends();
        if ask {
            return K::leave_the_queue(self);
        }
        self.kind.leave_behind(&std::mem::take(&mut self.entry_ids));
        false
    }

    /// Remembers what an earlier request may still leave on the server.
    fn remember_orphan(&self) {
        if let Some(until) = self.kind.reap_until() {
            orphan::remember(self.kind.target(), K::REAPER, self.token, until);
        }
    }

    /// From now on the guard holds nothing.
    fn ends(&mut self) {
        if std::mem::take(&mut self.held) && self.process == fork::generation() {
            self.kind.target().context.end_hold();
        }
    }

    pub(crate) fn is_ours_to_use(&self) -> bool {
        self.held && (self.process == fork::generation() || mutation::has(Mutation::ChildrenHold))
    }

    fn was_lost(&self) -> bool {
        self.lost && self.process == fork::generation()
    }
}

/// The error of an extension after a release whose outcome is not known.
#[cold]
fn after_release(error: Error) -> Error {
    let kind = error.kind();
    error.told_as(kind, |why| {
        format!(
            "{why} An earlier release of it may still be carried out: if a transaction releases it, end \
             the transaction first."
        )
    })
}

/// Why there is no statement that releases.
pub(super) const NOTHING_TO_RELEASE: &str = "Nothing is held that a transaction could release.";

#[cold]
fn no_release_sql(target: &Target, releasing: &str, is_held: bool) -> Error {
    let error = if is_held {
        Error::config(
            "Only a lock on PostgreSQL or MySQL can be released in a transaction: release it after the \
             commit.",
        )
    } else {
        Error::invalid(NOTHING_TO_RELEASE)
    };
    target.said(releasing, error)
}

impl<K: Kind> Drop for LeaseGuard<K> {
    fn drop(&mut self) {
        let _ = self.let_go();
    }
}

impl<K: Kind> fmt::Debug for LeaseGuard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("LeaseGuard");
        debug.field("key", &self.kind.target().key);
        self.kind.debug(&mut debug);
        debug.finish_non_exhaustive()
    }
}
