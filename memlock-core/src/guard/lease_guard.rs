//! A guard: something that is held for a lease, its deadline, and what its holder may do with it.
//!
//! | a guard | what is true | what may change it |
//! | --- | --- | --- |
//! | held, before its deadline | this process holds it | its holder, by releasing or extending it |
//! | in doubt | a release or an extension was sent, and its outcome is not known: what the holder may rely on is the less of both | its holder, by doing it again; any call that meets the server, once it was dropped |
//! | past its deadline | it must not be relied on; the server drops it a little later | its holder, by extending it, if no other held it in between |
//! | lost | it was found to be gone, or another's | nothing |
//! | released | this guard holds nothing | nothing |
//!
//! A child made by `fork` holds nothing of its parent's, and its copy of a guard does nothing.

use std::fmt;
use std::time::Duration;

use super::orphan::{self, Reaper};
use super::outcome::{Extension, Release};
use super::sentences::{LeaseState, ended};
use crate::clock::Moment;
use crate::error::{Answer, Error, Result};
use crate::fork::{self, Call, call};
use crate::lease::Lease;
use crate::mutation::{self, Mutation};
use crate::owner::Token;
use crate::report::Report;
use crate::target::Target;
use crate::wait_id::WaitId;

/// How long a request may be under way, for the purpose of looking for what it left.
pub(crate) const LATEST_ARRIVAL: Duration = Duration::from_secs(10);

/// Something that is held for a lease: a [`Lock`](crate::Lock) or a [`Permit`](crate::Permit).
/// Dropping it releases it, as well as that can be done; [`LeaseGuard::release`] tells how it went.
///
/// In a child made by `fork` it is dead: the child holds nothing, and neither releasing nor
/// dropping it there touches what the parent holds.
#[must_use = "it is released as soon as it is dropped"]
#[expect(
    private_bounds,
    reason = "sealed: the primitives of this library have guards, and no others"
)]
pub struct LeaseGuard<K: Kind> {
    pub(crate) kind: K,
    pub(crate) token: Token,
    /// The lease that the deadline is of: that of the last extension.
    pub(crate) lease: Lease,
    pub(crate) deadline: Moment,
    /// When its item has expired by itself, whichever of the requested leases took effect.
    pub(crate) server_until: Moment,
    /// The process that acquired it.
    pub(crate) process: u64,
    pub(crate) held: bool,
    /// Whether it was found lost.
    pub(crate) lost: bool,
    /// A release was sent, and its outcome is not known.
    pub(crate) release_in_doubt: bool,
    /// The server may keep it for longer than its holder counts on it: it is not known what became
    /// of an extension.
    pub(crate) extension_in_doubt: bool,
    /// Its holder has tried to release it in vain: its drop does not try again.
    release_failed: bool,
    /// The ids of our queue entries, which are removed at the release.
    pub(crate) stood: Vec<WaitId>,
}

/// A step that only the holder may take.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Release,
    Extend(Lease),
}

/// The result of a step.
pub(crate) enum Outcome<W> {
    /// It was carried out. After a release: what is to be done for the waiters, if anything.
    Taken(Option<W>),
    /// It was not ours any more; and this is what is to be done for the waiters, if that is known.
    Lost(Option<W>),
}

/// What the guards of one primitive do in their own way.
pub(crate) trait Kind: Sized + Send + Sync {
    /// What a release learns of the waiters.
    type Waiters;
    /// How a grant is reaped whose reply was lost.
    const REAPER: &'static Reaper;
    /// What a sentence says that is being done.
    const RELEASING: &'static str;

    fn target(&self) -> &Target;
    fn target_mut(&mut self) -> &mut Target;
    /// What sentences are about.
    fn subject(&self) -> String;
    /// What it shows of itself beside its key.
    fn debug(&self, debug: &mut fmt::DebugStruct<'_, '_>);

    /// Logs that it could not be released when it was dropped.
    fn drop_failed(&self, error: &Error);

    /// Takes a step, and finds out its result.
    fn resolve(guard: &mut LeaseGuard<Self>, step: Step) -> Result<Outcome<Self::Waiters>>;
    /// Hands it to a waiter of this process, instead of releasing it. `None` when there is none.
    fn hand_off(_guard: &mut LeaseGuard<Self>) -> Option<Result<Outcome<Self::Waiters>>> {
        None
    }
    /// Asks the server whether it is ours.
    fn is_there(guard: &LeaseGuard<Self>) -> Result<bool>;
    /// Wakes those whose turn has come by our release.
    fn wake_next(guard: &LeaseGuard<Self>, waiters: Self::Waiters);
    /// Removes our entries from the queue, and wakes the next waiters. False if the server did not
    /// answer: then the entries are removed at a later contact.
    fn leave_the_queue(guard: &mut LeaseGuard<Self>) -> bool;
    /// These entries are to be removed at a later contact.
    fn leave_behind(&self, ids: &[WaitId]);
    /// Until when to look for what an earlier request of the acquisition may have left.
    fn reap_until(&self) -> Option<Moment> {
        None
    }
}

#[expect(private_bounds, reason = "sealed, as the guard is")]
impl<K: Kind> LeaseGuard<K> {
    /// It was granted by a request that left then, and counts from then on.
    pub(crate) fn new(kind: K, token: Token, lease: Lease, counted_from: Moment) -> LeaseGuard<K> {
        LeaseGuard {
            server_until: kind.target().context.guarantees().gone(lease, kind.target().now()),
            kind,
            token,
            lease,
            deadline: lease.deadline(counted_from),
            process: fork::process(),
            held: true,
            lost: false,
            release_in_doubt: false,
            extension_in_doubt: false,
            release_failed: false,
            stood: Vec::new(),
        }
    }

    /// The name of the primitive, for people: of a name beyond 200 bytes the server's key.
    pub fn name(&self) -> String {
        self.kind.target().name()
    }

    /// Where it is, for people, such as `memcached at 10.0.0.7:11211`.
    pub fn server(&self) -> String {
        self.kind.target().server()
    }

    /// What releasing or extending answered, with a sentence that says of what, and why it was
    /// lost.
    pub fn report(&self, answer: impl Into<Answer>) -> Report {
        let state = || LeaseState {
            ours: self.process == fork::generation(),
            lease: self.lease.duration(),
            deadline: Some(self.deadline),
            now: self.kind.target().now(),
            loss: None,
        };
        ended(answer.into(), || self.kind.subject(), state)
    }

    /// For how long it is certainly held yet, unless the server loses it; zero when it is not. No
    /// I/O.
    pub fn remaining(&self) -> Duration {
        self.deadline().since(self.kind.target().now())
    }

    /// Until when it is certainly held, on the boot clock; past when it is not. No I/O.
    pub fn deadline(&self) -> Moment {
        let certain = self.is_ours_to_use() && !self.release_in_doubt;
        if certain { self.deadline } else { Moment::from_boot(Duration::ZERO) }
    }

    /// Until when it is guaranteed to be held while an extension by this lease is under way: the
    /// server may have stood still, and carries it out at any moment. No I/O.
    pub fn deadline_while_extending(&self, lease: Duration) -> Moment {
        let guarantees = self.kind.target().context.guarantees();
        let by_either = |lease| guarantees.kept_by_either(self.deadline(), self.lease, lease);
        Lease::new(lease).map_or(self.deadline(), by_either)
    }

    /// The token by which the server knows this acquisition.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Asks the server whether it is held. One round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) or
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol), as for any read.
    pub fn check(&self) -> Result<bool> {
        call(|| {
            if self.remaining().is_zero() {
                return Ok(false);
            }
            let there = K::is_there(self);
            let there = there.map_err(|error| self.kind.target().said("Checking", error))?;
            Ok(there && !self.remaining().is_zero())
        })
    }

    /// Releases it: a lock in one round trip; permits, all together, in one, or in two when others
    /// have used the semaphore meanwhile. To do so again changes nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable): nothing was changed, it is still
    /// held, and releasing may be tried again. [`ErrorKind::Unknown`](crate::ErrorKind::Unknown):
    /// sent, and neither the reply nor the item could be read; it may be tried again too. When the
    /// guard is dropped instead, it is released at the next contact with the server, or ends with
    /// its lease.
    pub fn release(&mut self) -> Result<Release> {
        call(|| {
            if !self.is_ours_to_use() {
                return Ok(if self.was_lost() { Release::Lost } else { Release::NotHeld });
            }
            let outcome = match K::hand_off(self) {
                Some(handed_off) => handed_off,
                None => K::resolve(self, Step::Release),
            };
            self.release_failed = outcome.is_err();
            let outcome = outcome.map_err(|error| self.kind.target().said(K::RELEASING, error))?;
            self.held = false;
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
            orphan::reap(&target.context, target.route);
            if let Some(until) = self.kind.reap_until() {
                orphan::remember(target, K::REAPER, self.token, until);
            }
            Ok(released)
        })
    }

    /// Gives it a new lease, counted from now, and only if it is still held: a lock in one round
    /// trip, permits in one or two. A fence stays as it is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a lease out of range.
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable): nothing was changed, and the old
    /// lease runs on. [`ErrorKind::Unknown`](crate::ErrorKind::Unknown): it may or may not have
    /// been extended; count on the shorter of the two leases, as [`LeaseGuard::remaining`] does.
    pub fn extend(&mut self, lease: Duration) -> Result<Extension> {
        call(|| {
            let lease = Lease::new(lease)?;
            if !self.is_ours_to_use() {
                return Ok(if self.was_lost() { Extension::Lost } else { Extension::NotHeld });
            }
            match K::resolve(self, Step::Extend(lease)) {
                Ok(Outcome::Taken(_)) => {
                    self.release_failed = false;
                    Ok(Extension::Extended)
                }
                Ok(Outcome::Lost(_)) => {
                    (self.held, self.lost) = (false, true);
                    K::leave_the_queue(self);
                    Ok(Extension::Lost)
                }
                Err(error) => Err(self.kind.target().said("Extending", error)),
            }
        })
    }

    /// Gives it up without waiting for the server: it is released at the client's next contact with
    /// it, or ends with its lease. For when releasing failed and will not be tried again.
    pub fn abandon(mut self) {
        self.give_up();
    }

    /// Releases it as dropping does: a server that did not answer a short while ago is left alone.
    /// It is over in any case. `None` when it is not known how it went: it is released at the next
    /// contact with the server, or ends with its lease.
    pub fn let_go(&mut self) -> Option<Release> {
        if !self.is_ours_to_use() {
            return Some(if self.was_lost() { Release::Lost } else { Release::NotHeld });
        }
        let _call = Call::begin();
        let tries = self.begin_drop();
        // Past that the server has removed it.
        if self.server_until <= self.kind.target().now() {
            K::leave_the_queue(self);
            self.held = false;
            return Some(Release::Lost);
        }
        let released = if tries { self.release().map(Some) } else { Ok(None) };
        if let Err(error) = &released {
            self.kind.drop_failed(error);
        }
        self.give_up();
        released.ok().flatten()
    }

    /// What is held yet is remembered, to be released at a later contact.
    pub(crate) fn give_up(&mut self) {
        if self.is_ours_to_use() {
            self.held = false;
            orphan::remember(self.kind.target(), K::REAPER, self.token, self.server_until);
        }
    }

    /// To be called by what drops it: from now on, a server that is silent is left alone. False if
    /// it is to be left behind, because its server is silent now, or its holder has tried to
    /// release it in vain.
    pub(crate) fn begin_drop(&mut self) -> bool {
        let target = self.kind.target_mut();
        target.context = target.context.for_drop();
        !self.release_failed && !target.context.skips(target.route)
    }

    /// It is not ours any more. `in_doubt`: what was sent last may have reached the server all the
    /// same. `ask`: whether the server is to be asked for anything; what is to be done there is
    /// otherwise put off. False if it did not answer.
    pub(crate) fn lose(&mut self, in_doubt: bool, ask: bool) -> bool {
        if in_doubt && self.is_ours_to_use() {
            orphan::remember(self.kind.target(), K::REAPER, self.token, self.server_until);
        }
        (self.held, self.lost) = (false, true);
        if ask {
            return K::leave_the_queue(self);
        }
        self.kind.leave_behind(&std::mem::take(&mut self.stood));
        false
    }

    pub(crate) fn is_ours_to_use(&self) -> bool {
        self.held && (self.process == fork::generation() || mutation::has(Mutation::ChildrenHold))
    }

    fn was_lost(&self) -> bool {
        self.lost && self.process == fork::generation()
    }
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
