//! The plain counter: one item that holds the number of free permits in decimal, for use together
//! with programs that already do so.
//!
//! **It has no leases.** The item says how many permits are free and nothing about the holders of
//! the others: those of a program that dies are gone until the item is written anew, and a client
//! that releases twice adds one. A lost reply cannot be resolved either: the outcome is reported as
//! *unknown*. Use a [`Semaphore`](crate::Semaphore) wherever you have the choice.
//!
//! | | what it does |
//! | --- | --- |
//! | [`Counter::try_acquire`] | reads N, and writes N-1 over that version if N is not 0; once more if another client was faster |
//! | [`Counter::acquire_retrying`] | the same until it succeeds or the limit has passed, with pauses that grow from 1 to 50 ms |
//! | [`Counter::acquire_parked`] | the same, waiting in a queue by priority; a release through memlock wakes the next waiter |
//! | [`Counter::release`] | adds 1, by the server's own `incr` |
//!
//! All of them, and plain clients that do `gets` and `cas`, may use one item at the same time. Any
//! client may create it; its flags (by which clients note a value's type) and its expiry are
//! preserved. A plain client that releases wakes no waiter: parked waiters read the item every 0.15
//! to 1 second. And where a plain client swaps while others count, memcached now and then loses a
//! count: what `gets` reads may be the number of before with the version of after. What this
//! library reads is read under the item's lock.
//!
//! Such counters, tried once, retried, or with threads parked by priority, are a well-known recipe
//! of the years after 2010. What it lacked is that parking works between processes.

use crate::cas_backoff::{ROUNDS, back_off};
use crate::context::Context;
use crate::error::{Answer, Error, ErrorKind, Result};
use crate::fork::{call, call_or};
use crate::name::Key;
use crate::primitives::first_try;
use crate::report::{self, ObservedHolder, Report, Subject};
use crate::store::{Expiry, Item, Op, Reply, Returns};
use crate::target::Target;
use crate::wait::entries::Request;
use crate::wait::local::LocalWaiters;
use crate::wait::policy::TargetState;
use crate::wait::queue::{Capacity, Queue};
use crate::wait::{Acquire, QueueReceipt, Wait, Waited, Waker, poll};
use crate::wait_id::WaitId;

/// A counter by its item's key. It can be used from any number of threads at once.
#[derive(Clone, Debug)]
pub struct Counter {
    target: Target,
}

/// The threads of this process that are parked at counters.
fn local_waiters(context: &Context) -> &LocalWaiters<(), ()> {
    context.extension(LocalWaiters::side_by_side)
}

impl Counter {
    pub(crate) fn new(context: Context, key: Key) -> Counter {
        Counter { target: Target::new(context, key) }
    }

    /// Creates the item with so many free permits, to be kept for ever. False when there is one,
    /// which is left as it is.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], [`ErrorKind::Unknown`] or [`ErrorKind::Protocol`].
    pub fn set_up(&self, permits: u64) -> Result<bool> {
        call(|| {
            let value = permits.to_string();
            let add = Op::Add {
                key: &self.target.key,
                value: value.as_bytes(),
                expiry: Expiry::Never,
                returns: Returns::Nothing,
            };
            match self.target.one(add) {
                Ok(reply) => Ok(reply == Reply::Written),
                Err(failure) => Err(self.said("Setting up", failure.error)),
            }
        })
    }

    /// Takes one permit if there is one. Two round trips.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such item; [`ErrorKind::Protocol`] when it is not a
    /// number; [`ErrorKind::Unreachable`]: nothing was changed; [`ErrorKind::Unknown`]: sent, and
    /// no reply came, so that a permit may have been taken that no caller holds.
    pub fn try_acquire(&self) -> Result<bool> {
        Ok(self.acquire_retrying(&Wait::NEVER)?.done().is_some())
    }

    /// Tries until it succeeds, or the wait ends: with pauses in between that grow from 1 to 50
    /// milliseconds. There is no order: a client that tries more often is more likely to come
    /// first.
    ///
    /// # Errors
    /// As [`Counter::try_acquire`].
    pub fn acquire_retrying(&self, wait: &Wait<'_>) -> Result<Waited<()>> {
        call_or(Waited::Interrupted, || {
            let waited = poll(&self.target.context, self.target.route, wait, || self.take());
            waited.map_err(|error| self.said("Acquiring", error))
        })
    }

    /// Waits in a queue for one permit, by priority, and among equals in the order of arrival. A
    /// release by this library, in any process, wakes the next waiter. Clients that retry may be
    /// faster than parked ones.
    ///
    /// # Errors
    /// As [`Counter::try_acquire`].
    pub fn acquire_parked(&self, priority: i64, wait: &Wait<'_>) -> Result<Waited<()>> {
        call_or(Waited::Interrupted, || {
            let local = local_waiters(&self.target.context);
            let mut attempt = Attempt { counter: self, priority, unproven: false };
            let waited = first_try::acquire(&mut attempt, wait, &self.target, local);
            waited.map_err(|error| self.said("Acquiring", error))
        })
    }

    /// That there is no such item: [`Answer::NotFound`] with a sentence.
    pub fn report_not_found(&self) -> Report {
        let text = format!("There is no {}: set it up with the number of permits.", self.subject());
        Report::new(Answer::NotFound, text)
    }

    /// How a wait for a permit ended, with a sentence that says of which counter.
    pub fn report(&self, waited: Waited<()>, wait: &Wait<'_>) -> Report {
        let subject = self.subject();
        let Err(answer) = waited.into_result() else { return Answer::Ok.into() };
        let busy = || format!("The {subject} has no free permit");
        report::refused(
            answer,
            wait.limit(),
            format_args!("a permit of the {subject}"),
            busy,
            &ObservedHolder::Unknown,
        )
    }

    /// Gives one permit back, whichever caller took it, and wakes the next parked waiter. Returns
    /// the number of free permits. One round trip.
    ///
    /// # Errors
    /// As [`Counter::try_acquire`]; after [`ErrorKind::Unknown`] it may or may not have been given
    /// back.
    pub fn release(&self) -> Result<u64> {
        call(|| {
            let queue = self.target.key.waiters();
            let ops =
                [Op::Increment { key: &self.target.key, by: 1, initial: None }, Op::get(&queue)];
            let replies =
                self.target.run(&ops).map_err(|failure| self.said("Releasing", failure.error))?;
            let mut replies = replies.into_iter();
            let Some(Reply::Number(free)) = replies.next() else {
                return Err(self.said("Releasing", self.missing()));
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
        })
    }

    /// How many are free; `None` when there is no such item. What is read is already past. One
    /// round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], or [`ErrorKind::Protocol`], also when it is not a number.
    pub fn available(&self) -> Result<Option<u64>> {
        call(|| {
            let item = self.target.get();
            let item = item.map_err(|error| self.said("Looking at", error))?;
            item.map(|item| self.number(&item)).transpose()
        })
    }

    /// Writes one less over what was read, unless it is none.
    fn take(&self) -> Result<Option<()>> {
        let key = &self.target.key;
        for round in 0..ROUNDS {
            let Some(item) = self.target.context.get(self.target.route, key)? else {
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
                            "The request was sent and no reply came: a permit may be gone that nobody has ({}).",
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
        Error::new(ErrorKind::NotFound, self.report_not_found().to_string())
    }

    fn subject(&self) -> Subject<'_> {
        Subject { kind: "counter", target: &self.target }
    }

    fn said(&self, doing: &str, error: Error) -> Error {
        self.target.said(doing, error)
    }
}

/// A parked waiter.
struct Attempt<'a> {
    counter: &'a Counter,
    priority: i64,
    /// Whether it was in the queue as a waiter that may not receive its wake-up.
    unproven: bool,
}

impl Acquire for Attempt<'_> {
    type HandoffRequest = ();
    type Guard = ();

    fn attempt(&mut self, _called: bool, _enough: &dyn Fn() -> bool) -> Result<Option<()>> {
        self.counter.take()
    }

    /// Nothing tells one permit from another.
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
            // The next attempt says that it is not there.
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
        // The releaser that woke us removes our entry, if that said that we would receive the
        // wake-up.
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
