//! What a waiter does next: a state machine that knows the time and the events, and does no I/O.
//!
//! A driver asks [`Policy::step`] what to do, does it, and reports the result to [`Policy::on`].
//! The blocking driver is `driver`; an event loop can be another. The policy knows nothing of the
//! target but the state in which it was seen.
//!
//! **When to inspect the target without a wake-up.** It may become free without a message: its
//! holder died, the waiter before us died with a wake-up to pass on, a wake-up was lost. How long a
//! waiter sleeps before it inspects the target:
//!
//! | the waiter | sleeps for |
//! | --- | --- |
//! | saw the target free, and others before it in the queue | 25 to 40 ms: the waiter that was woken may be dead |
//! | saw permits available, more than two before it | as an untested one behind others; one of n as in the first row |
//! | woke another one, came back at once, and saw the target free | 2 ms, or 100 ms if that one has no listener: it comes first |
//! | is proven reachable and the first in the queue, and the holder wakes it | 1 s; less where the holder's lease ends before |
//! | as before, behind others | 0.6 s for each of them, between 1 and 4.3 s; then until its turn is due by the pace of the queue, 1 s for each of them at most |
//! | is untested, behind others | as before, and 0.9 s at most |
//! | is unreachable, behind others | until its turn is due, and from 150 to 280 ms while the wait is young, to 0.7 s later; behind one, 250 ms at most |
//! | is the first in the queue and unreachable | 10 ms, growing by half each time to 250 ms |
//! | is the first in the queue and untested | 150 ms, growing by half each time to 280 ms while the wait is young, to 0.7 s later |
//! | saw that the target is reserved for another waiter | 300 ms: that one is taken for dead then |
//! | has a holder that sends no wake-ups, or no place in the queue | as an untested waiter that is the first |
//!
//! So the waiters of a healthy queue send next to nothing to the server, however many they are. An
//! unreachable waiter does not depend on wake-ups: a mutex is reserved for it (see
//! `mutex/reserve.rs`), and it inspects it before a reservation can expire.

use std::time::Duration;

use super::entries::MOST_WAITERS;
use crate::clock::Moment;
use crate::mutation::{self, Mutation};
use crate::notify::Reach;

mod terms;

pub use terms::{Ended, Event, Known, QueueView, Step, TargetState};

/// How long the waiter that was woken may take before one behind it takes the lock.
const GRACE: Duration = Duration::from_millis(25);
/// A waiter for permits with more others before it leaves that check to them. Of n such waiters one
/// checks all the same: in a busy queue the first ones are woken before they inspect the target.
const NEAR: usize = 2;
/// The pauses of the first waiter if it expects to be woken.
const HEAD: Duration = Duration::from_secs(1);
/// If the queue needs longer than this for one waiter, the target is inspected as well.
const SLOW: Duration = Duration::from_millis(600);
/// The slowest pace that is relied on.
const SLOWEST: Duration = Duration::from_millis(1500);
/// The bounds of the first pause behind others, and of later ones.
const FIRST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(4300));
const LATER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// The pauses of a waiter that may not be woken: the first, the longest of a young wait, the
/// longest.
const POLL: [Duration; 3] =
    [Duration::from_millis(150), Duration::from_millis(280), Duration::from_millis(700)];
/// The first pause of an unreachable waiter whose turn is next.
const NEXT: Duration = Duration::from_millis(10);
/// Its longest pause where at most one waiter is before it: a reservation lasts a little longer.
const CLAIM: Duration = Duration::from_millis(250);
/// The longest pause of an untested waiter behind others.
const UNTESTED: Duration = Duration::from_millis(900);
/// Until then a wait is young.
const YOUNG: Duration = Duration::from_secs(1);
/// How often a waiter that may not be woken makes sure that it is still in the queue.
const QUEUE_CHECK: Duration = Duration::from_secs(2);
/// The first pause after a failure; each further one is twice as long, up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(5);
const LONGEST_RETRY: Duration = Duration::from_millis(250);

/// The state of one wait.
#[derive(Clone, Debug)]
pub struct Policy {
    position: QueuePosition,
    began: Moment,
    deadline: Option<Moment>,
    outage: Duration,
    /// Whether a step was taken: the first one is taken whatever the time.
    started: bool,
    /// Our turn has come: no other waiter will be woken before we try.
    woken: bool,
    reach: Reach,
    out_since: Option<Moment>,
    retry: Duration,
    /// What to end with once the queue is left.
    ended: Ended,
    step: Step,
}

/// A place in the queue, which one waiter can take over from another of the same process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePosition {
    queued: Queued,
    /// How many were before us, when that was, and when they last became fewer.
    before: usize,
    seen: Moment,
    moved: Moment,
    /// When the target was inspected last.
    inspected: Moment,
    /// How long the queue takes for one waiter, as far as that was seen.
    pace: Option<Duration>,
    /// When we joined the queue, and how many were before us then.
    joined: Option<(Moment, usize)>,
    /// See [`Known::grace`].
    grace: Duration,
    /// The last inspection found the target free and others before us.
    was_free: bool,
    /// It was reserved for another waiter then.
    was_reserved: bool,
    /// See [`Known::shared`].
    shared: bool,
    /// Whether the holder that was seen last will send a wake-up.
    notifies: bool,
    /// When that holder's item expires.
    expires: Option<Moment>,
    /// The last pause of a waiter that may not be woken.
    poll: Duration,
    /// When to inspect the target without a wake-up: also if another waiter has taken over the
    /// place by then.
    inspect_at: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queued {
    /// Not yet, or not any more.
    No,
    Yes,
    /// There was no room.
    Crowded,
}

impl Policy {
    /// A wait that begins now, and goes on through outages of up to that length.
    pub fn new(now: Moment, limit: Option<Duration>, outage: Duration, known: Known) -> Policy {
        let position = QueuePosition {
            queued: Queued::No,
            before: 0,
            seen: now,
            moved: now,
            inspected: now,
            pace: known.pace,
            joined: None,
            grace: known.grace,
            was_free: false,
            was_reserved: false,
            shared: known.shared,
            notifies: false,
            expires: None,
            poll: Duration::ZERO,
            inspect_at: now,
        };
        Policy {
            position,
            began: now,
            deadline: limit.map(|limit| now + limit),
            outage,
            started: false,
            woken: false,
            reach: Reach::Unreachable,
            out_since: None,
            retry: FIRST_RETRY,
            ended: Ended::TimedOut,
            step: if known.fair_reentry { Step::Join { front: false } } else { Step::Try },
        }
    }

    /// What to do now.
    pub fn step(&mut self, now: Moment) -> Step {
        let late = self.deadline.is_some_and(|deadline| deadline <= now);
        let ending = matches!(self.step, Step::Leave | Step::End(_));
        if late && self.started && !ending {
            self.finish(Ended::TimedOut);
        } else if let Step::Sleep(until) = self.step
            && until <= now
        {
            self.step = self.inspect(now);
        }
        self.started = true;
        match self.step {
            Step::Sleep(until) => {
                Step::Sleep(self.deadline.map_or(until, |deadline| deadline.min(until)))
            }
            step => step,
        }
    }

    /// Takes note of an event. `chance` is a random number from 0 up to 1, which spreads waiters in
    /// time; `reach`: whether wake-ups are known to reach us.
    pub fn on(&mut self, event: Event, now: Moment, chance: f64, reach: Reach) {
        self.reach = reach;
        if let Step::End(_) = self.step {
            return;
        }
        if !matches!(event, Event::Failed | Event::Interrupted) {
            (self.out_since, self.retry) = (None, FIRST_RETRY);
        }
        if let (Step::Leave, false) = (self.step, matches!(event, Event::Left | Event::Failed)) {
            return;
        }
        match event {
            Event::Interrupted => self.finish(Ended::Interrupted),
            Event::Failed => self.failed(now),
            Event::Left => self.left(now, chance),
            Event::Woken(after) => {
                self.position.queued = Queued::No;
                self.woken = true;
                self.step = if after.is_zero() { Step::Try } else { Step::Sleep(now + after) };
            }
            Event::Missed => {
                let front = std::mem::take(&mut self.woken);
                self.step = match self.position.queued {
                    Queued::No => Step::Join { front },
                    // Another client was faster, which may not know that we wait.
                    _ => Step::Inspect { target: true, queue: false },
                };
            }
            Event::Refused => {
                self.position.queued = Queued::Crowded;
                self.step = self.sleep(now, chance);
            }
            Event::Joined { before, state } => {
                self.position.queued = Queued::Yes;
                self.position.joined.get_or_insert((now, before));
                (self.position.before, self.position.seen, self.position.moved) =
                    (before, now, now);
                self.position.poll = Duration::ZERO;
                self.step = Step::StepOut;
                if before < MOST_WAITERS || state.is_available() {
                    self.observe(state, now, chance);
                }
            }
            Event::Inspected { view, state } => self.inspected(view, state, now, chance),
        }
    }

    /// The target has changed hands: it may soon do so again.
    pub fn target_changed_hands(&mut self) {
        self.position.poll = Duration::ZERO;
    }

    /// Whether our turn came without a wake-up: it did not reach us, or the queue was lost.
    pub fn was_passed_over(&self, view: QueueView) -> bool {
        self.position.queued == Queued::Yes && !matches!(view, QueueView::Behind(_))
    }

    /// Whether we are in the queue, as far as we know.
    pub fn is_queued(&self) -> bool {
        self.position.queued == Queued::Yes
    }

    /// Whether our turn has come, or we are the first as far as we know.
    pub fn is_called(&self) -> bool {
        self.woken || self.is_queued() && self.position.before == 0
    }

    /// How long the queue took for one waiter, in this wait.
    pub fn pace(&self, now: Moment) -> Option<Duration> {
        let (joined, before) = self.position.joined?;
        Some(now.since(joined) / u32::try_from(before + 1).unwrap_or(u32::MAX))
    }

    /// Our place in the queue, for another waiter of this process to take over; if there is one.
    pub fn position(&self) -> Option<QueuePosition> {
        (self.position.queued == Queued::Yes && !self.woken).then_some(self.position)
    }

    /// Takes over another waiter's place, with its wake-up and its time of inspection.
    pub fn take_over(&mut self, position: QueuePosition, reach: Reach) {
        (self.position, self.reach, self.started) = (position, reach, true);
        if self.woken {
            self.position.queued = Queued::No;
        } else {
            self.step = Step::Sleep(self.position.inspect_at);
        }
    }

    fn finish(&mut self, ended: Ended) {
        self.ended = ended;
        // We saw it free and were about to try: the next one is to be woken, and not to sleep at
        // the place that it takes over from us.
        self.woken |= self.step == Step::Try && self.position.queued == Queued::Yes;
        // A wake-up for us may be on its way, or was received: it must be passed on.
        let must_leave = self.woken || self.position.queued == Queued::Yes;
        self.step = if must_leave { Step::Leave } else { Step::End(ended) };
    }

    fn left(&mut self, now: Moment, chance: f64) {
        self.step = match self.step {
            Step::Leave => Step::End(self.ended),
            _ => {
                self.position.queued = Queued::Crowded;
                self.sleep(now, chance)
            }
        };
    }

    fn failed(&mut self, now: Moment) {
        if self.step == Step::Leave {
            // The entry is lost with the queue, or removed by the next wake-up in vain.
            return self.left(now, 0.0);
        }
        if now.since(*self.out_since.get_or_insert(now)) >= self.outage {
            self.step = Step::End(Ended::Outage);
            return;
        }
        self.step = Step::Sleep(now + self.retry);
        self.retry = (self.retry * 2).min(LONGEST_RETRY);
    }

    fn inspected(
        &mut self,
        view: Option<QueueView>,
        state: Option<TargetState>,
        now: Moment,
        chance: f64,
    ) {
        let mut slow = false;
        let view = if view == Some(QueueView::Lost) {
            Some(QueueView::Removed { waiters: 0 })
        } else {
            view
        };
        match view {
            Some(QueueView::Removed { waiters }) if self.position.queued == Queued::Crowded => {
                self.position.seen = now;
                if waiters < MOST_WAITERS && !state.is_some_and(TargetState::is_available) {
                    self.step = Step::Join { front: false };
                    return;
                }
            }
            // It was our turn, and perhaps still is: the target may be reserved for us.
            Some(QueueView::Removed { .. }) if state.is_none() => {
                self.step = Step::Inspect { target: true, queue: true };
                return;
            }
            Some(QueueView::Removed { .. }) => {
                self.position.queued = Queued::No;
                self.woken = state
                    .is_some_and(|state| state.is_available() || state == TargetState::Reserved);
                self.step = if self.woken { Step::Try } else { Step::Join { front: true } };
                return;
            }
            Some(QueueView::Behind(before)) => {
                let unseen = now.since(self.position.inspected) >= HEAD;
                slow = self.position.is_behind(before, now) > SLOW && unseen;
            }
            Some(QueueView::Lost) | None => {}
        }
        match state {
            Some(seen) => self.observe(seen, now, chance),
            None if slow || self.position.before == 0 => {
                self.step = Step::Inspect { target: true, queue: false }
            }
            None => self.step = self.sleep(now, chance),
        }
    }

    fn observe(&mut self, seen: TargetState, now: Moment, chance: f64) {
        let position = &mut self.position;
        position.inspected = now;
        let grace_left = std::mem::take(&mut position.grace);
        let was_reserved = std::mem::take(&mut position.was_reserved);
        match seen {
            TargetState::Reserved => {
                (position.queued, position.was_free) = (Queued::No, false);
                (self.woken, self.step) = (true, Step::Try);
                return;
            }
            TargetState::ReservedForOther(left) => {
                (position.was_free, position.notifies, position.was_reserved) = (false, true, true);
                // An unreachable waiter inspects it before: that one may be done by then, and a
                // wake-up for us would be lost.
                if self.reach != Reach::Unreachable {
                    position.inspect_at = now + left.mul_f64(1.0 + 0.2 * chance);
                    self.step = Step::Sleep(position.inspect_at);
                    return;
                }
            }
            TargetState::Ours => {
                position.was_free = false;
                self.step = Step::Try;
                return;
            }
            // The waiter that was woken goes first.
            TargetState::Free
                if position.was_free || position.before == 0 && grace_left.is_zero() =>
            {
                position.was_free = false;
                self.step = Step::Try;
                return;
            }
            TargetState::Free if position.leaves_it_to_others(chance) && !was_reserved => {
                position.was_free = true
            }
            TargetState::Free => {
                position.was_free = true;
                let grace = if position.before > 0 {
                    GRACE.mul_f64(1.0 + 0.6 * chance)
                } else {
                    Duration::ZERO
                };
                self.step = Step::Sleep(now + grace.max(grace_left));
                return;
            }
            TargetState::Held { notifies, left } => {
                (position.was_free, position.notifies) = (false, notifies);
                position.expires = left.map(|left| now + left);
            }
        }
        self.step = self.sleep(now, chance);
    }

    fn inspect(&self, now: Moment) -> Step {
        let position = &self.position;
        if position.queued == Queued::No {
            return Step::Try;
        }
        // Nothing else tells a waiter that its wake-up was lost. An unreachable one finds a
        // reservation.
        let notified = self.is_notified() && self.reach != Reach::Unreachable && !position.was_free;
        let queue = notified || now.since(position.seen) >= QUEUE_CHECK;
        if self.out_since.is_some() {
            Step::Inspect { target: true, queue: true }
        } else if self.is_notified()
            && position.before > 0
            && !position.was_free
            && !position.was_reserved
        {
            Step::Inspect { target: false, queue: true }
        } else {
            Step::Inspect { target: true, queue }
        }
    }

    /// Whether holders notify us when our turn comes: by a wake-up, or by a reservation.
    fn is_notified(&self) -> bool {
        self.position.notifies && self.position.queued == Queued::Yes
    }

    fn sleep(&mut self, now: Moment, chance: f64) -> Step {
        // Those before us that were to try hold it by then, and will pass it on.
        let notified =
            self.is_notified() || self.position.was_free && self.position.queued == Queued::Yes;
        let pause = match (notified, self.reach, self.position.before) {
            (true, Reach::Proven, 0) => {
                self.position.pause_as_first(now).mul_f64(0.85 + 0.15 * chance)
            }
            (true, Reach::Proven, _) if !self.position.was_free => {
                self.position.until_turn().mul_f64(1.0 + 0.15 * chance)
            }
            (true, Reach::Untested | Reach::Proven, 1..) => {
                self.position.until_turn().min(UNTESTED).mul_f64(0.85 + 0.15 * chance)
            }
            (notified, reach, before) => {
                let soon = notified && reach == Reach::Unreachable;
                let longest = match before {
                    0 | 1 if soon => CLAIM,
                    _ if now.since(self.began) < YOUNG => POLL[1],
                    _ => POLL[2],
                };
                let position = &mut self.position;
                let first = if soon && before == 0 { NEXT } else { POLL[0] };
                position.poll = position.poll.mul_f64(1.5).clamp(first, longest);
                let turns = u32::try_from(before).unwrap_or(u32::MAX);
                let turn = position.pace.filter(|_| soon && before > 0);
                let turn = turn
                    .map_or(position.poll, |pace| pace.saturating_mul(turns).clamp(NEXT, longest));
                turn.mul_f64(0.85 + 0.15 * chance)
            }
        };
        let pause =
            if mutation::has(Mutation::WakeUpsAlone) { Duration::from_secs(3600) } else { pause };
        self.position.inspect_at = now + pause;
        Step::Sleep(self.position.inspect_at)
    }
}

impl QueuePosition {
    /// So many are before us now. Returns how long the queue takes for one waiter.
    fn is_behind(&mut self, before: usize, now: Moment) -> Duration {
        let fewer = self.before.saturating_sub(before);
        let pace = now.since(self.moved) / u32::try_from(fewer.max(1)).unwrap_or(u32::MAX);
        if fewer > 0 {
            self.moved = now;
        }
        if before == 0 && self.before > 0 {
            self.poll = Duration::ZERO;
        }
        (self.before, self.seen, self.pace) = (before, now, Some(pace));
        pace
    }

    /// Whether the check that the permits stay available is left to the waiters before this one.
    fn leaves_it_to_others(&self, chance: f64) -> bool {
        let before = f64::from(u32::try_from(self.before).unwrap_or(u32::MAX));
        self.shared && self.before > NEAR && chance * before >= 1.0
    }

    /// The pause of the first in the queue if it expects to be woken.
    fn pause_as_first(&self, now: Moment) -> Duration {
        // An inspection shortly before the item expires would cost another one.
        let half = self.expires.map_or(HEAD, |left| (left.since(now) / 2).max(HEAD / 4));
        HEAD.min(half)
    }

    /// The time until our turn is due, behind others.
    fn until_turn(&self) -> Duration {
        let turns = f64::from(u32::try_from(self.before).unwrap_or(u32::MAX)) + 1.0;
        match self.pace {
            // A pace may have been measured while a process stood still: it is not relied on for
            // long.
            Some(pace) => {
                let turn = pace.min(SLOWEST).mul_f64(1.25 * turns) + Duration::from_millis(300);
                // Nor is the end of the wait for others: a lost wake-up is to be noticed in time.
                turn.clamp(LATER.0, LATER.1).min(HEAD.mul_f64(turns))
            }
            None => SLOW.mul_f64(turns).clamp(FIRST.0, FIRST.1),
        }
    }
}

#[cfg(test)]
mod tests;
