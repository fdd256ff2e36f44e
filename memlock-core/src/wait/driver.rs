//! The blocking driver: a thread that carries out the steps of its [`Policy`].

use std::sync::Arc;
use std::time::Duration;

use super::acquire::{Acquire, QueueReceipt};
use super::entries::Request;
use super::interruption::Interruption;
use super::limit::{Wait, Waited};
use super::local::{LocalWaiters, QueueTicket, RECENT, TakenOver, Unparked};
use super::policy::{Ended, Event, Known, Policy, Step};
use super::queue::Queue;
use super::self_wait::SelfWait;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::notify::{Listener, Reach, WakeMessage};
use crate::owner::Identity;
use crate::target::Target;
use crate::wait_id::WaitId;

mod steps;

/// A waiter with an interruption callback calls it at least this often.
const SLICE: Duration = Duration::from_millis(50);
/// A waiter that is to sleep for twice as long gives its connection back, after the first second of
/// its wait: a lock that is handed over sooner does not wait for a new connection. Where clients
/// were refused a connection, a waiter gives its own back before each sleep of this length.
const REST: Duration = Duration::from_secs(1);
/// The longest sleep of a waiter behind others of its process, which wake it.
const LONG: Duration = Duration::from_secs(3600);

/// The state of a call that enters the wait after its first attempt.
pub(crate) struct Start {
    pub(crate) began: Moment,
    pub(crate) deadline: Option<Moment>,
    /// What this process knows of the queue, if other threads of it wait or did so a moment ago.
    pub(crate) known: Option<Known>,
    /// The result of the first attempt; `None` if the call joins the queue without one, because
    /// `known` is set. An error is an outage that the wait may tolerate.
    pub(crate) first: Result<Option<Event>>,
    pub(crate) self_wait: SelfWait,
}

/// Waits until `acquire` succeeds, or the wait ends.
pub(crate) fn run<G: Acquire>(
    acquire: &mut G,
    wait: &Wait<'_>,
    target: &Target,
    local: &LocalWaiters<G::HandoffRequest, G::Guard>,
    interruption: &Interruption<'_>,
    start: Start,
) -> Result<Waited<G::Guard>> {
    acquire.will_wait();
    let queue_key = target.key.waiters();
    let identity = target.context.identity()?;
    let mut waiter = Waiter::enter(acquire, wait, target, local, &queue_key, identity, &start);
    match &start.first {
        Ok(Some(first)) => waiter.observe(*first),
        Ok(None) => {}
        Err(error) => waiter.fail(error.clone())?,
    }
    waiter.run(interruption, start.deadline)
}

/// The wait of one thread.
struct Waiter<'a, 'g, G: Acquire> {
    acquire: &'g mut G,
    wait: &'a Wait<'a>,
    start: &'a Start,
    target: &'a Target,
    /// The waiters of this process, in which this waiter has a number.
    local: &'a LocalWaiters<G::HandoffRequest, G::Guard>,
    number: u64,
    /// Whether this waiter has its own entry in the queue, whichever others this process has.
    on_its_own: bool,
    /// Whether this waiter is the first of its process: only the first one, and those on their own,
    /// use the server.
    is_first: bool,
    has_left: bool,
    queue: Queue<'a>,
    /// The ids of this waiter's entries in the queue, oldest first.
    ids: Vec<WaitId>,
    /// Whether all entries of this waiter said that wake-ups are proven to arrive.
    proven: bool,
    /// The number of waiters in the queue before the first join, if it is known.
    queue_length: Option<usize>,
    identity: &'a Identity,
    policy: Policy,
    listener: Arc<dyn Listener>,
    /// Whether the last entry of this waiter has an address.
    can_be_woken: bool,
    /// The wake-up for the current entry; its sender removes the entry.
    woken_by: Option<WakeMessage>,
    /// Whether the server has answered during this wait.
    reached: bool,
    /// Why the server cannot be reached at present.
    failure: Option<Error>,
    /// Whether the server was used since the last rest.
    is_connected: bool,
    /// Until when this waiter sleeps with its connection.
    rests_from: Moment,
}

impl<'a, 'g, G: Acquire> Waiter<'a, 'g, G> {
    fn enter(
        acquire: &'g mut G,
        wait: &'a Wait<'a>,
        target: &'a Target,
        local: &'a LocalWaiters<G::HandoffRequest, G::Guard>,
        queue_key: &'a Key,
        identity: &'a Identity,
        start: &'a Start,
    ) -> Self {
        let is_recent = target.now().since(start.began) < RECENT;
        let known = start.known.unwrap_or_default();
        // The entry of a waiter for several permits, or with a priority, is of no use to the others
        // of its process.
        let on_its_own = acquire.request() != Request::default();
        let queue_length = known.waiting.filter(|_| is_recent && !on_its_own);
        let known = Known { shared: acquire.is_shared(), ..known };
        let policy = Policy::new(start.began, wait.limit(), wait.outage(&target.context), known);
        let listener = target.context.notifier().take();
        let number = local.enter(&target.key, acquire.handoff_request(), on_its_own, &listener);
        Waiter {
            acquire,
            wait,
            start,
            target,
            local,
            number,
            on_its_own,
            is_first: on_its_own,
            has_left: false,
            queue: Queue { target, key: queue_key },
            ids: Vec::new(),
            proven: true,
            queue_length,
            identity,
            policy,
            listener,
            can_be_woken: false,
            woken_by: None,
            reached: false,
            failure: None,
            is_connected: true,
            rests_from: start.began + REST,
        }
    }

    fn run(
        &mut self,
        interruption: &Interruption<'_>,
        deadline: Option<Moment>,
    ) -> Result<Waited<G::Guard>> {
        let target = self.target;
        let is_over =
            || interruption.is_set() || deadline.is_some_and(|deadline| target.now() >= deadline);
        // A cancellation before the listener was open could not wake this waiter.
        if interruption.is_set() {
            self.observe(Event::Interrupted);
        }
        loop {
            let step = if self.is_first || self.become_first() {
                self.policy.step(self.now())
            } else {
                self.follow(interruption, deadline)
            };
            // A cancellation interrupts only one sleep, which may have been a sleep behind others.
            if self.is_first && matches!(step, Step::Sleep(_)) && interruption.is_set() {
                self.observe(Event::Interrupted);
                continue;
            }
            let sleep_until = match step {
                Step::Sleep(until) => Some(until),
                // Another thread is handing off the target to this waiter, and is about to finish.
                _ if !self.local.start_work(&target.key, self.number) => Some(self.now()),
                _ => None,
            };
            if let Some(until) = sleep_until {
                if let Some(guard) = self.sleep(until) {
                    return Ok(self.granted_by_thread(guard, interruption.is_set()));
                }
                // A waiter behind others of its process reads nothing else.
                if !self.is_first && self.local.start_work(&target.key, self.number) {
                    self.start.self_wait.ask(self.acquire, target)?;
                }
                continue;
            }
            self.is_connected = true;
            match step {
                Step::Try => match self.acquire.attempt(self.policy.is_called(), &is_over) {
                    Ok(Some(guard)) => return Ok(Waited::Done(self.granted(guard))),
                    Ok(None) => self.observe(Event::Missed),
                    Err(error) if !self.acquire.can_go_on_after(&error) => return Err(error),
                    Err(error) if error.kind() == ErrorKind::Unknown && interruption.is_set() => {
                        self.observe(Event::Interrupted);
                    }
                    Err(error) => self.fail(error)?,
                },
                Step::Join { front } => self.join(front)?,
                Step::Inspect { target, queue } => self.inspect(target, queue)?,
                Step::StepOut => self.leave(false),
                Step::Leave => self.leave(true),
                Step::Sleep(_) => {}
                // A server that has never answered tells nothing of a holder.
                Step::End(Ended::TimedOut) if !self.reached && self.failure.is_some() => {
                    return Err(self.outage());
                }
                Step::End(Ended::TimedOut) => return Ok(Waited::TimedOut),
                Step::End(Ended::Interrupted) => return Ok(Waited::Interrupted),
                Step::End(Ended::Outage) => return Err(self.outage()),
            }
        }
    }

    /// The step of a waiter behind others of its process.
    fn follow(&self, interruption: &Interruption<'_>, deadline: Option<Moment>) -> Step {
        if deadline.is_some_and(|deadline| deadline <= self.now()) {
            return Step::End(Ended::TimedOut);
        }
        if interruption.is_set() {
            return Step::End(Ended::Interrupted);
        }
        let longest = self.start.self_wait.interval().unwrap_or(LONG);
        Step::Sleep(deadline.unwrap_or_else(|| self.now() + longest))
    }

    /// Whether this waiter is now the first of its process. If so, it takes over the queue position
    /// that the previous one left.
    fn become_first(&mut self) -> bool {
        let Some(TakenOver { ticket, listener }) =
            self.local.take_over(&self.target.key, self.number)
        else {
            return false;
        };
        if let Some(listener) = listener {
            self.listener = listener;
        }
        if let Some(QueueTicket { position, ids, proven }) = ticket {
            (self.ids, self.proven, self.reached) = (ids, proven, true);
            self.acquire.joined(&self.ids, proven);
            self.policy.take_over(position, self.reach());
        }
        if !self.acquire.is_shared() {
            let left = self.local.take_left_behind(&self.target.key);
            self.proven &= left.is_empty();
            self.ids.splice(..0, left);
        }
        self.is_first = true;
        true
    }

    /// Sleeps until the given moment, a wake-up or an interruption. Returns the guard if another
    /// thread has handed off the target.
    fn sleep(&mut self, until: Moment) -> Option<G::Guard> {
        // A waiter that was behind others joins some time later.
        self.queue_length = None;
        let (local, key) = (self.local, &self.target.key);
        if local.park(key, self.number, &self.ids) {
            let left = self.rest(until.since(self.now()));
            let limit = if self.wait.asks() { left.min(SLICE) } else { left };
            self.listener.sleep(limit);
        }
        let mut received = self.listener.heard(&self.ids);
        loop {
            match local.unpark(key, self.number) {
                Unparked::Granted(guard) => {
                    // The wake-up was for the queue position, which the next waiter takes over.
                    if let Some(message) = received {
                        local.leave_wake(key, self.number, message.after);
                    }
                    return Some(guard);
                }
                Unparked::Up { woken: by_thread } => {
                    let by_thread =
                        by_thread.map(|after| WakeMessage { after, ..WakeMessage::default() });
                    self.woken(by_thread.or(received));
                    return None;
                }
                // The thread that hands off is waiting for the server, and will not take long.
                Unparked::HandingOff => self.listener.sleep(SLICE),
            }
            // Drained again, so that a message received meanwhile does not end the next sleep.
            let since = self.listener.heard(&self.ids);
            received = received.or(since);
        }
    }

    /// Gives the connection back before a long sleep. Returns for how long to sleep: until then, if
    /// this waiter keeps it for a while.
    fn rest(&mut self, sleep: Duration) -> Duration {
        if !self.is_connected || sleep < REST {
            return sleep;
        }
        let Target { context, route, .. } = self.target;
        if !context.is_crowded(*route) {
            let kept_for = self.rests_from.since(self.now());
            if sleep < 2 * REST {
                return sleep;
            }
            if !kept_for.is_zero() {
                return sleep.min(kept_for);
            }
        }
        self.is_connected = false;
        context.rest(*route);
        sleep
    }

    /// Records a wake-up, if there is one.
    fn woken(&mut self, message: Option<WakeMessage>) {
        if let Some(message) = message {
            self.woken_by = Some(message);
            self.observe(Event::Woken(message.after));
        }
    }

    /// Completes the wait after a successful attempt.
    fn granted(&mut self, mut guard: G::Guard) -> G::Guard {
        let queued = self.policy.is_queued();
        if queued && self.woken_by.is_none() {
            self.woken_by = self.listener.heard(&self.ids);
        }
        let unwoken = queued && self.woken_by.is_none();
        let ids = std::mem::take(&mut self.ids);
        self.attach_receipt(&mut guard, ids, unwoken);
        guard
    }

    /// Completes the wait after another thread of this process has handed off the target.
    fn granted_by_thread(&mut self, mut guard: G::Guard, interrupted: bool) -> Waited<G::Guard> {
        let ticket = self.ticket();
        let mut ids = if ticket.is_none() { std::mem::take(&mut self.ids) } else { Vec::new() };
        // A ticket that no waiter takes over. It may be one that this waiter has not taken over
        // itself.
        ids.extend(self.leave_local(ticket).into_iter().flat_map(|ticket| ticket.ids));
        // An entry that no waiter takes over would be woken in vain while this one holds its permits.
        // If the wait was interrupted, the release takes them along.
        let unwoken = self.acquire.is_shared()
            && !ids.is_empty()
            && !interrupted
            && !mutation::has(Mutation::KeepPlaceOfHandedOff);
        self.attach_receipt(&mut guard, ids, unwoken);
        if interrupted {
            self.acquire.give_back(guard);
            return Waited::Interrupted;
        }
        Waited::Done(guard)
    }

    /// Makes the guard responsible for this waiter's entries in the queue.
    fn attach_receipt(&mut self, guard: &mut G::Guard, ids: Vec<WaitId>, unwoken: bool) {
        let successors = self.woken_by.map(|message| message.successors).unwrap_or_default();
        self.acquire.acquired_from_queue(guard, QueueReceipt { ids, unwoken, successors });
    }

    /// This waiter's position in the queue, if it has one, for the next waiter of this process.
    fn ticket(&self) -> Option<QueueTicket> {
        let position = self.policy.position()?;
        Some(QueueTicket { position, ids: self.ids.clone(), proven: self.proven })
    }

    /// Leaves the waiters of this process and passes the ticket to the next one. Returns the ticket
    /// if there is no next waiter.
    fn leave_local(&mut self, ticket: Option<QueueTicket>) -> Option<QueueTicket> {
        self.has_left = true;
        self.local.leave(&self.target.key, self.number, ticket, self.policy.pace(self.now()))
    }

    /// Why the server cannot be reached.
    fn outage(&self) -> Error {
        let unnamed =
            || Error::new(ErrorKind::Unreachable, "The server was out of reach for too long.");
        self.failure.clone().unwrap_or_else(unnamed)
    }

    /// Records a failure. Returns the error if waiting cannot resolve it.
    fn fail(&mut self, error: Error) -> Result<()> {
        let goes_on = self.reached || self.wait.may_begin(&error, &self.target.context);
        if !error.is_outage() || !goes_on && error.kind() == ErrorKind::Unreachable {
            return Err(error);
        }
        if self.failure.is_none() {
            let subject = self.target.subject();
            log::info!("Waiting for the {subject} through an outage: {}", error.sentence());
            self.wait.tell_of_outage(&error);
        }
        let event = if error.is_crowded() { Event::Crowded } else { Event::Failed };
        self.failure = Some(error);
        self.report(event);
        Ok(())
    }

    /// Reports a reply of the server or a wake-up to the policy.
    fn observe(&mut self, event: Event) {
        if !matches!(event, Event::Failed | Event::Interrupted) {
            (self.reached, self.failure) = (true, None);
        }
        self.report(event);
    }

    /// Passes an event to the policy.
    fn report(&mut self, event: Event) {
        let (now, chance) = (self.now(), self.identity.fraction());
        self.policy.on(event, now, chance, self.reach());
    }

    fn reach(&self) -> Reach {
        self.target.context.notifier().reach()
    }

    fn now(&self) -> Moment {
        self.target.now()
    }
}

impl<G: Acquire> Drop for Waiter<'_, '_, G> {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        let ticket = self.leave_local(None);
        self.ids.extend(ticket.into_iter().flat_map(|ticket| ticket.ids));
        // An error ended the wait, or no waiter takes over the position. In an outage the entry is
        // lost with the queue, or removed by the next wake-up.
        if self.failure.as_ref().is_some_and(Error::is_outage) {
            self.local.leave_behind(&self.target.key, &self.ids);
        } else if !self.ids.is_empty() {
            self.leave_the_queue();
        }
    }
}
