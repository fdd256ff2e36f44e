//! The steps of a wait that send requests: joining the queue, inspecting the queue and the target,
//! and leaving the queue.

use std::time::Duration;

use super::Waiter;
use crate::error::{ErrorKind, Result};
use crate::guard::orphan;
use crate::mutation::{self, Mutation};
use crate::notify::{Reach, WakeMessage};
use crate::store::{Failure, Reply};
use crate::wait::acquire::Acquire;
use crate::wait::entries;
use crate::wait::policy::{Event, QueueView, TargetState};
use crate::wait::queue::{Capacity, WATCH};
use crate::wait::wake::Waker;
use crate::wait_id::WaitId;

/// The most ids of earlier entries that a waiter remembers.
const MOST_IDS: usize = 16;

/// The pauses after which it is tried again to remove an entry; by chance, up to half of each is
/// left out.
const LEAVING: [Duration; 7] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(300),
    Duration::from_millis(400),
    Duration::from_millis(500),
    Duration::from_millis(500),
];

impl<G: Acquire> Waiter<'_, '_, G> {
    pub(super) fn join(&mut self, front: bool) -> Result<()> {
        // A semaphore waiter's entry that could not be removed may have requested other permits or
        // another priority, so this waiter cannot use it. Checked at each join, since the outage
        // that has just ended may have left such an entry.
        if self.acquire.is_shared() {
            let left = self.local.take_left_behind(&self.target.key);
            if !left.is_empty() {
                self.remove(&left);
            }
        }
        let is_watcher = self.woken_by.is_some_and(|message| message.after >= WATCH);
        if front && is_watcher && self.is_still_queued()? {
            return Ok(());
        }
        // This waiter was woken, but no releaser has removed its earlier entry yet. A wake-up sent
        // to that entry would be in vain, and carries no news: this waiter inspects the target as
        // it joins.
        if front
            && !self.ids.is_empty()
            && self.queue.leave(&self.ids, self.acquire.inspection()).is_ok()
        {
            self.ids.clear();
            self.local.has_left(&self.target.key, self.number);
        }
        let (id, test) = (WaitId(self.identity.number()), WaitId(self.identity.number()));
        if self.ids.len() == MOST_IDS {
            self.ids.remove(0);
        }
        self.ids.push(id);
        let near = self.target.context.local_address(self.target.route);
        let address = self.listener.address(near, test);
        // A newly opened listener has received its own test message, if messages arrive at all.
        let early = self.heard_if_unreachable();
        let reached =
            self.reach() != Reach::Unreachable || mutation::has(Mutation::TrustTheUnreachable);
        let proven = reached && address.is_some();
        let entry = if proven { entries::line } else { entries::unproven_line };
        let entry = entry(address, id, self.acquire.request());
        self.can_be_woken = address.is_some();
        self.proven &= proven;
        self.acquire.joined(&self.ids, proven);
        // That wake-up was for an entry that is no longer in the queue.
        self.woken_by = None;
        let length = self.queue_length.take().filter(|_| !front);
        match self.queue.join(&entry, id, front, length, self.acquire.inspection()) {
            Ok((before, reply)) => match self.state_behind(before, length.is_some(), &reply) {
                Ok((before, state)) => {
                    let blind = mutation::has(Mutation::NoLookAfterJoining);
                    let held = TargetState::Held { notifies: true, left: None };
                    let state = if blind { held } else { state };
                    let woken = early.or_else(|| self.heard_if_unreachable());
                    self.observe(Event::Joined { before, state });
                    self.woken(woken);
                    // This waiter was woken in vain, and another waiter is now the first in the
                    // queue: this waiter has to wake it.
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
            // A server without room for the queue is polled, and so is one where another program stores
            // something in its place.
            Err(failure) if failure.error.kind() == ErrorKind::Protocol => {
                let subject = self.target.subject();
                let why = failure.error.sentence();
                log::info!("Waiting for the {subject} without a queue: {why}");
                self.observe(Event::Refused);
            }
            Err(failure) => self.fail(failure.error)?,
        }
        Ok(())
    }

    /// Whether a waiter that was woken to supervise a reservation still has its entry in the queue.
    /// The entry of a waiter whose turn has come is removed, though perhaps only after the waiter
    /// has tried; such a waiter does not rely on an entry that it still finds.
    fn is_still_queued(&mut self) -> Result<bool> {
        let inspected = self.queue.inspect(&self.ids, true, Some(self.acquire.inspection()));
        let (Some(QueueView::Behind(before)), Some(reply)) = (match inspected {
            Ok(seen) => seen,
            Err(error) => return self.fail(error).map(|()| true),
        }) else {
            return Ok(false);
        };
        self.woken_by = None;
        match self.state(&reply, before == 0) {
            Ok(state) => self.observe(Event::Joined { before, state }),
            Err(error) => self.fail(error)?,
        }
        Ok(true)
    }

    /// The state of the target for a waiter behind `before` others, and how many others there are.
    /// If `before` was `estimated` and the target is available, the entries are counted.
    fn state_behind(
        &mut self,
        before: usize,
        estimated: bool,
        reply: &Reply,
    ) -> Result<(usize, TargetState)> {
        let state = self.state(reply, before == 0)?;
        if !estimated || state != TargetState::Free && !self.acquire.is_for_the_first(reply) {
            return Ok((before, state));
        }
        let before = match self.queue.inspect(&self.ids, true, None)?.0 {
            Some(QueueView::Behind(before)) => before,
            // The entry may have been removed already.
            _ => 0,
        };
        Ok((before, self.state(reply, before == 0)?))
    }

    /// The state of the target, unless the wait is for itself.
    fn state(&mut self, reply: &Reply, first: bool) -> Result<TargetState> {
        self.start.self_wait.check(self.acquire, reply)?;
        self.acquire.state(reply, first)
    }

    pub(super) fn inspect(&mut self, target: bool, queue: bool) -> Result<()> {
        // An orphaned grant of this client may block the target.
        orphan::reap(self.target);
        let op = || target.then(|| self.acquire.inspection());
        let seen = match self.queue.inspect(&self.ids, queue, op()) {
            // Another program stores something in place of the queue, which cannot be read.
            Err(error) if queue && error.kind() == ErrorKind::Protocol => {
                let seen = self.queue.inspect(&self.ids, false, op());
                seen.map(|(_, reply)| (Some(QueueView::Lost), reply))
            }
            seen => seen,
        };
        let (mut view, reply) = match seen {
            Ok(seen) => seen,
            Err(error) => return self.fail(error),
        };
        // The waiters before this one may have left since the queue was last inspected.
        let unsure = view.is_none() && self.policy.is_queued() && !self.policy.is_called();
        if unsure && reply.as_ref().is_some_and(|reply| self.acquire.is_for_the_first(reply)) {
            view = match self.queue.inspect(&self.ids, true, None) {
                Ok((view, _)) => view,
                Err(error) => return self.fail(error),
            };
        }
        if let Some(view) = view
            && self.policy.was_passed_over(view)
        {
            // The releaser that removed the entry sent a message before it did so.
            let woken = self.listener.heard(&self.ids);
            if woken.is_some() {
                self.woken(woken);
                return Ok(());
            }
            if view != QueueView::Lost {
                self.wake_up_was_lost();
            }
        }
        let first = match view {
            Some(view) => view == QueueView::Behind(0),
            None => self.policy.is_called(),
        };
        let state = match reply.map(|reply| self.state(&reply, first)) {
            Some(Err(error)) => return self.fail(error),
            Some(Ok(state)) => Some(state),
            None => None,
        };
        // The releaser that reserved the target sent a message before it did so.
        if state == Some(TargetState::Reserved) && self.listener.heard(&self.ids).is_none() {
            self.wake_up_was_lost();
        }
        if state.is_some() && self.acquire.has_changed_hands() {
            self.policy.target_changed_hands();
        }
        self.observe(Event::Inspected { view, state });
        Ok(())
    }

    fn wake_up_was_lost(&self) {
        if self.can_be_woken {
            self.target.context.notifier().missed();
        }
    }

    /// A message to this waiter's listener. It is read at once, rather than at the next sleep, if
    /// wake-ups are not known to reach this process.
    fn heard_if_unreachable(&self) -> Option<WakeMessage> {
        if self.reach() == Reach::Unreachable { self.listener.heard(&self.ids) } else { None }
    }

    /// Gives up the queue position. If the wait `ends`, the next waiter of this process takes the
    /// position over, where there is one.
    pub(super) fn leave(&mut self, ends: bool) {
        let ticket = self.ticket().filter(|_| ends && !self.on_its_own);
        if ticket.is_some() && self.leave_local(ticket).is_none() {
            self.observe(Event::Left);
            return;
        }
        self.leave_the_queue();
        self.observe(Event::Left);
    }

    /// Removes this waiter's entries.
    pub(super) fn leave_the_queue(&mut self) {
        let ids = std::mem::take(&mut self.ids);
        self.remove(&ids);
    }

    /// Removes these entries. If the target is available by now, the next waiter is woken on behalf
    /// of this one. If the target is shared, as many waiters are woken as the capacity admits: all
    /// of them may have been behind the removed entries.
    fn remove(&mut self, ids: &[WaitId]) {
        match self.leave_if_admitted(ids) {
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

    /// Removes these entries. Where too many others connect, or leave at the same time, this is tried
    /// again: an entry that stays holds up those behind it.
    fn leave_if_admitted(&self, ids: &[WaitId]) -> std::result::Result<Option<Reply>, Failure> {
        for pause in LEAVING {
            match self.queue.leave(ids, self.acquire.inspection()) {
                Err(failure) if failure.error.is_crowded() => {
                    let share = 0.5 + 0.5 * self.identity.fraction();
                    self.target.context.clock().sleep(pause.mul_f64(share));
                }
                left => return left,
            }
        }
        self.queue.leave(ids, self.acquire.inspection())
    }

    /// Wakes the first waiters that the capacity admits, and removes the entries `ours`.
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
}
