//! Permits that are held: giving them back, extending, and what is known meanwhile.

use std::fmt;
use std::time::Duration;

use super::REAPER;
use super::local_waiters;
use super::operation::Wakes;
use super::operation::{Resolved, Step};
use super::snapshot::Seen;
use super::{Semaphore, leave};
use crate::cas_backoff::{ROUNDS, back_off};
use crate::clock::Moment;
use crate::error::{Answer, Error, ErrorKind, Result};
use crate::fork::{self, Call, call};
use crate::lease::{Lease, by_either};
use crate::mutation::{self, Mutation};
use crate::orphan;
use crate::outcome::{Extension, Release};
use crate::owner::Token;
use crate::report::{self, LeaseState, Report};
use crate::store::{Op, Reply};
use crate::target::Target;
use crate::wait::Waker;
use crate::wait::entries::WaitId;
use crate::wait::queue::Queue;

/// One or several permits of a semaphore that are held. Dropping it gives them back, as well as
/// that can be done; [`Permit::release`] tells how it went.
///
/// In a child made by `fork` it is dead: the child holds nothing, and neither releasing nor
/// dropping it there touches what the parent holds.
#[must_use = "the permits are given back as soon as the Permit is dropped"]
pub struct Permit {
    pub(super) semaphore: Semaphore,
    pub(super) token: Token,
    pub(super) permits: u32,
    /// Which semaphore by that name they are of.
    pub(super) of: Token,
    pub(super) deadline: Moment,
    /// The lease that the deadline is of: that of the last extension.
    pub(super) lease: Lease,
    /// When the server's clock has passed the end of it, whichever of the leases that were asked
    /// for counts.
    pub(super) server_until: Moment,
    pub(super) process: u64,
    pub(super) held: bool,
    /// Whether they were found lost.
    pub(super) lost: bool,
    /// Set when a release of ours was sent and its outcome is not known.
    pub(super) release_in_doubt: bool,
    /// The server may keep them for longer than the owner counts on them: it is not known what
    /// became of an extension.
    pub(super) extension_in_doubt: bool,
    /// The owner has tried to release them in vain: their drop does not try again.
    release_failed: bool,
    /// Under which ids we stood in the queue; they are taken off when we let go.
    pub(super) stood: Vec<WaitId>,
}

/// What was granted.
pub(super) struct Grant {
    pub(super) token: Token,
    pub(super) permits: u32,
    /// From when the lease counts.
    pub(super) counted_from: Moment,
    /// The token of the semaphore.
    pub(super) semaphore: Token,
}

impl Permit {
    pub(super) fn new(semaphore: Semaphore, grant: Grant) -> Permit {
        let Grant { token, permits, counted_from, semaphore: of } = grant;
        let lease = semaphore.lease;
        Permit {
            deadline: lease.deadline(counted_from),
            lease,
            server_until: lease.gone(semaphore.target.now()),
            semaphore,
            token,
            permits,
            of,
            process: fork::process(),
            held: true,
            lost: false,
            release_in_doubt: false,
            extension_in_doubt: false,
            release_failed: false,
            stood: Vec::new(),
        }
    }

    /// The semaphore's name, for people: of a name beyond 200 bytes the server's key.
    pub fn name(&self) -> String {
        self.semaphore.name()
    }

    /// Where it is, for people, such as `memcached at 10.0.0.7:11211`.
    pub fn server(&self) -> String {
        self.semaphore.server()
    }

    /// What releasing or extending answered, with a sentence that says of which semaphore, and why
    /// they were lost.
    pub fn report(&self, answer: impl Into<Answer>) -> Report {
        let state = || LeaseState {
            ours: self.process == fork::generation(),
            lease: self.lease.duration(),
            deadline: Some(self.deadline),
            now: self.semaphore.target.now(),
            loss: None,
        };
        let subject = self.semaphore.subject();
        match self.permits {
            1 => report::ended(answer.into(), format_args!("permit of the {subject}"), state),
            permits => report::ended(
                answer.into(),
                format_args!("hold on {permits} permits of the {subject}"),
                state,
            ),
        }
    }

    /// How many permits these are.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// The token by which the semaphore knows this acquisition.
    pub fn token(&self) -> Token {
        self.token
    }

    /// How long they are certainly ours yet, unless the server loses them; zero when they are not.
    /// No I/O.
    pub fn remaining(&self) -> Duration {
        self.deadline().since(self.semaphore.target.now())
    }

    /// Until when they are certainly ours, on the boot clock; past when they are not. No I/O.
    pub fn deadline(&self) -> Moment {
        let certain = self.is_ours_to_use() && !self.release_in_doubt;
        if certain { self.deadline } else { Moment::from_boot(Duration::ZERO) }
    }

    /// Until when they are certainly ours while an extension by this lease is under way: the server
    /// may have stood still, and carries it out at any moment. No I/O.
    pub fn deadline_while_extending(&self, lease: Duration) -> Moment {
        let by_either = |lease| by_either(self.deadline(), self.lease, lease);
        Lease::new(lease).map_or(self.deadline(), by_either)
    }

    /// Asks the server whether they are ours. One round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] or [`ErrorKind::Protocol`], as for any read.
    pub fn check(&self) -> Result<bool> {
        call(|| {
            if self.remaining().is_zero() {
                return Ok(false);
            }
            let there = self
                .semaphore
                .has_holder(self.token)
                .map_err(|error| self.said("Checking", error))?;
            Ok(there && !self.remaining().is_zero())
        })
    }

    /// Gives them back, all together, in one round trip, or two when others have used the semaphore
    /// meanwhile. To do so again changes nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`]: nothing was changed, they are still ours, and it may be tried
    /// again. [`ErrorKind::Unknown`]: sent, and neither the reply nor the semaphore could be read;
    /// it may be tried again too. When this is dropped instead, they are given back at the next
    /// contact with the server, or come back by themselves when the lease ends.
    pub fn release(&mut self) -> Result<Release> {
        call(|| {
            if !self.is_ours_to_use() {
                return Ok(if self.was_lost() { Release::Lost } else { Release::NotHeld });
            }
            let resolved = self.resolve(Step::Release);
            self.release_failed = resolved.is_err();
            let resolved = resolved.map_err(|error| self.said("Releasing", error))?;
            self.held = false;
            let released = match resolved {
                Resolved::Taken { wakes } => {
                    if let Some(wakes) = wakes {
                        self.wake_next(wakes);
                    }
                    Release::Released
                }
                Resolved::Lost => {
                    self.leave_the_line();
                    Release::Lost
                }
            };
            orphan::reap(&self.semaphore.target.context, self.semaphore.target.route);
            Ok(released)
        })
    }

    /// Gives them a new lease, counted from now, and only if they are still ours: in one or two
    /// round trips.
    ///
    /// # Errors
    /// As [`Lock::extend`](crate::Lock::extend).
    pub fn extend(&mut self, lease: Duration) -> Result<Extension> {
        call(|| {
            let lease = Lease::new(lease)?;
            if !self.is_ours_to_use() {
                return Ok(if self.was_lost() { Extension::Lost } else { Extension::NotHeld });
            }
            match self.resolve(Step::Extend(lease)) {
                Ok(Resolved::Taken { .. }) => {
                    self.release_failed = false;
                    Ok(Extension::Extended)
                }
                Ok(Resolved::Lost) => {
                    (self.held, self.lost) = (false, true);
                    self.leave_the_line();
                    Ok(Extension::Lost)
                }
                Err(error) => Err(self.said("Extending", error)),
            }
        })
    }

    /// Lets go without waiting for the server: they are given back at the client's next contact
    /// with it, or come back when the lease ends. For when releasing failed and nobody will try
    /// again.
    pub fn abandon(mut self) {
        if self.is_ours_to_use() {
            self.held = false;
            self.leave_behind();
        }
    }

    /// After a suspiciously slow grant: counts on no more than the server's clock leaves.
    pub(super) fn cap_deadline_by_ttl(&mut self) -> Result<()> {
        let seen = self.semaphore.look_closely()?;
        let now = || self.semaphore.target.now();
        self.believe(seen.map_or_else(now, |seen| seen.keeps_until(self.token)))
    }

    /// Counts on them no longer than that.
    pub(super) fn believe(&mut self, until: Moment) -> Result<()> {
        self.deadline = self.deadline.min(until);
        if self.remaining().is_zero() {
            return Err(Error::new(
                ErrorKind::Unreachable,
                "The server took longer to answer than the lease lasts; nothing is held. Ask for a longer lease.",
            ));
        }
        Ok(())
    }

    /// We stood in the queue under these ids. Where no bell was heard, they are taken off at once:
    /// they would be rung in vain, and as nobody handed on to us, there may be room for others too.
    /// The same is done where there are several ids: a waiter that is rung twice joins again while
    /// its earlier line still stands, and other holders, which release while we hold our permits,
    /// would ring that line.
    pub(super) fn stood_in_line(&mut self, ids: Vec<WaitId>, unrung: bool) {
        self.stood.extend(ids);
        if unrung || self.stood.len() > 1 {
            self.leave_the_line();
        }
    }

    /// Takes our entries off the queue, if there are any left, and rings those next for whom there
    /// is room. False if the server did not answer: then the entries are taken off at a later
    /// contact. Where another thread of this process is doing so, it does it for us, too.
    pub(super) fn leave_the_line(&mut self) -> bool {
        let stood = std::mem::take(&mut self.stood);
        leave::leave(&self.semaphore, stood)
    }

    /// Wakes the first waiters for whom there is room now.
    fn wake_next(&self, wakes: Wakes) {
        let Wakes { queue, capacity, freed, mut stood } = wakes;
        stood.extend(self.semaphore.combiner().leaving().ids());
        let target @ Target { context, key, .. } = &self.semaphore.target;
        let local = local_waiters(context);
        let at = Queue { target, key: &key.waiters() };
        let waker = Waker::new(target, local);
        let handed = queue.map(|queue| at.wake_several(queue, capacity, freed, &stood, &waker));
        let handed = handed.unwrap_or_default();
        local.released(key, handed, context.clock().now());
        if handed.stuck {
            local.leave_behind(key, &stood);
        }
    }

    pub(super) fn leave_behind(&self) {
        orphan::remember(&self.semaphore.target, &REAPER, self.token, self.server_until);
    }

    /// Releases as dropping does: see [`Lock::let_go`](crate::Lock::let_go).
    pub fn let_go(&mut self) -> Option<Release> {
        if !self.is_ours_to_use() {
            return Some(if self.was_lost() { Release::Lost } else { Release::NotHeld });
        }
        let _call = Call::begin();
        let tries = self.begin_drop();
        // Past that they have come back by themselves.
        if self.server_until <= self.semaphore.target.now() {
            self.leave_the_line();
            self.held = false;
            return Some(Release::Lost);
        }
        let released = if tries { self.release().map(Some) } else { Ok(None) };
        if let Err(error) = &released {
            log::warn!("Permits could not be released when they were dropped. {error}");
        }
        if std::mem::take(&mut self.held) {
            self.leave_behind();
        }
        released.ok().flatten()
    }

    /// As [`Lock::begin_drop`](crate::Lock).
    pub(crate) fn begin_drop(&mut self) -> bool {
        let Target { context, route, .. } = &mut self.semaphore.target;
        *context = context.for_drop();
        !self.release_failed && !context.skips(*route)
    }

    pub(super) fn is_ours_to_use(&self) -> bool {
        self.held && (self.process == fork::generation() || mutation::has(Mutation::ChildrenHold))
    }

    fn was_lost(&self) -> bool {
        self.lost && self.process == fork::generation()
    }

    fn said(&self, doing: &str, error: Error) -> Error {
        error.during(format_args!("{doing} {}", self.semaphore.target.key))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let _ = self.let_go();
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.semaphore.target.key;
        f.debug_struct("Permit")
            .field("key", key)
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

/// Tells the first waiters that permits may be available, for those that came back out of turn.
pub(super) fn wake_next(target: &Target) {
    let Target { context, key, .. } = target;
    let queue = Queue { target, key: &key.waiters() };
    let Ok(replies) = target.read(&[Op::Get { key }, Op::Get { key: queue.key }]) else {
        return;
    };
    let [item, Reply::Value(waiters)] = &replies[..] else { return };
    let capacity = match item {
        Reply::Value(item) => {
            let now = context.clock().now();
            Seen::read(key, item, now, now).map_or(0, |seen| seen.record.capacity(seen.now))
        }
        // Whoever comes finds out.
        _ => u32::MAX,
    };
    let waker = Waker::new(target, local_waiters(&target.context));
    queue.wake_several(waiters.clone(), capacity, capacity, &[], &waker);
}

/// Takes back the permits that this token holds, whatever else has changed. True when there were
/// any.
pub(super) fn reap(target: &Target, token: Token) -> Result<bool> {
    let (context, key) = (target.context.clone(), target.key.clone());
    let semaphore = Semaphore::new(context, key, None, Lease::new(crate::lease::MIN_LEASE)?)?;
    for round in 0..ROUNDS {
        let Some(mut seen) = semaphore.look()? else { return Ok(false) };
        if seen.record.held_by(token).is_none() {
            return Ok(false);
        }
        seen.record.give_back(token);
        if semaphore.write(seen).map_err(|failure| failure.error)?.done {
            return Ok(true);
        }
        back_off(&target.context, round)?;
    }
    Ok(false)
}
