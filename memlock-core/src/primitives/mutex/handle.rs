//! The handle of a mutex: acquiring it, and inspecting its holder.

use std::cell::Cell;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::context::Context;
use crate::error::{Answer, Error, ErrorKind, Result};
use crate::guard::orphan;
use crate::lease::Lease;
use crate::name::{Key, hex};
use crate::owner::OwnerRecord;
use crate::primitives::first_try;
use crate::report::{self, ObservedHolder, Report};
use crate::store::{Op, Recovery, Reply, Version};
use crate::subject::Subject;
use crate::target::Target;
use crate::wait::{Wait, Waited};
use crate::waiters::{self, Waiter};

use super::acquisition::Acquisition;
use super::lock::{KIND, Lock};
use super::step::ROUNDS;
use super::wake::{REAPER, local_waiters, wake_next};

/// A mutex, identified by its name. The handle can be used from any number of threads at once. Each
/// call to `lock` competes with all others, in this process and elsewhere. The mutex is not
/// re-entrant.
#[derive(Clone, Debug)]
pub struct Mutex {
    target: Target,
    lease: Lease,
}

impl Mutex {
    pub(crate) fn new(context: Context, key: Key, lease: Duration) -> Result<Mutex> {
        let target = Target::new(context, KIND, key);
        Ok(Mutex { lease: target.lease("Opening", lease)?, target })
    }

    /// Acquires the mutex, waiting as long as necessary.
    ///
    /// # Errors
    /// See [`Mutex::lock_with`]; and [`ErrorKind::Interrupted`] if
    /// [`Client::cancel_waits`](crate::Client::cancel_waits) ended the wait.
    pub fn lock(&self) -> Result<Lock> {
        let locked = self.lock_or_report(&Wait::FOREVER)?;
        locked.map_err(|report| report.into_error(ErrorKind::Interrupted))
    }

    /// Tries once to acquire the mutex; `None` if it has another holder, or if the server gives no
    /// new locks yet ([`Waited::Recovering`]). One round trip.
    ///
    /// # Errors
    /// See [`Mutex::lock_with`].
    pub fn try_lock(&self) -> Result<Option<Lock>> {
        Ok(self.lock_with(&Wait::NEVER)?.done())
    }

    /// Waits at most `limit`; `None` if the limit has passed.
    ///
    /// # Errors
    /// See [`Mutex::lock_with`].
    pub fn lock_for(&self, limit: Duration) -> Result<Option<Lock>> {
        Ok(self.lock_with(&Wait::at_most(limit))?.done())
    }

    /// Waits as specified by `wait`. A free lock is acquired in one round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if the server cannot be reached at the first attempt, unless it
    /// takes no more connections, or, while waiting, for longer than 5 seconds; with `outage` in
    /// the URL, or [`Wait::through_outages`], if it cannot be reached for that long, the first
    /// attempt included. Nothing is held. [`ErrorKind::Unknown`] if a request was sent and neither
    /// its reply nor the item could be read; a lock that was granted nevertheless is removed at the
    /// next contact, or ends with its lease. [`ErrorKind::Protocol`] if the server is too old, runs
    /// without cas, or sends an invalid reply.
    pub fn lock_with(&self, wait: &Wait<'_>) -> Result<Waited<Lock>> {
        self.acquire(wait, &Cell::default())
    }

    /// As [`Mutex::lock_with`]. If the mutex is not acquired, the report names the lock, the
    /// server, and the holder that was seen.
    ///
    /// # Errors
    /// As [`Mutex::lock_with`].
    pub fn lock_or_report(&self, wait: &Wait<'_>) -> Result<std::result::Result<Lock, Report>> {
        let holder = Cell::default();
        match self.acquire(wait, &holder) {
            Ok(Waited::Done(lock)) => Ok(Ok(lock)),
            Ok(Waited::Busy) => Ok(Err(self.refused(Answer::Busy, wait, holder))),
            Ok(Waited::TimedOut) => Ok(Err(self.refused(Answer::TimedOut, wait, holder))),
            Ok(Waited::Interrupted) => Ok(Err(self.refused(Answer::Interrupted, wait, holder))),
            Ok(Waited::Recovering) => Ok(Err(report::recovering(&self.target))),
            Err(error) => Err(error),
        }
    }

    fn refused(&self, answer: Answer, wait: &Wait<'_>, holder: Cell<ObservedHolder>) -> Report {
        let subject = self.subject();
        let wanted = format_args!("the {subject}");
        let busy = || format!("The {subject} is held by another holder");
        report::refused(&subject, answer, wait.limit(), wanted, busy, &holder.take())
    }

    /// The mutex's name, for people; the server's key if the name has more than 200 bytes.
    pub fn name(&self) -> String {
        self.target.name()
    }

    /// The mutex's server, for people, such as `memcached at 10.0.0.7:11211`.
    pub fn server(&self) -> String {
        self.target.server()
    }

    /// If the server gives no new locks yet, for how long: until then a mutex without a holder may be
    /// held all the same. As far as known: no I/O.
    pub fn recovery(&self) -> Option<Recovery> {
        self.target.context.recovery(self.target.route)
    }

    /// Reports that `owner` holds the mutex: [`Answer::Busy`] with a sentence.
    pub fn report_held_by(&self, owner: &Owner) -> Report {
        let holder = match &owner.record {
            Some(OwnerRecord { host, pid, .. }) => {
                ObservedHolder::Memlock { host: host.clone(), pid: *pid, others: 0 }
            }
            None => ObservedHolder::Foreign,
        };
        Report::naming(self.subject(), Answer::Busy, |subject| {
            format!("The {subject} is held by another holder{holder}.")
        })
    }

    /// Reports that the mutex has no holder, or not the named one: [`Answer::NotHeld`] with a
    /// sentence.
    pub fn report_not_held(&self) -> Report {
        Report::naming(self.subject(), Answer::NotHeld, |subject| {
            format!("The {subject} is not held, or not by the holder that was named.")
        })
    }

    fn said(&self, doing: &str, error: Error) -> Error {
        self.target.said(doing, error)
    }

    /// The mutex, as errors and reports name it.
    pub fn subject(&self) -> Subject {
        self.target.subject()
    }

    /// `holder` is set to the holder that was seen, if any.
    fn acquire(&self, wait: &Wait<'_>, holder: &Cell<ObservedHolder>) -> Result<Waited<Lock>> {
        let once = wait.is_once().then(|| self.target.for_try());
        let target = once.as_ref().unwrap_or(&self.target);
        let mut acquisition = Acquisition::new(target, self.lease, holder)?;
        let local = local_waiters(&self.target.context);
        let mut waited = first_try::acquire(&mut acquisition, wait, target, local);
        if let (Some(_), Ok(Waited::Done(lock))) = (&once, &mut waited) {
            lock.kind.target = self.target.clone();
        }
        // Another thread may have handed the lock off, by another token.
        let by_this_token =
            matches!(&waited, Ok(Waited::Done(lock)) if lock.token() == acquisition.token());
        if let Some(until) = acquisition.orphan_until()
            && !by_this_token
        {
            orphan::remember(&self.target, &REAPER, acquisition.token(), until);
        }
        // A request without a reply may still be granted, so the error must not say that
        // nothing was changed.
        waited.map_err(|error| match error.kind() {
            ErrorKind::Unreachable if acquisition.may_have_left_something() => {
                self.said("Locking", Error::unresolved(Some(error), "lock"))
            }
            _ => self.said("Locking", error),
        })
    }

    /// The holder, if there is one. The result is already outdated when it returns: it is for
    /// people, not for decisions.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] or [`ErrorKind::Protocol`], as for any read.
    pub fn owner(&self) -> Result<Option<Owner>> {
        Ok(self.inspect()?.map(|(owner, _)| owner))
    }

    /// Takes the lock away from the holder that [`Owner::token`] identifies: for operators who know
    /// that the holder is dead. False if that acquisition does not hold the lock any more; a later
    /// holder is never affected. The old holder finds its lock lost.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], [`ErrorKind::Unknown`] or [`ErrorKind::Protocol`].
    pub fn force_unlock(&self, token: &str) -> Result<bool> {
        for _ in 0..ROUNDS {
            let Some((owner, version)) = self.inspect()? else { return Ok(false) };
            if owner.token() != token {
                return Ok(false);
            }
            match self.target.one(Op::Delete { key: &self.target.key, version }) {
                Ok(Reply::Deleted) => {
                    wake_next(&self.target);
                    return Ok(true);
                }
                Ok(Reply::Missing) => return Ok(false),
                Ok(_) => {}
                Err(failure) => return Err(self.said("Unlocking by force", failure.error)),
            }
        }
        let error = Error::new(ErrorKind::Unknown, "It changes too fast to be taken off.");
        Err(self.said("Unlocking by force", error))
    }

    /// The waiters, the next one first: one for each process, however many of its threads wait. The
    /// result is already outdated when it returns. One round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] or [`ErrorKind::Protocol`], as for any read.
    pub fn waiters(&self) -> Result<Vec<Waiter>> {
        waiters::waiters(&self.target)
            .map_err(|error| self.said("Looking at the waiters for", error))
    }

    /// Checks that waiters can queue, by an entry that is removed again. Waiters themselves poll where
    /// the server does not store their queue, and do not report why. For tools: the mutex should be
    /// one that no other program uses.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], [`ErrorKind::Unknown`] or [`ErrorKind::Protocol`]: why the queue
    /// was not stored.
    #[cfg(feature = "admin")]
    pub fn check_queue(&self) -> Result<()> {
        waiters::check_queue(&self.target)
            .map_err(|error| self.said("Storing the queue of waiters for", error))
    }

    fn inspect(&self) -> Result<Option<(Owner, Version)>> {
        let replies = self.target.read(&[Op::Get { key: &self.target.key, fence: true }]);
        let mut replies = replies.map_err(|error| self.said("Looking at", error))?.into_iter();
        let Some(Reply::Value(item)) = replies.next() else { return Ok(None) };
        let record = OwnerRecord::parse(&item.value);
        let token = match &record {
            Some(record) => record.token.to_string(),
            // Plain clients often write the same value each time; the version tells their locks
            // apart.
            None => {
                format!(
                    "plain:{}:{}",
                    item.version.number(),
                    &hex(&Sha256::digest(&item.value))[..32]
                )
            }
        };
        let owner = Owner {
            record,
            value: item.value,
            remaining: item.remaining,
            newest_fence: item.fence,
            token,
        };
        Ok(Some((owner, item.version)))
    }
}

/// The holder of a mutex at the time of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Owner {
    /// The record that memlock wrote; `None` if the holder does not use memlock.
    pub record: Option<OwnerRecord>,
    /// The item's unparsed value.
    pub value: Vec<u8>,
    /// How much longer the server stores the item, in its whole seconds; `None`: forever.
    pub remaining: Option<Duration>,
    /// No holder so far has a greater fence. If the server's versions increase by themselves, this
    /// is the fence of the last write to the item: of the holder's acquisition, of a renewal, or of
    /// a waiter's mark.
    pub newest_fence: u64,
    token: String,
}

impl Owner {
    /// Identifies this acquisition, for [`Mutex::force_unlock`].
    pub fn token(&self) -> String {
        self.token.clone()
    }
}
