//! One waiter: carries out the steps of its [`Policy`], turn by turn. It does not sleep itself, so
//! that one thread can drive many.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use super::acquire::{Acquire, QueueReceipt};
use super::entries::Request;
use super::interruption::Interruption;
use super::limit::Waited;
use super::local::{LocalWaiters, QueueTicket, RECENT, Takeover, Unparked};
use super::policy::{Ended, Event, Known, Policy, QueueView, Step, TargetState};
use super::queue::Queue;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::fork;
use crate::guard::orphan;
use crate::name::Key;
use crate::notify::{Listener, Reach, WakeMessage};
use crate::owner::Identity;
use crate::store::Op;
use crate::target::Target;
use crate::wait_id::WaitId;
use crate::worker::{ReadAhead, Reading};

mod steps;

/// A waiter looks this often whether the thread that hands off to it has finished.
const SLICE: Duration = Duration::from_millis(50);
/// The longest sleep of a waiter behind others of its process, which wake it.
const LONG: Duration = Duration::from_secs(3600);

/// The state of a call that enters the wait after its first attempt.
pub(crate) struct Start {
    /// The [`fork::generation`] in which the call began.
    pub(crate) process: u64,
    pub(crate) began: Moment,
    pub(crate) limit: Option<Duration>,
    /// What this process knows of the queue, if other threads of it wait or did so a moment ago.
    pub(crate) known: Option<Known>,
    /// The result of the first attempt; `None` if the call joins the queue without one, because
    /// `known` is set.
    pub(crate) first: Option<Event>,
}

/// What a waiter wants after a turn.
pub(crate) enum Turn<T> {
    /// To sleep until then, a message to its listener, or an interruption.
    Sleep(Moment),
    /// The wait is over.
    Over(Waited<T>),
}

type GuardOf<A> = <<A as Deref>::Target as Acquire>::Guard;
type LocalOf<A> = LocalWaiters<<<A as Deref>::Target as Acquire>::HandoffRequest, GuardOf<A>>;

/// One wait.
pub(crate) struct Waiter<A: DerefMut<Target: Acquire>> {
    acquire: A,
    /// Identifies the waiter among those of this process.
    number: u64,
    /// Whether this waiter is the first of its process: only the first one uses the server.
    is_first: bool,
    has_left: bool,
    queue_key: Key,
    /// The ids of this waiter's entries in the queue, oldest first.
    ids: Vec<WaitId>,
    /// The number of waiters in the queue before the first join, if it is known.
    queue_length: Option<usize>,
    deadline: Option<Moment>,
    policy: Policy,
    listener: Arc<dyn Listener>,
    /// Whether the waiter sleeps, or is about to wake up.
    is_asleep: bool,
    /// What its listener has received since it fell asleep.
    received: Option<WakeMessage>,
    /// Whether the last entry of this waiter has an address.
    can_be_woken: bool,
    /// The wake-up for the current entry; its sender removes the entry.
    woken_by: Option<WakeMessage>,
    /// The [`fork::generation`] to which the wait belongs.
    process: u64,
    /// Whether the server has answered during this wait.
    reached: bool,
    /// Why the server cannot be reached at present.
    failure: Option<Error>,
}

impl<A: DerefMut<Target: Acquire>> Waiter<A> {
    /// A waiter that begins its wait. `listener`: receives its messages.
    ///
    /// # Errors
    /// If the operating system gives no randomness.
    pub(crate) fn enter(mut acquire: A, start: Start, listener: Arc<dyn Listener>) -> Result<Self> {
        acquire.will_wait();
        let target = acquire.target();
        target.context.identity()?;
        let is_recent = target.now().since(start.began) < RECENT;
        let known = start.known.unwrap_or_default();
        let Request { permits, priority, .. } = acquire.request();
        let queue_length = known.waiting.filter(|_| is_recent && permits == 1 && priority == 0);
        let known = Known { shared: acquire.is_shared(), ..known };
        let policy = Policy::new(start.began, start.limit, target.context.outage(), known);
        let number = acquire.local().enter(&target.key, acquire.handoff_request(), &listener);
        let mut waiter = Waiter {
            number,
            is_first: false,
            has_left: false,
            queue_key: target.key.waiters(),
            ids: Vec::new(),
            queue_length,
            deadline: start.limit.map(|limit| start.began + limit),
            policy,
            listener,
            is_asleep: false,
            received: None,
            can_be_woken: false,
            woken_by: None,
            process: start.process,
            reached: false,
            failure: None,
            acquire,
        };
        if let Some(first) = start.first {
            waiter.observe(first);
        }
        Ok(waiter)
    }

    /// What receives this waiter's messages now.
    pub(crate) fn listener(&self) -> &Arc<dyn Listener> {
        &self.listener
    }

    /// When the wait ends at the latest.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        self.deadline
    }

    /// What this waiter reads next if it takes a turn now and nothing has arrived for it. Not where
    /// several waiters of the process read one queue, and not where the lock may be reserved for this
    /// waiter for a short time.
    pub(crate) fn reading(&self, now: Moment) -> Option<Reading<'_>> {
        let reads_alone = self.is_first && !self.local().is_side_by_side();
        if !reads_alone || self.reach() == Reach::Unreachable || self.is_inherited() {
            return None;
        }
        let Step::Inspect { target, queue } = self.policy.clone().step(now) else { return None };
        let queue = queue.then(|| Op::get(&self.queue_key));
        Some(Reading { queue, target: target.then(|| self.acquire.inspection()) })
    }

    /// Called before that is read, once for each server: an orphaned grant of this client may block a
    /// target.
    pub(crate) fn prepare_reading(&self) {
        orphan::reap(&self.target().context, self.target().route);
    }

    /// Goes on until the waiter has to sleep or its wait is over. `ahead`: what was read for its first
    /// step.
    ///
    /// # Errors
    /// What waiting cannot resolve; the wait is over then, too.
    pub(crate) fn turn(
        &mut self,
        interruption: &Interruption<'_>,
        mut ahead: Option<ReadAhead>,
    ) -> Result<Turn<GuardOf<A>>> {
        // A cancellation before the listener was open could not wake this waiter.
        if !self.is_asleep && interruption.is_set() {
            self.observe(Event::Interrupted);
        }
        loop {
            if std::mem::take(&mut self.is_asleep)
                && let Some(ended) = self.wake_up(interruption)
            {
                return Ok(ended);
            }
            if self.is_inherited() {
                // The wait, and all state that belongs to it, is the parent's.
                self.has_left = true;
                self.ids.clear();
                return Ok(Turn::Over(Waited::Interrupted));
            }
            let step = if self.is_first || self.become_first() {
                self.policy.step(self.now())
            } else {
                self.follow(interruption)
            };
            // A cancellation interrupts only one sleep, which may have been a sleep behind others.
            if self.is_first && matches!(step, Step::Sleep(_)) && interruption.is_set() {
                self.observe(Event::Interrupted);
                continue;
            }
            if self.is_inherited() {
                continue;
            }
            let sleep_until = match step {
                Step::Sleep(until) => Some(until),
                // Another thread is handing off the target to this waiter, and is about to finish.
                _ if !self.local().start_work(&self.target().key, self.number) => Some(self.now()),
                _ => None,
            };
            if let Some(until) = sleep_until {
                self.is_asleep = true;
                if self.local().park(&self.target().key, self.number, &self.ids) {
                    return Ok(Turn::Sleep(until));
                }
                continue;
            }
            let ahead = ahead.take();
            let is_over = || interruption.is_over(self.deadline);
            match step {
                Step::Try => match self.acquire.attempt(self.policy.is_called(), &is_over) {
                    _ if self.is_inherited() => {}
                    Ok(Some(guard)) => return Ok(Turn::Over(Waited::Done(self.granted(guard)))),
                    Ok(None) => self.observe(Event::Missed),
                    Err(error) if !self.acquire.can_go_on_after(&error) => return Err(error),
                    Err(error) if error.kind() == ErrorKind::Unknown && interruption.is_set() => {
                        self.observe(Event::Interrupted);
                    }
                    Err(error) => self.fail(error)?,
                },
                Step::Join { front } => self.join(front)?,
                Step::Inspect { target, queue } => self.inspect(target, queue, ahead)?,
                Step::StepOut => self.leave(false),
                Step::Leave => self.leave(true),
                Step::Sleep(_) => {}
                Step::End(Ended::TimedOut) => return Ok(Turn::Over(Waited::TimedOut)),
                Step::End(Ended::Interrupted) => return Ok(Turn::Over(Waited::Interrupted)),
                Step::End(Ended::Outage) => {
                    let text = "The server was out of reach for too long.";
                    let unnamed = || Error::unreachable(text);
                    return Err(self.failure.take().unwrap_or_else(unnamed));
                }
            }
        }
    }

    /// Whether this process is a child that a callback forked during the wait.
    fn is_inherited(&self) -> bool {
        fork::generation() != self.process
    }

    /// The step of a waiter behind others of its process.
    fn follow(&self, interruption: &Interruption<'_>) -> Step {
        let deadline = self.deadline;
        if deadline.is_some_and(|deadline| deadline <= self.now()) {
            return Step::End(Ended::TimedOut);
        }
        if interruption.is_set() {
            return Step::End(Ended::Interrupted);
        }
        Step::Sleep(deadline.unwrap_or_else(|| self.now() + LONG))
    }

    /// Whether this waiter is now the first of its process. If so, it takes over the queue position
    /// that the previous one left.
    fn become_first(&mut self) -> bool {
        let (first, ticket) = self.local().first(&self.target().key, self.number);
        if let Some(ticket) = ticket {
            let takeover = ticket.takeover(&self.listener);
            let QueueTicket { position, ids, listener } = ticket;
            (self.ids, self.reached) = (ids, true);
            self.acquire.joined(&self.ids, false);
            self.policy.take_over(position, self.reach());
            match takeover {
                Takeover::Listener => self.listener = listener,
                Takeover::Heard => {}
                Takeover::Anew => {
                    let state = Some(TargetState::Held { notifies: true, left: None });
                    self.observe(Event::Inspected { view: Some(QueueView::Lost), state });
                }
            }
        }
        if first && !self.is_first && !self.acquire.is_shared() {
            let left = self.local().take_left_behind(&self.target().key);
            self.ids.splice(..0, left);
        }
        self.is_first = first;
        first
    }

    /// What the waiter does once it is awake: `None`: it goes on.
    fn wake_up(&mut self, interruption: &Interruption<'_>) -> Option<Turn<GuardOf<A>>> {
        // Also drained while another thread hands off, so that a message received meanwhile does not
        // end the next sleep.
        let since = self.listener.heard(&self.ids);
        self.received = self.received.or(since);
        match self.local().unpark(&self.target().key, self.number) {
            Unparked::Granted(guard) => {
                // The wake-up was for the queue position, which the next waiter takes over.
                if let Some(message) = self.received.take() {
                    self.local().leave_wake(&self.target().key, self.number, message.after);
                }
                Some(Turn::Over(self.granted_by_thread(guard, interruption.is_set())))
            }
            Unparked::Up { woken: by_thread } => {
                let by_thread =
                    by_thread.map(|after| WakeMessage { after, ..WakeMessage::default() });
                let received = self.received.take();
                self.woken(by_thread.or(received));
                None
            }
            // The thread that hands off is waiting for the server, and will not take long.
            Unparked::HandingOff => {
                self.is_asleep = true;
                Some(Turn::Sleep(self.now() + SLICE))
            }
        }
    }

    /// Records a wake-up, if there is one.
    fn woken(&mut self, message: Option<WakeMessage>) {
        if let Some(message) = message {
            self.woken_by = Some(message);
            self.observe(Event::Woken(message.after));
        }
    }

    /// Completes the wait after a successful attempt.
    fn granted(&mut self, mut guard: GuardOf<A>) -> GuardOf<A> {
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
    fn granted_by_thread(
        &mut self,
        mut guard: GuardOf<A>,
        interrupted: bool,
    ) -> Waited<GuardOf<A>> {
        let ticket = self.ticket();
        let mut ids = if ticket.is_none() { std::mem::take(&mut self.ids) } else { Vec::new() };
        // A ticket that no waiter takes over. It may be one that this waiter has not taken over
        // itself.
        ids.extend(self.leave_local(ticket).into_iter().flat_map(|ticket| ticket.ids));
        self.attach_receipt(&mut guard, ids, false);
        if interrupted {
            self.acquire.give_back(guard);
            return Waited::Interrupted;
        }
        Waited::Done(guard)
    }

    /// Makes the guard responsible for this waiter's entries in the queue.
    fn attach_receipt(&mut self, guard: &mut GuardOf<A>, ids: Vec<WaitId>, unwoken: bool) {
        let successors = self.woken_by.map(|message| message.successors).unwrap_or_default();
        self.acquire.acquired_from_queue(guard, QueueReceipt { ids, unwoken, successors });
    }

    /// This waiter's position in the queue, if it has one, for the next waiter of this process.
    fn ticket(&self) -> Option<QueueTicket> {
        let position = self.policy.position()?;
        Some(QueueTicket { position, ids: self.ids.clone(), listener: Arc::clone(&self.listener) })
    }

    /// Leaves the waiters of this process and passes the ticket to the next one. Returns the ticket
    /// if there is no next waiter.
    fn leave_local(&mut self, ticket: Option<QueueTicket>) -> Option<QueueTicket> {
        self.has_left = true;
        let pace = self.policy.pace(self.now());
        self.local().leave(&self.target().key, self.number, ticket, pace)
    }

    /// Records a failure. Returns the error if waiting cannot resolve it.
    fn fail(&mut self, error: Error) -> Result<()> {
        if !error.is_outage() || !self.reached && error.kind() == ErrorKind::Unreachable {
            return Err(error);
        }
        if self.failure.is_none() {
            log::info!("Waiting for {} through an outage: {error}", self.target().key);
        }
        self.failure = Some(error);
        self.report(Event::Failed);
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
        let chance = self.target().context.identity().map_or(0.5, Identity::fraction);
        let now = self.now();
        self.policy.on(event, now, chance, self.reach());
    }

    fn reach(&self) -> Reach {
        self.target().context.notifier().reach()
    }

    fn now(&self) -> Moment {
        self.target().now()
    }

    fn target(&self) -> &Target {
        self.acquire.target()
    }

    fn local(&self) -> &LocalOf<A> {
        self.acquire.local()
    }

    fn queue(&self) -> Queue<'_> {
        Queue { target: self.target(), key: &self.queue_key }
    }
}

impl<A: DerefMut<Target: Acquire>> Waiter<A> {
    /// Leaves what the wait has left, as dropping does. The wait must be over.
    pub(crate) fn end(&mut self) {
        if std::mem::replace(&mut self.has_left, true) || self.is_inherited() {
            return;
        }
        let ticket = self.leave_local(None);
        self.ids.extend(ticket.into_iter().flat_map(|ticket| ticket.ids));
        // An error ended the wait, or no waiter takes over the position. In an outage the entry is
        // lost with the queue, or removed by the next wake-up.
        if self.failure.as_ref().is_some_and(Error::is_outage) {
            self.local().leave_behind(&self.target().key, &self.ids);
        } else if !self.ids.is_empty() {
            self.leave_the_queue();
        }
    }

    /// The acquisition that waits.
    pub(crate) fn acquire(&mut self) -> &mut A {
        &mut self.acquire
    }

    /// The ids under which the waiter is in the queue.
    pub(crate) fn ids(&self) -> &[WaitId] {
        &self.ids
    }
}

impl<A: DerefMut<Target: Acquire>> Drop for Waiter<A> {
    fn drop(&mut self) {
        self.end();
    }
}
