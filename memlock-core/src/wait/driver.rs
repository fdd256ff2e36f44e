//! The blocking driver: a thread that does what its [`Policy`] says.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use super::acquire::{Acquire, QueueReceipt};
use super::entries::{self, Request, WaitId};
use super::limit::{Wait, Waited};
use super::local::{LocalWaiters, QueueTicket, RECENT, Unparked};
use super::policy::{Ended, Event, Known, Policy, QueueView, Step, TargetState};
use super::queue::{Capacity, Queue, WATCH};
use super::wake::Waker;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::fork;
use crate::guard::orphan;
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::notify::{Listener, Reach, WakeMessage};
use crate::owner::Identity;
use crate::store::Reply;
use crate::target::Target;

/// A wait that asks somebody whether to go on does so at least this often.
const SLICE: Duration = Duration::from_millis(50);
/// A waiter that only a message can wake looks up so often.
const LONG: Duration = Duration::from_secs(3600);
/// The most ids that a wait remembers having stood under.
const MOST_IDS: usize = 16;

/// Waits for `acquire`, as `wait` says.
///
/// An unreachable server on the very first attempt is reported at once: it is more likely a wrong
/// address than an outage. Later it is ridden out for as long as the client tolerates.
pub(crate) fn wait_for<G: Acquire>(
    acquire: &mut G,
    wait: &Wait<'_>,
    target: &Target,
    local: &LocalWaiters<G::HandoffRequest, G::Guard>,
) -> Result<Waited<G::Guard>> {
    let process = fork::generation();
    let cancellations = target.context.cancellations();
    let told = Cell::new(false);
    // Once is enough: whoever asks may be told only once, as by a signal that is consumed by
    // looking at it.
    let interrupted = || {
        let cancelled =
            target.context.cancellations() != cancellations || target.context.is_closed();
        let now = told.get() || cancelled || wait.is_interrupted();
        told.set(now);
        now
    };
    if wait.is_cancelled() || target.context.is_closed() {
        return Ok(Waited::Interrupted);
    }
    if wait.is_once() {
        // Whoever was told to leave it at that has not found out whether it can be had.
        let otherwise = || if told.get() { Waited::Interrupted } else { Waited::Busy };
        return Ok(acquire.attempt(false, &interrupted)?.map_or_else(otherwise, Waited::Done));
    }
    let began = target.now();
    let known = local.arrive(&target.key, began);
    let deadline = wait.limit.map(|limit| began + limit);
    let enough = || interrupted() || deadline.is_some_and(|deadline| target.now() >= deadline);
    let tried = match known {
        Some(_) => acquire.attempt_within(&enough),
        None => acquire.attempt(false, &enough),
    };
    let first = match tried {
        _ if fork::generation() != process => return Ok(Waited::Interrupted),
        Ok(Some(got)) => return Ok(Waited::Done(got)),
        Ok(None) if known.is_some() => None,
        Ok(None) => Some(Event::Missed),
        Err(error) if !acquire.can_go_on_after(&error) => return Err(error),
        Err(error) if error.kind() == ErrorKind::Unknown && interrupted() => {
            return Ok(Waited::Interrupted);
        }
        // There was an answer to be had, or none at all: only a lost one is worth waiting for.
        Err(error) if error.kind() != ErrorKind::Unknown => return Err(error),
        Err(_) => Some(Event::Failed),
    };
    acquire.will_wait();
    let queue_key = target.key.waiters();
    let identity = target.context.identity()?;
    let is_recent = target.now().since(began) < RECENT;
    let known = known.unwrap_or_default();
    let Request { permits, priority, .. } = acquire.request();
    let waiting = known.waiting.filter(|_| is_recent && permits == 1 && priority == 0);
    let known = Known { shared: acquire.is_shared(), ..known };
    let policy = Policy::new(began, wait.limit, target.context.outage(), known);
    let mut waiter =
        Waiter::enter(acquire, wait, (target, local), policy, &queue_key, (identity, process));
    waiter.waiting = waiting;
    if let Some(first) = first {
        waiter.tell(first);
    }
    waiter.run(&interrupted, &enough, deadline)
}

/// One thread in its wait.
struct Waiter<'a, 'g, G: Acquire> {
    acquire: &'g mut G,
    wait: &'a Wait<'a>,
    target: &'a Target,
    local: &'a LocalWaiters<G::HandoffRequest, G::Guard>,
    queue: Queue<'a>,
    identity: &'a Identity,
    policy: Policy,
    /// Under which we stood in the queue, the last one last.
    ids: Vec<WaitId>,
    listener: Arc<dyn Listener>,
    number: u64,
    process: u64,
    first: bool,
    /// The number of waiters in the queue before the first join, if it is known.
    waiting: Option<usize>,
    /// The message by which we were woken where we stand: its sender takes us off.
    heard: Option<WakeMessage>,
    /// Whether others were told of an address.
    can_be_woken: bool,
    left: bool,
    failure: Option<Error>,
    reached: bool,
}

impl<'a, 'g, G: Acquire> Waiter<'a, 'g, G> {
    fn enter(
        acquire: &'g mut G,
        wait: &'a Wait<'a>,
        (target, local): (&'a Target, &'a LocalWaiters<G::HandoffRequest, G::Guard>),
        policy: Policy,
        queue_key: &'a Key,
        (identity, process): (&'a Identity, u64),
    ) -> Self {
        let listener = target.context.notifier().take(target.context.local_address(target.route));
        let number = local.enter(&target.key, acquire.ask(), &listener);
        let queue = Queue { target, key: queue_key };
        Waiter {
            acquire,
            wait,
            target,
            local,
            queue,
            identity,
            policy,
            ids: Vec::new(),
            listener,
            number,
            process,
            first: false,
            waiting: None,
            heard: None,
            can_be_woken: false,
            left: false,
            failure: None,
            reached: false,
        }
    }

    fn run(
        &mut self,
        interrupted: &dyn Fn() -> bool,
        enough: &dyn Fn() -> bool,
        deadline: Option<Moment>,
    ) -> Result<Waited<G::Guard>> {
        // Whoever cancelled before we had a listener could not wake us.
        if interrupted() {
            self.tell(Event::Interrupted);
        }
        loop {
            if fork::generation() != self.process {
                // A child that a callback made: the wait, and all that belongs to it, is its
                // parent's.
                self.left = true;
                self.ids.clear();
                return Ok(Waited::Interrupted);
            }
            let step = if self.first || self.become_first() {
                self.policy.step(self.now())
            } else {
                self.stand_by(interrupted, deadline)
            };
            // A cancellation interrupts the sleep only once, and we may have come to be the first since.
            if self.first && matches!(step, Step::Sleep(_)) && interrupted() {
                self.tell(Event::Interrupted);
                continue;
            }
            // What was asked may have forked: its child has no part in this.
            if fork::generation() != self.process {
                continue;
            }
            let sleep_until = match step {
                Step::Sleep(until) => Some(until),
                // Whoever is handing over to us is not to be crossed.
                _ if !self.local.start_work(&self.target.key, self.number) => Some(self.now()),
                _ => None,
            };
            if let Some(until) = sleep_until {
                if let Some(got) = self.sleep(until) {
                    return Ok(self.given(got, interrupted()));
                }
                continue;
            }
            match step {
                Step::Try => match self.acquire.attempt(self.policy.is_called(), enough) {
                    // A child that a callback made in the middle of it.
                    _ if fork::generation() != self.process => {}
                    Ok(Some(mut got)) => {
                        let queued = self.policy.is_queued();
                        if queued && self.heard.is_none() {
                            self.heard = self.listener.heard(&self.ids);
                        }
                        let unwoken = queued && self.heard.is_none();
                        let ids = std::mem::take(&mut self.ids);
                        self.stood(&mut got, ids, unwoken);
                        return Ok(Waited::Done(got));
                    }
                    Ok(None) => self.tell(Event::Missed),
                    Err(error) if !self.acquire.can_go_on_after(&error) => return Err(error),
                    Err(error) if error.kind() == ErrorKind::Unknown && interrupted() => {
                        self.tell(Event::Interrupted);
                    }
                    Err(error) => self.fail(error)?,
                },
                Step::Join { front } => self.join(front)?,
                Step::Look { lock, queue } => self.look(lock, queue)?,
                Step::StepOut => self.leave(false),
                Step::Leave => self.leave(true),
                Step::Sleep(_) => {}
                Step::End(Ended::TimedOut) => return Ok(Waited::TimedOut),
                Step::End(Ended::Interrupted) => return Ok(Waited::Interrupted),
                Step::End(Ended::Outage) => {
                    let text = "The server was out of reach for too long.";
                    return Err(self
                        .failure
                        .take()
                        .unwrap_or_else(|| Error::new(ErrorKind::Unreachable, text)));
                }
            }
        }
    }

    /// What one does who is not the first in line.
    fn stand_by(&self, interrupted: &dyn Fn() -> bool, deadline: Option<Moment>) -> Step {
        if deadline.is_some_and(|deadline| deadline <= self.now()) {
            return Step::End(Ended::TimedOut);
        }
        if interrupted() {
            return Step::End(Ended::Interrupted);
        }
        Step::Sleep(deadline.unwrap_or_else(|| self.now() + LONG))
    }

    fn join(&mut self, front: bool) -> Result<()> {
        // Of permits, a line that was left behind may have been for more of them, or of another
        // priority: its place is not ours. Each time, since it may have been an outage that left it
        // there.
        if self.acquire.is_shared() {
            let left = self.local.take_left_behind(&self.target.key);
            if !left.is_empty() {
                self.remove(&left);
            }
        }
        let watches = self.heard.is_some_and(|message| message.after >= WATCH);
        if front && watches && self.still_stands()? {
            return Ok(());
        }
        // We were woken, and nobody has taken an earlier line of ours off by now: others would be
        // woken in vain by it. Whatever is sent to it meanwhile is no news after the look behind
        // our joining.
        if front && !self.ids.is_empty() && self.queue.leave(&self.ids, self.acquire.look()).is_ok()
        {
            self.ids.clear();
            self.local.has_left(&self.target.key, self.number);
        }
        let (id, test) = (WaitId(self.identity.number()), WaitId(self.identity.number()));
        if self.ids.len() == MOST_IDS {
            self.ids.remove(0);
        }
        self.ids.push(id);
        let address = self.listener.address(test);
        // One that was just opened has heard itself, if it hears anything.
        let early = self.heard_if_unreachable();
        let reached =
            self.reach() != Reach::Unreachable || mutation::has(Mutation::TrustTheUnreachable);
        let proven = reached && address.is_some();
        let line = if proven { entries::line } else { entries::unproven_line };
        let line = line(address, id, self.acquire.request());
        self.can_be_woken = address.is_some();
        self.acquire.stands(&self.ids, proven);
        // A message that we heard was for a place where we do not stand any more.
        self.heard = None;
        let behind = self.waiting.take().filter(|_| !front);
        match self.queue.join(&line, id, front, behind, self.acquire.look()) {
            Ok((before, reply)) => match self.seen_behind(before, behind.is_some(), &reply) {
                Ok((before, lock)) => {
                    let blind = mutation::has(Mutation::NoLookAfterJoining);
                    let lock =
                        if blind { TargetState::Held { notifies: true, left: None } } else { lock };
                    let woken = early.or_else(|| self.heard_if_unreachable());
                    self.tell(Event::Joined { before, lock });
                    self.woken(woken);
                    // A waiter that was woken in vain, and stands behind one that has come to be
                    // the first meanwhile, relies on nobody to wake that one.
                    if front
                        && before > 0
                        && self.acquire.is_shared()
                        && let Some(capacity) = self.acquire.capacity(&reply, false)
                    {
                        self.wake_first(capacity, &[]);
                    }
                }
                Err(error) => self.fail(error)?,
            },
            // No room for the queue is no reason not to wait for the lock.
            Err(failure) if failure.error.kind() == ErrorKind::Protocol => {
                self.tell(Event::Refused)
            }
            Err(failure) => self.fail(failure.error)?,
        }
        Ok(())
    }

    /// A waiter that is only to watch over a reservation keeps its place. A waiter whose turn has
    /// come is taken off the queue, though perhaps only after it has tried: it does not rely on the
    /// line that it still finds there. True if it has its place.
    fn still_stands(&mut self) -> Result<bool> {
        let looked = self.queue.look(&self.ids, true, Some(self.acquire.look()));
        let (Some(QueueView::Successors(before)), Some(reply)) = (match looked {
            Ok(seen) => seen,
            Err(error) => return self.fail(error).map(|()| true),
        }) else {
            return Ok(false);
        };
        self.heard = None;
        match self.acquire.seen(&reply, before == 0) {
            Ok(lock) => self.tell(Event::Joined { before, lock }),
            Err(error) => self.fail(error)?,
        }
        Ok(true)
    }

    /// What is waited for as it was seen by a waiter behind so many others, and how many these are.
    /// If that was not counted, and something is available, it is counted now.
    fn seen_behind(
        &mut self,
        before: usize,
        uncounted: bool,
        reply: &Reply,
    ) -> Result<(usize, TargetState)> {
        let lock = self.acquire.seen(reply, before == 0)?;
        if !uncounted || lock != TargetState::Free && !self.acquire.is_for_the_first(reply) {
            return Ok((before, lock));
        }
        let before = match self.queue.look(&self.ids, true, None)?.0 {
            Some(QueueView::Successors(before)) => before,
            // It may be gone again already.
            _ => 0,
        };
        Ok((before, self.acquire.seen(reply, before == 0)?))
    }

    fn look(&mut self, lock: bool, queue: bool) -> Result<()> {
        // One of our own orphaned grants may be what is in the way.
        orphan::reap(&self.target.context, self.target.route);
        let op = self.acquire.look();
        let (mut stand, reply) = match self.queue.look(&self.ids, queue, lock.then_some(op)) {
            Ok(seen) => seen,
            Err(error) => return self.fail(error),
        };
        // Those before us may have gone since we looked at the queue.
        let unsure = stand.is_none() && self.policy.is_queued() && !self.policy.is_called();
        if unsure && reply.as_ref().is_some_and(|reply| self.acquire.is_for_the_first(reply)) {
            stand = match self.queue.look(&self.ids, true, None) {
                Ok((stand, _)) => stand,
                Err(error) => return self.fail(error),
            };
        }
        if let Some(stand) = stand
            && self.policy.was_passed_over(stand)
        {
            // The one that took us off has sent a message before.
            let woken = self.listener.heard(&self.ids);
            if woken.is_some() {
                self.woken(woken);
                return Ok(());
            }
            if stand != QueueView::Lost {
                self.missed();
            }
        }
        let first = match stand {
            Some(stand) => stand == QueueView::Successors(0),
            None => self.policy.is_called(),
        };
        let lock = match reply.map(|reply| self.acquire.seen(&reply, first)) {
            Some(Err(error)) => return self.fail(error),
            Some(Ok(seen)) => Some(seen),
            None => None,
        };
        if lock == Some(TargetState::Reserved) && self.listener.heard(&self.ids).is_none() {
            // The message was sent before.
            self.missed();
        }
        if lock.is_some() && self.acquire.has_moved() {
            self.policy.moves();
        }
        self.tell(Event::Looked { stand, lock });
        Ok(())
    }

    /// A message that was sent to us did not arrive.
    fn missed(&self) {
        if self.can_be_woken {
            self.target.context.notifier().missed();
        }
    }

    /// What our listener told, read at once rather than when we sleep, if nothing is known to reach us.
    fn heard_if_unreachable(&self) -> Option<WakeMessage> {
        if self.reach() == Reach::Unreachable { self.listener.heard(&self.ids) } else { None }
    }

    fn reach(&self) -> Reach {
        self.target.context.notifier().reach()
    }

    /// Gives our place in the queue back; if we go for good, rather to the next waiter of this
    /// process.
    fn leave(&mut self, for_good: bool) {
        let stand = self.stand().filter(|_| for_good);
        if stand.is_some() && self.go(stand).is_none() {
            self.tell(Event::Left);
            return;
        }
        self.leave_the_queue();
        self.tell(Event::Left);
    }

    /// Takes our entries off.
    fn leave_the_queue(&mut self) {
        let ids = std::mem::take(&mut self.ids);
        self.remove(&ids);
    }

    /// Takes entries off that are ours. If what we wait for is free by now, the next one is woken in
    /// our place; or as many as have room, who may all have stood behind us.
    fn remove(&mut self, ids: &[WaitId]) {
        match self.queue.leave(ids, self.acquire.look()) {
            Ok(Some(_)) if mutation::has(Mutation::LeaveWithoutWaking) => {}
            Ok(Some(reply)) => {
                if let Some(capacity) = self.acquire.capacity(&reply, true) {
                    self.wake_first(capacity, ids);
                }
            }
            Ok(None) => {}
            Err(failure) => {
                log::debug!("The queue could not be left: {}", failure.error);
                self.local.leave_behind(&self.target.key, ids);
            }
        }
    }

    /// Wakes the first waiters for whom there is room, and takes our own lines off by these ids.
    fn wake_first(&self, capacity: Capacity, ours: &[WaitId]) {
        if let Ok(Some(queue)) = self.target.queue() {
            let waker =
                Waker { reserver: self.acquire.reserver(), ..Waker::new(self.target, self.local) };
            if capacity.shared {
                self.queue.wake_several(queue, capacity.permits, capacity.permits, ours, &waker);
            } else {
                self.queue.wake_next(queue, capacity, ours, &waker);
            }
        }
    }

    /// Whether we are the first in line by now.
    fn become_first(&mut self) -> bool {
        let (first, stand) = self.local.first(&self.target.key, self.number);
        if let Some(QueueTicket { position, ids, listener }) = stand {
            (self.ids, self.listener, self.reached) = (ids, listener, true);
            self.acquire.stands(&self.ids, false);
            self.policy.take_over(position, self.reach());
        }
        if first && !self.first && !self.acquire.is_shared() {
            self.ids.splice(..0, self.local.take_left_behind(&self.target.key));
        }
        self.first = first;
        first
    }

    /// Sleeps until the moment, a wake-up, or another reason to look up. What another thread gave us
    /// is returned.
    fn sleep(&mut self, until: Moment) -> Option<G::Guard> {
        let (local, key) = (self.local, &self.target.key);
        if local.park(key, self.number, &self.ids) {
            let left = until.since(self.now());
            let limit = if self.wait.asks() { left.min(SLICE) } else { left };
            self.listener.sleep(limit);
        }
        let mut woken = self.listener.heard(&self.ids);
        loop {
            match local.unpark(key, self.number) {
                Unparked::Granted(got) => {
                    // It was for our place in the queue, where the next one in line is to stand.
                    if let Some(message) = woken {
                        local.leave_wake(key, self.number, message.after);
                    }
                    return Some(got);
                }
                Unparked::Up { woken: by_a_thread } => {
                    let by_a_thread =
                        by_a_thread.map(|after| WakeMessage { after, ..WakeMessage::default() });
                    self.woken(by_a_thread.or(woken));
                    return None;
                }
                // Whoever serves us is speaking to the server, and will not take long.
                Unparked::HandingOff => self.listener.sleep(SLICE),
            }
            // What arrived meanwhile is not to keep us awake.
            let heard = self.listener.heard(&self.ids);
            woken = woken.or(heard);
        }
    }

    /// Takes in a message by which we were woken, if there is one.
    fn woken(&mut self, message: Option<WakeMessage>) {
        if let Some(message) = message {
            self.heard = Some(message);
            self.tell(Event::Woken(message.after));
        }
    }

    /// We got it after standing under these ids.
    fn stood(&mut self, got: &mut G::Guard, ids: Vec<WaitId>, unwoken: bool) {
        let successors = self.heard.map(|message| message.successors).unwrap_or_default();
        self.acquire.stood(got, QueueReceipt { ids, unwoken, successors });
    }

    /// We were given it by another thread of this process.
    fn given(&mut self, mut got: G::Guard, interrupted: bool) -> Waited<G::Guard> {
        let stand = self.stand();
        let mut ids = if stand.is_none() { std::mem::take(&mut self.ids) } else { Vec::new() };
        // Nobody is there to take it over; it may be one that we had not taken over ourselves.
        ids.extend(self.go(stand).into_iter().flat_map(|stand| stand.ids));
        self.stood(&mut got, ids, false);
        if interrupted {
            self.acquire.decline(got);
            return Waited::Interrupted;
        }
        Waited::Done(got)
    }

    fn stand(&self) -> Option<QueueTicket> {
        let position = self.policy.position()?;
        Some(QueueTicket { position, ids: self.ids.clone(), listener: Arc::clone(&self.listener) })
    }

    /// Leaves the line, and our place in the queue to the next one there; gives it back if there is
    /// none.
    fn go(&mut self, stand: Option<QueueTicket>) -> Option<QueueTicket> {
        self.left = true;
        self.local.leave(&self.target.key, self.number, stand, self.policy.pace(self.now()))
    }

    /// Takes in a failure, or gives it back if there is no use in waiting.
    fn fail(&mut self, error: Error) -> Result<()> {
        if !error.is_outage() || !self.reached && error.kind() == ErrorKind::Unreachable {
            return Err(error);
        }
        if self.failure.is_none() {
            log::info!("Waiting for {} through an outage: {error}", self.target.key);
        }
        self.failure = Some(error);
        let (now, chance) = (self.now(), self.identity.fraction());
        self.policy.on(Event::Failed, now, chance, self.reach());
        Ok(())
    }

    fn tell(&mut self, event: Event) {
        if !matches!(event, Event::Failed | Event::Interrupted) {
            (self.reached, self.failure) = (true, None);
        }
        let (now, chance) = (self.now(), self.identity.fraction());
        self.policy.on(event, now, chance, self.reach());
    }

    fn now(&self) -> Moment {
        self.target.now()
    }
}

impl<G: Acquire> Drop for Waiter<'_, '_, G> {
    fn drop(&mut self) {
        // In a child that a callback made, all this is its parent's.
        if self.left || fork::generation() != self.process {
            return;
        }
        let stand = self.go(None);
        self.ids.extend(stand.into_iter().flat_map(|stand| stand.ids));
        // An error ended the wait, or nobody is left to take over a place. In an outage the entry
        // dies with the queue, or at the next wake-up.
        if self.failure.as_ref().is_some_and(Error::is_outage) {
            self.local.leave_behind(&self.target.key, &self.ids);
        } else if !self.ids.is_empty() {
            self.leave_the_queue();
        }
    }
}
