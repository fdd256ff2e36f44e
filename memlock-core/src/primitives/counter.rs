//! The plain counter: one item that holds the number of free permits in decimal, for use together
//! with programs that already store such a number.
//!
//! **It has no leases.** The item contains the number of free permits, and nothing about the
//! holders of the others: permits of a program that dies are lost until the item is written anew,
//! and a client that releases twice adds a permit. A lost reply cannot be resolved either: the
//! outcome is reported as *unknown*. Use a [`Semaphore`](crate::Semaphore) wherever you have the
//! choice.
//!
//! | operation | steps |
//! | --- | --- |
//! | [`Counter::try_acquire`] | reads N, and writes N-1 over that version if N is not 0; again if another client was faster |
//! | [`Counter::acquire_retrying`] | the same until it succeeds or the limit has passed, with pauses that grow from 1 to 50 ms |
//! | [`Counter::acquire_parked`] | the same, waiting in a queue by priority; a release through memlock wakes the next waiter |
//! | [`Counter::release`] | adds 1, by the server's own `incr` |
//!
//! All these operations, and plain clients that use `gets` and `cas`, may use one item at the same
//! time. Any client may create the item; its flags (by which clients note a value's type) and its
//! expiry are preserved. A plain client that releases wakes no waiter: parked waiters read the item
//! every 0.15 to 1 second. If a plain client swaps while other clients count, memcached
//! occasionally loses a count: `gets` may return the previous number with the next version.
//! memlock's own reads are performed under the item's lock.
//!
//! Such counters, tried once, retried, or with threads parked by priority, are a well-known recipe
//! of the years after 2010. What the recipe lacked is parking that works between processes.

use crate::cas_backoff::{ROUNDS, back_off};
use crate::context::Context;
use crate::error::{Answer, Error, ErrorKind, Result};
use crate::name::Key;
use crate::primitives::first_try;
use crate::report::{self, ObservedHolder, Report};
use crate::store::{Expiry, Item, Op, Reply, Returns};
use crate::subject::Subject;
use crate::target::Target;
use crate::wait::entries::Request;
use crate::wait::local::LocalWaiters;
use crate::wait::policy::TargetState;
use crate::wait::queue::{Capacity, Queue};
use crate::wait::{Acquire, QueueReceipt, Wait, Waited, Waker, poll};
use crate::wait_id::WaitId;

/// The error of a release of which the server may have carried out a part: the queue may have been
/// what it refused.
#[cold]
fn in_doubt(error: Error) -> Error {
    error.told_as(ErrorKind::Unknown, |why| format!("Whether it was released is not known: {why}"))
}

/// A counter, identified by its item's key. The handle can be used from any number of threads at
/// once.
#[derive(Clone, Debug)]
pub struct Counter {
    target: Target,
}

/// The threads of this process that are parked at counters.
fn local_waiters(context: &Context) -> &LocalWaiters<(), ()> {
    context.extension(LocalWaiters::default)
}

impl Counter {
    pub(crate) fn new(context: Context, key: Key) -> Counter {
        Counter { target: Target::new(context, "counter", key) }
    }

    /// Creates the item with this number of free permits, to be stored forever. False if the item
    /// exists already, which is left unchanged.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], [`ErrorKind::Unknown`] or [`ErrorKind::Protocol`].
    pub fn set_up(&self, permits: u64) -> Result<bool> {
        let value = permits.to_string();
        let (key, value) = (&self.target.key, value.as_bytes());
        let add = Op::add(key, value, Expiry::Never, Returns::Nothing);
        match self.target.one(add) {
            Ok(reply) => Ok(reply == Reply::Written),
            Err(failure) => Err(self.said("Setting up", failure.error)),
        }
    }

    /// Acquires one permit if one is free. Two round trips.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such item; [`ErrorKind::Protocol`] if it is not a
    /// number; [`ErrorKind::Unreachable`]: nothing was changed; [`ErrorKind::Unknown`]: a request
    /// was sent and its reply was lost, so that a permit may have been taken that no caller holds.
    pub fn try_acquire(&self) -> Result<bool> {
        Ok(self.acquire_retrying(&Wait::NEVER)?.done().is_some())
    }

    /// Retries until it succeeds or the wait ends, with pauses that grow from 1 to 50 milliseconds.
    /// There is no order: a client that tries more often is more likely to succeed first.
    ///
    /// # Errors
    /// As [`Counter::try_acquire`].
    pub fn acquire_retrying(&self, wait: &Wait<'_>) -> Result<Waited<()>> {
        let waited = poll(&self.target.context, wait, || self.take());
        waited.map_err(|error| self.said("Acquiring a permit of", error))
    }

    /// Waits in a queue for one permit, by priority, and among equals in the order of arrival. A
    /// release by memlock, in any process, wakes the next waiter. Clients that retry may overtake
    /// parked ones.
    ///
    /// # Errors
    /// As [`Counter::try_acquire`].
    pub fn acquire_parked(&self, priority: i64, wait: &Wait<'_>) -> Result<Waited<()>> {
        let local = local_waiters(&self.target.context);
        let mut attempt = Attempt { counter: self, priority, unproven: false };
        let waited = first_try::acquire(&mut attempt, wait, &self.target, local);
        waited.map_err(|error| self.said("Acquiring a permit of", error))
    }

    /// The counter, as errors and reports name it.
    pub fn subject(&self) -> Subject {
        self.target.subject()
    }

    /// Reports that there is no such item: [`Answer::NotFound`] with a sentence.
    pub fn report_not_found(&self) -> Report {
        Report::naming(self.subject(), Answer::NotFound, |subject| {
            format!("There is no {subject}: set it up with the number of permits.")
        })
    }

    /// Reports that there was such an item already: [`Answer::Exists`] with a sentence.
    pub fn report_exists(&self) -> Report {
        Report::naming(self.subject(), Answer::Exists, |subject| {
            format!("The {subject} was already set up; it is unchanged.")
        })
    }

    /// Reports how a wait for a permit ended, with a sentence that names the counter.
    pub fn report(&self, waited: Waited<()>, wait: &Wait<'_>) -> Report {
        let Err(answer) = waited.into_result() else { return Answer::Ok.into() };
        let subject = self.subject();
        let busy = || format!("The {subject} has no free permit");
        report::refused(
            &subject,
            answer,
            wait.limit(),
            format_args!("a permit of the {subject}"),
            busy,
            &ObservedHolder::Unknown,
        )
    }

    /// Releases one permit, whichever caller acquired it, and wakes the next parked waiter. Returns
    /// the number of free permits. One round trip.
    ///
    /// # Errors
    /// As [`Counter::try_acquire`]; after [`ErrorKind::Unknown`], the permit may or may not have
    /// been released.
    pub fn release(&self) -> Result<u64> {
        let queue = self.target.key.waiters();
        let ops = [Op::Increment { key: &self.target.key, by: 1, initial: None }, Op::get(&queue)];
        let replies = self.target.run(&ops).map_err(|failure| {
            let is_told = !failure.sent || failure.error.kind() == ErrorKind::Unknown;
            let error = if is_told { failure.error } else { in_doubt(failure.error) };
            self.said("Releasing a permit of", error)
        })?;
        let mut replies = replies.into_iter();
        let Some(Reply::Number(free)) = replies.next() else {
            return Err(self.missing());
        };
        let local = local_waiters(&self.target.context);
        let handed = match replies.next() {
            Some(Reply::Value(waiters)) => {
                let capacity = u32::try_from(free).unwrap_or(u32::MAX);
                let queue = Queue { target: &self.target, key: &queue };
                let waker = Waker::new(&self.target, local);
                queue.wake_several(waiters, capacity, 1, &[], &waker)
            }
            _ => Default::default(),
        };
        local.released(&self.target.key, handed, self.target.now());
        Ok(free)
    }

    /// The number of free permits; `None` if there is no such item. The result is already outdated
    /// when it returns. One round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], or [`ErrorKind::Protocol`], also if the item is not a number.
    pub fn available(&self) -> Result<Option<u64>> {
        let item = self.target.get();
        let item = item.map_err(|error| self.said("Looking at", error))?;
        item.map(|item| self.number(&item)).transpose()
    }

    /// Writes the number that was read minus one, unless it is 0.
    fn take(&self) -> Result<Option<()>> {
        let key = &self.target.key;
        for round in 0..ROUNDS {
            let Some(item) = self.target.get()? else {
                return Err(self.missing());
            };
            let Some(left) = self.number(&item)?.checked_sub(1) else { return Ok(None) };
            let value = left.to_string();
            let take = Op::CompareAndSet {
                key,
                version: item.version,
                value: value.as_bytes(),
                expiry: Expiry::Unchanged(item.remaining),
                returns: Returns::Nothing,
            };
            match self.target.one(take) {
                Ok(Reply::Written) => return Ok(Some(())),
                Ok(_) => {
                    back_off(&self.target.context, round)?;
                }
                Err(failure) if failure.sent && failure.error.is_outage() => {
                    return Err(Error::new(
                        ErrorKind::Unknown,
                        format!(
                            "The request was sent and no reply came: a permit may be gone that \
                             nobody has ({}).",
                            failure.error
                        ),
                    ));
                }
                Err(failure) => return Err(failure.error),
            }
        }
        Ok(None)
    }

    fn number(&self, item: &Item) -> Result<u64> {
        // `decr` leaves spaces where a number became shorter.
        let text = std::str::from_utf8(&item.value).ok().map(str::trim_end);
        text.and_then(|text| text.parse().ok()).ok_or_else(|| {
            Error::protocol(format!(
                "The item {} is not a decimal number of free permits.",
                self.target.key
            ))
        })
    }

    fn missing(&self) -> Error {
        self.report_not_found().into_error(ErrorKind::NotFound)
    }

    fn said(&self, doing: &str, error: Error) -> Error {
        self.target.said(doing, error)
    }
}

/// A parked waiter.
struct Attempt<'a> {
    counter: &'a Counter,
    priority: i64,
    /// Whether the waiter was in the queue as one that may not receive its wake-up.
    unproven: bool,
}

impl Acquire for Attempt<'_> {
    type HandoffRequest = ();
    type Guard = ();

    fn attempt(&mut self, _called: bool, _enough: &dyn Fn() -> bool) -> Result<Option<()>> {
        self.counter.take()
    }

    /// Permits are indistinguishable, so a lost reply cannot be resolved.
    fn can_go_on_after(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::Unreachable
    }

    fn inspection(&self) -> Op<'_> {
        Op::get(&self.counter.target.key)
    }

    fn state(&mut self, reply: &Reply, _first: bool) -> Result<TargetState> {
        Ok(match self.capacity(reply, false) {
            Some(_) => TargetState::Free,
            // A plain client that releases wakes no waiter.
            None => TargetState::Held { notifies: false, left: None },
        })
    }

    fn capacity(&mut self, reply: &Reply, _leaves: bool) -> Option<Capacity> {
        let free = match reply {
            Reply::Value(item) => self.counter.number(item).unwrap_or(u64::MAX),
            // The next attempt reports that the item is missing.
            _ => u64::MAX,
        };
        let permits = u32::try_from(free).unwrap_or(u32::MAX);
        (permits > 0).then_some(Capacity { permits, shared: true })
    }

    fn request(&self) -> Request {
        Request { priority: self.priority, ..Request::default() }
    }

    fn joined(&mut self, _ids: &[WaitId], proven: bool) {
        self.unproven |= !proven;
    }

    fn handoff_request(&self) {}

    fn will_wait(&mut self) {}

    fn acquired_from_queue(
        &mut self,
        (): &mut (),
        QueueReceipt { ids, unwoken, .. }: QueueReceipt,
    ) {
        // The releaser that woke this waiter removes its entry, if the entry said that the waiter
        // is reachable.
        if !(unwoken || self.unproven) || ids.is_empty() {
            return;
        }
        let target @ Target { context, key, .. } = &self.counter.target;
        let queue = Queue { target, key: &key.waiters() };
        if let Err(failure) = queue.leave(&ids, Op::get(key)) {
            log::debug!("The queue could not be left: {}", failure.error);
            local_waiters(context).leave_behind(key, &ids);
        }
    }

    fn give_back(&mut self, (): ()) {
        if let Err(error) = self.counter.release() {
            log::warn!("A permit that nobody wanted any more could not be given back. {error}");
        }
    }
}
