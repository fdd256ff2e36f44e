//! What a waiter does next: a state machine that receives the time and events, and does no I/O.
//!
//! A driver calls [`Policy::step`], carries out the step, and reports the result to [`Policy::on`].
//! The blocking driver is `driver`; an event loop can be another. The policy knows nothing of the
//! target except its state at the last inspection.
//!
//! **When to inspect the target without a wake-up.** The target may become free without a message:
//! its holder died, the waiter before this one died with a wake-up to forward, or a wake-up was
//! lost. How long a waiter sleeps before it inspects the target:
//!
//! | the waiter | sleeps for |
//! | --- | --- |
//! | saw the target free, and others before it in the queue | 25 to 40 ms: the waiter that was woken may be dead |
//! | saw permits available, with n > 2 others before it | until its turn is due, at most 0.9 s; one in n as in the first row |
//! | woke another waiter, returned at once, and saw the target free | 2 ms: the other waiter goes first |
//! | is not known to be unreachable and the first in the queue, and the holder sends wake-ups | 1 s; less if the holder's lease ends before |
//! | the same, behind others | 0.6 s per position (the first in the queue is 1), 1 to 4.3 s; later until its turn is due by the pace of the queue, at most 1 s per position |
//! | is unreachable, behind others | until its turn is due; 150 to 280 ms while the wait is young, up to 0.7 s later; behind one other, at most 250 ms |
//! | is unreachable, and the first in the queue | 10 ms, growing by half each time up to 250 ms |
//! | saw the target reserved for another waiter | 300 ms: that waiter is then presumed dead |
//! | waits for a holder that sends no wake-ups, or is not in the queue | 150 ms, growing by half each time up to 280 ms while the wait is young, up to 0.7 s later |
//!
//! A waiter behind others inspects the queue; if the target is a mutex, also the mutex, in the same
//! request (an unreachable waiter at most every 3 s). It takes a free mutex only if the queue has
//! not moved since it first saw it free.
//!
//! The waiters of a healthy queue therefore send almost nothing to the server, however many they
//! are. An unreachable waiter does not depend on wake-ups: a mutex is reserved for it (see
//! `mutex/reserve.rs`), and the waiter inspects the mutex before a reservation can expire.

use std::time::Duration;

use super::entries::MOST_WAITERS;
use crate::clock::Moment;
use crate::mutation::{self, Mutation};
use crate::notify::Reach;

mod terms;

pub use terms::{Ended, Event, Known, QueueView, Step, TargetState};

/// How long the woken waiter may take before a waiter behind it acquires the lock.
const GRACE: Duration = Duration::from_millis(25);
/// A waiter that sees permits available and has more others than this before it leaves it to them
/// to check again after `GRACE`. One in n such waiters checks all the same: in a busy queue the
/// first waiters are woken before they inspect the target.
const NEAR: usize = 2;
/// The pause of the first waiter if it expects a wake-up.
const HEAD: Duration = Duration::from_secs(1);
/// If the queue takes longer than this to advance by one waiter, the target is inspected as well.
const SLOW: Duration = Duration::from_millis(600);
/// A slower pace than this is not relied on.
const SLOWEST: Duration = Duration::from_millis(1500);
/// The bounds of the first pause behind others, and of later pauses.
const FIRST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(4300));
const LATER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// The pauses of a waiter that may not receive wake-ups: the first, the longest in a young wait,
/// and the longest.
const POLL: [Duration; 3] =
    [Duration::from_millis(150), Duration::from_millis(280), Duration::from_millis(700)];
/// The first pause of an unreachable waiter that is the first in the queue.
const NEXT: Duration = Duration::from_millis(10);
/// The longest pause of an unreachable waiter with at most one waiter before it: a reservation
/// lasts a little longer.
const CLAIM: Duration = Duration::from_millis(250);
/// The longest pause of a waiter that leaves available permits to others before it.
const LEFT: Duration = Duration::from_millis(900);
/// A wait is young for this long.
const YOUNG: Duration = Duration::from_secs(1);
/// How often a waiter that may not receive wake-ups checks that it is still in the queue.
const QUEUE_CHECK: Duration = Duration::from_secs(2);
/// How often an unreachable waiter behind others reads the mutex.
const TARGET_CHECK: Duration = Duration::from_secs(3);
/// The first pause after a failure. Each further pause is twice as long, up to the longest; by
/// chance, up to half of it is left out.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// The same if the server takes no more connections: each that it refuses costs it work, and many
/// clients may wait for one.
const CROWDED: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The state of one wait.
#[derive(Clone, Debug)]
pub struct Policy {
    position: QueuePosition,
    began: Moment,
    deadline: Option<Moment>,
    outage: Duration,
    /// Whether a step was taken: the first one is taken whatever the time.
    started: bool,
    /// This waiter's turn has come: no other waiter is woken before it has tried.
    woken: bool,
    reach: Reach,
    out_since: Option<Moment>,
    /// The last pause after a failure.
    retry: Duration,
    /// The result of the wait once the queue is left.
    ended: Ended,
    step: Step,
}

/// A position in the queue. One waiter can take it over from another of the same process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePosition {
    queued: Queued,
    /// How many waiters are before this one, when that was last read, and when the number last
    /// fell.
    before: usize,
    seen: Moment,
    moved: Moment,
    /// When the target was last inspected.
    inspected: Moment,
    /// How long the queue takes to advance by one waiter, as far as observed.
    pace: Option<Duration>,
    /// When this waiter joined the queue, and how many were before it then.
    joined: Option<(Moment, usize)>,
    /// See [`Known::grace`].
    grace: Duration,
    /// The last inspection found the target free, with others before this waiter.
    was_free: bool,
    /// The last inspection found the target reserved for another waiter.
    was_reserved: bool,
    /// See [`Known::shared`].
    shared: bool,
    /// Whether the holder at the last inspection will send a wake-up.
    notifies: bool,
    /// When that holder's item expires.
    expires: Option<Moment>,
    /// The last pause of a waiter that may not receive wake-ups.
    poll: Duration,
    /// When to inspect the target without a wake-up. Stays valid if another waiter takes over the
    /// position.
    inspect_at: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queued {
    /// Not yet, or no longer.
    No,
    Yes,
    /// The queue was full.
    Crowded,
}

impl Policy {
    /// A wait that begins now, and continues through outages of up to this length.
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
            retry: Duration::ZERO,
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

    /// Handles an event. `chance` is a random number in [0, 1), which spreads waiters in time.
    /// `reach`: whether wake-ups are known to reach this process.
    pub fn on(&mut self, event: Event, now: Moment, chance: f64, reach: Reach) {
        self.reach = reach;
        if let Step::End(_) = self.step {
            return;
        }
        let has_failed = matches!(event, Event::Failed | Event::Crowded);
        if !has_failed && event != Event::Interrupted {
            (self.out_since, self.retry) = (None, Duration::ZERO);
        }
        if self.step == Step::Leave && !has_failed && event != Event::Left {
            return;
        }
        match event {
            Event::Interrupted => self.finish(Ended::Interrupted),
            Event::Failed => self.failed(RETRY, now, chance),
            Event::Crowded => self.failed(CROWDED, now, chance),
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
                    // Another client was faster, and may not know that this waiter waits.
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

    /// The target has changed hands, and may soon do so again.
    pub fn target_changed_hands(&mut self) {
        self.position.poll = Duration::ZERO;
    }

    /// Whether this waiter's turn came without a wake-up: the message was lost, or the queue was.
    pub fn was_passed_over(&self, view: QueueView) -> bool {
        self.position.queued == Queued::Yes && !matches!(view, QueueView::Behind(_))
    }

    /// Whether this waiter is in the queue, as far as it knows.
    pub fn is_queued(&self) -> bool {
        self.position.queued == Queued::Yes
    }

    /// Whether this waiter's turn has come, or it is the first as far as it knows.
    pub fn is_called(&self) -> bool {
        self.woken || self.is_queued() && self.position.before == 0
    }

    /// How long the queue took to advance by one waiter, during this wait.
    pub fn pace(&self, now: Moment) -> Option<Duration> {
        let (joined, before) = self.position.joined?;
        Some(now.since(joined) / u32::try_from(before + 1).unwrap_or(u32::MAX))
    }

    /// This waiter's position in the queue, if it has one, for another waiter of this process to
    /// take over.
    pub fn position(&self) -> Option<QueuePosition> {
        (self.position.queued == Queued::Yes && !self.woken).then_some(self.position)
    }

    /// Takes over another waiter's position, with its wake-up and its time of inspection.
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
        // The target was seen free, and this waiter was about to try. The next waiter has to be
        // woken, rather than sleep at the position that it takes over.
        self.woken |= self.step == Step::Try && self.position.queued == Queued::Yes;
        // A wake-up for this waiter may be under way, or was received: it must be forwarded.
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

    fn failed(&mut self, (first, longest): (Duration, Duration), now: Moment, chance: f64) {
        if self.step == Step::Leave {
            // The entry is lost with the queue, or removed by the next wake-up in vain.
            return self.left(now, 0.0);
        }
        if now.since(*self.out_since.get_or_insert(now)) >= self.outage {
            self.step = Step::End(Ended::Outage);
            return;
        }
        self.retry = (self.retry * 2).clamp(first, longest);
        self.step = Step::Sleep(now + self.retry.mul_f64(0.5 + 0.5 * chance));
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
            // It was this waiter's turn, and may still be: the target may be reserved for it.
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
                self.position.was_free &= self.position.shared || before == self.position.before;
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
                // An unreachable waiter inspects the target earlier: the other waiter may have
                // finished by then, and a wake-up for this one would be lost.
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
            // The woken waiter goes first.
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
        if self.out_since.is_some() {
            return Step::Inspect { target: true, queue: true };
        }
        let is_behind = position.before > 0;
        let is_reachable = self.reach != Reach::Unreachable;
        let expects = self.is_notified() && !position.was_free;
        let is_calm = expects && is_behind && !position.was_reserved;
        // Only the queue shows a waiter that its wake-up was lost. An unreachable waiter finds a
        // reservation. If the queue has moved since the lock was seen free, the lock changes hands.
        let queue = is_calm
            || expects && is_reachable
            || position.was_free && is_behind && !position.shared
            || now.since(position.seen) >= QUEUE_CHECK;
        // A queue that moves does not show that the lock is held now: a releaser removes the entry
        // of a dead waiter, too. Permits are often available, to others. An unreachable waiter
        // inspects the queue so often that it reads the lock only now and then.
        let is_due = is_reachable || now.since(position.inspected) >= TARGET_CHECK;
        let target = !is_calm || is_due && !position.shared;
        Step::Inspect { target, queue }
    }

    /// Whether holders notify this waiter when its turn comes, by a wake-up or a reservation.
    fn is_notified(&self) -> bool {
        self.position.notifies && self.position.queued == Queued::Yes
    }

    fn sleep(&mut self, now: Moment, chance: f64) -> Step {
        // By then the waiters before this one that were to try hold the target, and will wake it.
        let notified =
            self.is_notified() || self.position.was_free && self.position.queued == Queued::Yes;
        let pause = match (notified, self.reach, self.position.before) {
            (true, Reach::Proven | Reach::Untested, 0) => {
                self.position.pause_as_first(now).mul_f64(0.85 + 0.15 * chance)
            }
            (true, Reach::Proven | Reach::Untested, _) if !self.position.was_free => {
                self.position.until_turn().mul_f64(1.0 + 0.15 * chance)
            }
            (true, Reach::Proven | Reach::Untested, 1..) => {
                self.position.until_turn().min(LEFT).mul_f64(0.85 + 0.15 * chance)
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
    /// Records how many are before this waiter. Returns how long the queue took to advance by one
    /// waiter.
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

    /// Whether this waiter leaves it to those before it to check that the permits stay available.
    fn leaves_it_to_others(&self, chance: f64) -> bool {
        let before = f64::from(u32::try_from(self.before).unwrap_or(u32::MAX));
        self.shared && self.before > NEAR && chance * before >= 1.0
    }

    /// The pause of the first waiter in the queue if it expects a wake-up.
    fn pause_as_first(&self, now: Moment) -> Duration {
        // An inspection shortly before the item expires would require another one.
        let half = self.expires.map_or(HEAD, |left| (left.since(now) / 2).max(HEAD / 4));
        HEAD.min(half)
    }

    /// The time until this waiter's turn is due, behind others.
    fn until_turn(&self) -> Duration {
        let turns = f64::from(u32::try_from(self.before).unwrap_or(u32::MAX)) + 1.0;
        match self.pace {
            // The pace may have been measured while a process was stopped, so it is not relied on
            // for long.
            Some(pace) => {
                let turn = pace.min(SLOWEST).mul_f64(1.25 * turns) + Duration::from_millis(300);
                // Nor is the progress of others: a lost wake-up has to be noticed in time.
                turn.clamp(LATER.0, LATER.1).min(HEAD.mul_f64(turns))
            }
            None => SLOW.mul_f64(turns).clamp(FIRST.0, FIRST.1),
        }
    }
}

#[cfg(test)]
mod tests;
