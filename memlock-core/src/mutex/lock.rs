//! A mutex that is held: releasing, extending, and what is known meanwhile.

use std::fmt;
use std::time::Duration;

use super::reserve::{self, Reserver};
use super::resolve::{Outcome, Step};
use super::wake_next;
use super::{REAPER, local_waiters};
use crate::clock::Moment;
use crate::error::{Answer, Error, Result};
use crate::fork::{self, Call, call};
use crate::lease::{Lease, by_either};
use crate::mutation::{self, Mutation};
use crate::notify::{Successors, WakeMessage};
use crate::orphan;
use crate::outcome::{Extension, Release};
use crate::owner::{Token, is_ours};
use crate::report::{self, LeaseState, Report, Subject};
use crate::store::{Item, Op, Reply, Version};
use crate::target::Target;
use crate::wait::entries::WaitId;
use crate::wait::local::MOMENT;
use crate::wait::queue::{Capacity, Queue};
use crate::wait::{QueueReceipt, Waker};

/// For how long waiters are woken ahead, as they were told by one that read the queue.
const AHEAD: Duration = Duration::from_secs(1);

/// A mutex that is held. Dropping it unlocks, as well as that can be done; [`Lock::unlock`] tells
/// how it went.
///
/// In a child made by `fork` it is dead: the child holds nothing, and neither unlocking nor
/// dropping it there touches the parent's lock.
#[must_use = "the mutex is unlocked as soon as the Lock is dropped"]
pub struct Lock {
    pub(super) target: Target,
    pub(super) token: Token,
    pub(super) value: Vec<u8>,
    pub(super) version: Version,
    pub(super) fence: u64,
    pub(super) deadline: Moment,
    /// When the server has let go of it by itself, whichever of the leases that were asked for it
    /// took.
    pub(super) server_until: Moment,
    pub(super) process: u64,
    pub(super) held: bool,
    /// Whether it was found lost.
    pub(super) lost: bool,
    /// Set when a release of ours was sent and its outcome is not known.
    pub(super) release_in_doubt: bool,
    /// The server may keep it for longer than the owner counts on it: it is not known what became
    /// of an extension.
    pub(super) extension_in_doubt: bool,
    /// The owner has tried to release it in vain: its drop does not try again.
    release_failed: bool,
    /// Set when a request of ours may still be under way: until when to look for what it may have
    /// left.
    pub(super) orphan: Option<Moment>,
    /// The lease that the deadline is of: that of the last extension.
    pub(super) lease: Lease,
    /// Others may be waiting: our record says that we ring, so the queue is looked at when we let
    /// go.
    pub(super) notifies: bool,
    /// Under which ids we stood in the queue; they are taken off when we let go.
    pub(super) stood: Vec<WaitId>,
    /// No bell was heard, so that one of them should still be there.
    unrung: bool,
    /// Who stood behind us.
    pub(super) successors: Successors,
    /// Whom of them we rang ahead.
    pub(super) woken_ahead: Option<WaitId>,
    pub(super) tenure: Tenure,
}

/// This process's turn: from when it got the mutex until another one gets it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tenure {
    pub(super) began: Moment,
    /// How often it was handed over within the process.
    pub(super) handoffs: u32,
}

/// What was granted.
pub(super) struct Grant {
    pub(super) target: Target,
    pub(super) token: Token,
    pub(super) value: Vec<u8>,
    pub(super) notifies: bool,
    pub(super) version: Version,
    pub(super) fence: u64,
    pub(super) lease: Lease,
    /// When the request left that was granted.
    pub(super) sent: Moment,
    pub(super) orphan: Option<Moment>,
    pub(super) tenure: Tenure,
}

impl Lock {
    pub(super) fn new(grant: Grant) -> Lock {
        let Grant { target, token, value, notifies, version, fence, lease, sent, orphan, tenure } =
            grant;
        let server_until = lease.gone(target.now());
        Lock {
            target,
            token,
            value,
            version,
            fence,
            deadline: lease.deadline(sent),
            server_until,
            process: fork::process(),
            held: true,
            lost: false,
            release_in_doubt: false,
            extension_in_doubt: false,
            release_failed: false,
            orphan,
            lease,
            notifies,
            stood: Vec::new(),
            unrung: false,
            successors: Successors::default(),
            woken_ahead: None,
            tenure,
        }
    }

    pub(super) fn stood_in_line(&mut self, stood: QueueReceipt) {
        self.stood.extend(stood.ids);
        self.unrung = stood.unrung;
        if stood.successors != Successors::default() {
            self.successors = stood.successors;
        }
    }

    /// The fencing token: greater than that of every earlier holder of this mutex. Hand it to the
    /// resource, which refuses anything below the greatest it has seen; then even a holder that
    /// overslept its lease does no harm.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// The mutex's name, for people: of a name beyond 200 bytes the server's key.
    pub fn name(&self) -> String {
        self.target.name()
    }

    /// Where it is, for people, such as `memcached at 10.0.0.7:11211`.
    pub fn server(&self) -> String {
        self.target.server()
    }

    /// What unlocking or extending answered, with a sentence that says which lock, and why it was
    /// lost.
    pub fn report(&self, answer: impl Into<Answer>) -> Report {
        let subject = Subject { kind: super::KIND, target: &self.target };
        let state = || LeaseState {
            ours: self.process == fork::generation(),
            lease: self.lease.duration(),
            deadline: Some(self.deadline),
            now: self.target.now(),
            loss: None,
        };
        report::ended(answer.into(), subject, state)
    }

    /// How long the lock is certainly ours yet, unless the server loses it; zero when it is not. No
    /// I/O.
    pub fn remaining(&self) -> Duration {
        self.deadline().since(self.target.now())
    }

    /// Until when it is certainly ours, on the boot clock; past when it is not. No I/O.
    pub fn deadline(&self) -> Moment {
        let certain = self.is_ours_to_use() && !self.release_in_doubt;
        if certain { self.deadline } else { Moment::from_boot(Duration::ZERO) }
    }

    /// Until when it is certainly ours while an extension by this lease is under way: the server
    /// may have stood still, and carries it out at any moment. No I/O.
    pub fn deadline_while_extending(&self, lease: Duration) -> Moment {
        let by_either = |lease| by_either(self.deadline(), self.lease, lease);
        Lease::new(lease).map_or(self.deadline(), by_either)
    }

    /// The token by which the item carries our ownership.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Asks the server whether it is ours. One round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) or
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol), as for any read.
    pub fn check(&self) -> Result<bool> {
        call(|| {
            if self.remaining().is_zero() {
                return Ok(false);
            }
            let item = self.target.get().map_err(|error| self.said("Checking", error))?;
            Ok(item.is_some_and(|item| is_ours(&item.value, self.token))
                && !self.remaining().is_zero())
        })
    }

    /// Unlocks, in one round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable): nothing was changed, the lock is
    /// still ours, and unlocking may be tried again.
    /// [`ErrorKind::Unknown`](crate::ErrorKind::Unknown): sent, and neither the reply nor the item
    /// could be read; it may be tried again too. When the handle is dropped instead, the lock is
    /// taken off at the next contact with the server, or ends with its lease.
    pub fn unlock(&mut self) -> Result<Release> {
        call(|| {
            if !self.is_ours_to_use() {
                return Ok(if self.was_lost() { Release::Lost } else { Release::NotHeld });
            }
            let handed_off = self.hand_off();
            let resolved = match handed_off {
                Some(resolved) => resolved,
                None => self.resolve(Step::Release),
            };
            self.release_failed = resolved.is_err();
            let resolved = resolved.map_err(|error| self.said("Unlocking", error))?;
            self.held = false;
            if let Outcome::Taken(queue) | Outcome::Lost(queue) = &resolved
                && let Some(queue) = queue
            {
                self.wake_next(queue);
            } else if matches!(resolved, Outcome::Lost(_)) {
                self.leave_the_line();
            }
            orphan::reap(&self.target.context, self.target.route);
            if let Some(until) = self.orphan {
                orphan::remember(&self.target, &REAPER, self.token, until);
            }
            Ok(if matches!(resolved, Outcome::Lost(_)) { Release::Lost } else { Release::Released })
        })
    }

    /// Rings the next one as far as we know, while our release is on its way: it wakes up
    /// meanwhile. Whether it was the right one will be seen afterwards. Who held it for a moment
    /// only may want it for a while yet.
    pub(super) fn wake_ahead(&self) -> Option<WaitId> {
        let Target { context, key, .. } = &self.target;
        let held = context.clock().now().since(self.tenure.began);
        if self.woken_ahead.is_some() || held < MOMENT {
            return self.woken_ahead;
        }
        let (address, id, successors) = self.successors.split()?;
        let message = WakeMessage { successors, ..WakeMessage::default() };
        let rung = local_waiters(context).wake(key, id, Duration::ZERO)
            || context.notifier().send(address, id, message);
        rung.then_some(id)
    }

    /// Nobody has it any more: rings the next one who waits for it, unless it was called already.
    fn wake_next(&self, item: &Item) {
        let target @ Target { context, key, .. } = &self.target;
        let local = local_waiters(context);
        let now = context.clock().now();
        // Only one that stood in line for it may go on without standing there again.
        let stood = !self.stood.is_empty();
        let tenure = if stood {
            local.batch_window(key, now, now.since(self.tenure.began))
        } else {
            Duration::ZERO
        };
        let queue = Queue { target, key: &key.waiters() };
        // Those that are woken ahead come before whoever joined in front meanwhile: not for long.
        let held = now.since(self.tenure.began);
        let told = AHEAD.as_micros() / held.as_micros().max(1);
        let told = usize::try_from(told).unwrap_or(usize::MAX).max(1);
        let waker = Waker {
            after: tenure,
            told,
            held,
            woken_ahead: self.woken_ahead,
            ..reserve::waker(target)
        };
        let handed = queue.wake_next(item.clone(), Capacity::MUTEX, &self.stood, &waker);
        local.released(key, handed, context.clock().now());
        if handed.stuck {
            local.leave_behind(key, &self.stood);
        }
        if self.unrung && !handed.ours {
            context.notifier().may_have_missed();
        }
    }

    /// It was lost, and none of those who wait was told: takes our entries off the queue, if there
    /// are any left, and rings the next one if nobody has it. False if the server did not answer:
    /// then the entries are taken off at a later contact.
    pub(super) fn leave_the_line(&mut self) -> bool {
        let stood = std::mem::take(&mut self.stood);
        let target @ Target { context, key, .. } = &self.target;
        let queue = Queue { target, key: &key.waiters() };
        match queue.leave(&stood, Op::Get { key }) {
            Ok(seen) => {
                let free = match seen {
                    Some(Reply::Missing) => true,
                    Some(Reply::Value(item)) => Reserver { target }.withdraw_if(&item, &stood),
                    _ => false,
                };
                if free {
                    wake_next(target);
                }
                true
            }
            Err(failure) => {
                log::debug!("The queue could not be left: {}", failure.error);
                local_waiters(context).leave_behind(key, &stood);
                false
            }
        }
    }

    /// Gives it a new lease, counted from now: in one round trip, and only if it is still ours. The
    /// fence stays as it is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a lease out of range.
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable): nothing was changed, and the old
    /// lease runs on. [`ErrorKind::Unknown`](crate::ErrorKind::Unknown): it may or may not have
    /// been extended; count on the shorter of the two leases, as [`Lock::remaining`] does.
    pub fn extend(&mut self, lease: Duration) -> Result<Extension> {
        call(|| {
            let lease = Lease::new(lease)?;
            if !self.is_ours_to_use() {
                return Ok(if self.was_lost() { Extension::Lost } else { Extension::NotHeld });
            }
            match self.resolve(Step::Extend(lease)) {
                Ok(Outcome::Taken(_) | Outcome::HandedOff { .. }) => {
                    self.release_failed = false;
                    Ok(Extension::Extended)
                }
                Ok(Outcome::Lost(_)) => {
                    (self.held, self.lost) = (false, true);
                    self.leave_the_line();
                    Ok(Extension::Lost)
                }
                Err(error) => Err(self.said("Extending", error)),
            }
        })
    }

    /// Lets go without waiting for the server: the lock is taken off at the client's next contact
    /// with it, or ends with its lease. For when unlocking failed and nobody will try again.
    pub fn abandon(mut self) {
        if self.is_ours_to_use() {
            self.held = false;
            orphan::remember(&self.target, &REAPER, self.token, self.server_until);
        }
    }

    /// Unlocks as dropping does: a server that did not answer a short while ago is left alone, and
    /// the lock with it. It is over in any case. `None` when it is not known how it went: the lock
    /// is taken off at the next contact with the server, or ends with its lease.
    pub fn let_go(&mut self) -> Option<Release> {
        if !self.is_ours_to_use() {
            return Some(if self.was_lost() { Release::Lost } else { Release::NotHeld });
        }
        let _call = Call::begin();
        let tries = self.begin_drop();
        // Past that the server has removed it.
        if self.server_until <= self.target.now() {
            self.leave_the_line();
            self.held = false;
            return Some(Release::Lost);
        }
        let released = if tries { self.unlock().map(Some) } else { Ok(None) };
        if let Err(error) = &released {
            log::warn!("A lock could not be released when it was dropped. {error}");
        }
        if std::mem::take(&mut self.held) {
            orphan::remember(&self.target, &REAPER, self.token, self.server_until);
        }
        released.ok().flatten()
    }

    /// To be called by what drops it: from now on, a server that is silent is left alone. False if
    /// the lock is to be left behind, because its server is silent now, or the owner has tried to
    /// release it in vain.
    pub(crate) fn begin_drop(&mut self) -> bool {
        self.target.context = self.target.context.for_drop();
        !self.release_failed && !self.target.context.skips(self.target.route)
    }

    pub(super) fn is_ours_to_use(&self) -> bool {
        self.held && (self.process == fork::generation() || mutation::has(Mutation::ChildrenHold))
    }

    fn was_lost(&self) -> bool {
        self.lost && self.process == fork::generation()
    }

    fn said(&self, doing: &str, error: Error) -> Error {
        self.target.said(doing, error)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = self.let_go();
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("key", &self.target.key)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}
