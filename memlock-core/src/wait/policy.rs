//! What a waiter does next: a state machine that knows the time and what happened, and does no I/O.
//!
//! A driver asks [`Policy::step`] what to do, does it, and tells [`Policy::on`] what came of it. The
//! blocking driver is `drive`; a simulation and an event loop can be others. The plan knows nothing
//! of what is waited for: only whether it was seen to be free.
//!
//! **When to look without having been woken.** The lock may be free without our hearing of it: its
//! holder died, the waiter before us died with a wake-up to pass on, a wake-up was lost. How soon a
//! waiter looks:
//!
//! | the waiter | looks after |
//! | --- | --- |
//! | saw the lock free, and others before it in the queue | 25 to 40 ms: the one that was woken may be dead |
//! | saw permits available, more than two before it | as an untested one behind others; one of n as in the first row |
//! | woke another one just now, came back at once, and saw the lock free | 2 ms, or 100 ms if that has no listener: the other one comes first |
//! | is proven reachable and the first in the queue, and the holder wakes it | 1 s; less where the holder's lease ends before |
//! | as before, behind others | 0.6 s for each of them, between 1 and 4.3 s; then when its turn should have come by the pace of the queue, 1 s for each of them at most |
//! | is untested, behind others | as before, and 0.9 s at most |
//! | is unreachable, behind others | when its turn should have come, and from 150 to 280 ms while the wait is young, to 0.7 s later; behind one, 250 ms at most |
//! | is the first in the queue and unreachable | 10 ms, growing by half each time to 250 ms |
//! | is the first in the queue and untested | 150 ms, growing by half each time to 280 ms while the wait is young, to 0.7 s later |
//! | saw that the lock is reserved for another waiter | 300 ms: that one is taken for dead then |
//! | has a holder that wakes nobody, or no place in the queue | as an untested waiter that is the first |
//!
//! So the waiters of a healthy queue together ask the server for next to nothing, however many they
//! are. An unreachable waiter does not depend on being woken: a mutex is reserved for it (see
//! `mutex/reserve.rs`), and it looks more often than a reservation can be broken.

use std::time::Duration;

use super::entries::MOST_WAITERS;
use crate::clock::Moment;
use crate::mutation::{self, Mutation};
use crate::notify::Reach;

mod terms;

pub use terms::{Ended, Event, Known, QueueView, Step, TargetState};

/// How long the waiter that was woken may take before one behind it takes the lock.
const GRACE: Duration = Duration::from_millis(25);
/// A waiter for permits with more than so many others before it leaves that check to them. Of n
/// such waiters one checks all the same: in a busy queue the first ones are woken before they look.
const NEAR: usize = 2;
/// The pauses of a waiter at the head that expects to be woken.
const HEAD: Duration = Duration::from_secs(1);
/// A queue that needs longer than this for one waiter is looked at more closely.
const SLOW: Duration = Duration::from_millis(600);
/// Nor is a queue believed to need longer than this.
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
/// Nor does such a waiter pause for longer where at most one stands before it: a reservation for it
/// lasts a little longer.
const CLAIM: Duration = Duration::from_millis(250);
/// The longest pause of an untested waiter behind others.
const UNTESTED: Duration = Duration::from_millis(900);
/// Until then a wait is young.
const YOUNG: Duration = Duration::from_secs(1);
/// How often a waiter without a listener, or at the head, sees to it that it still stands in the queue.
const QUEUE_CHECK: Duration = Duration::from_secs(2);
/// The first pause after a failure; each further one is twice as long, up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(5);
const LONGEST_RETRY: Duration = Duration::from_millis(250);

/// A wait on its way.
#[derive(Clone, Debug)]
pub struct Policy {
    position: QueuePosition,
    began: Moment,
    deadline: Option<Moment>,
    outage: Duration,
    /// Whether anything was tried yet: the first step is taken whatever the time.
    started: bool,
    /// Our turn has come, and nobody else will be woken before we try.
    woken: bool,
    reach: Reach,
    out_since: Option<Moment>,
    retry: Duration,
    /// What to end with once the queue is left.
    ended: Ended,
    step: Step,
}

/// A stand in the queue, which one waiter can take over from another of the same process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePosition {
    queued: Queued,
    /// How many stood before us, when that was, and when it last became fewer.
    before: usize,
    seen: Moment,
    moved: Moment,
    /// When what is waited for was looked at last.
    looked: Moment,
    /// How long the queue takes for one waiter, as far as that was seen.
    pace: Option<Duration>,
    /// When we entered it, and how many stood before us then.
    joined: Option<(Moment, usize)>,
    /// How long somebody who has left the queue, and comes before us, has to come.
    invited: Duration,
    /// The last look found the lock free and others before us.
    free: bool,
    /// It was reserved for a waiter that did not come.
    awaited: bool,
    /// See [`Known::shared`].
    shared: bool,
    /// Whether the holder that was seen last wakes.
    notifies: bool,
    /// When the server lets go of that holder at the latest.
    left: Option<Moment>,
    /// The last pause of a waiter that may not be woken.
    poll: Duration,
    /// When to look, if nobody wakes: also if another waiter has taken the place over by then.
    look: Moment,
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
    /// A wait that begins now, and rides out outages of the server up to that long.
    pub fn new(now: Moment, limit: Option<Duration>, outage: Duration, known: Known) -> Policy {
        let position = QueuePosition {
            queued: Queued::No,
            before: 0,
            seen: now,
            moved: now,
            looked: now,
            pace: known.pace,
            joined: None,
            invited: known.invited,
            free: false,
            awaited: false,
            shared: known.shared,
            notifies: false,
            left: None,
            poll: Duration::ZERO,
            look: now,
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
            self.step = self.look(now);
        }
        self.started = true;
        match self.step {
            Step::Sleep(until) => {
                Step::Sleep(self.deadline.map_or(until, |deadline| deadline.min(until)))
            }
            step => step,
        }
    }

    /// Takes in what happened. `chance` is a number from 0 up to 1 that spreads waiters in time;
    /// `reach`: whether wake-up messages are known to reach us.
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
                    // Somebody was faster, who may not know that we wait.
                    _ => Step::Look { lock: true, queue: false },
                };
            }
            Event::Refused => {
                self.position.queued = Queued::Crowded;
                self.step = self.sleep(now, chance);
            }
            Event::Joined { before, lock } => {
                self.position.queued = Queued::Yes;
                self.position.joined.get_or_insert((now, before));
                (self.position.before, self.position.seen, self.position.moved) =
                    (before, now, now);
                self.position.poll = Duration::ZERO;
                self.step = Step::StepOut;
                if before < MOST_WAITERS || lock.can_be_had() {
                    self.observe(lock, now, chance);
                }
            }
            Event::Looked { stand, lock } => self.looked(stand, lock, now, chance),
        }
    }

    /// What we wait for changes hands: so it may soon do so again.
    pub fn moves(&mut self) {
        self.position.poll = Duration::ZERO;
    }

    /// Whether our turn came without our being told: wake-ups do not reach us, or the queue was lost.
    pub fn was_passed_over(&self, stand: QueueView) -> bool {
        self.position.queued == Queued::Yes && !matches!(stand, QueueView::Successors(_))
    }

    /// Whether we stand in the queue, as far as we know.
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

    /// Takes over another waiter's place. It is woken as before, and looked at when it would have
    /// been.
    pub fn take_over(&mut self, position: QueuePosition, reach: Reach) {
        (self.position, self.reach, self.started) = (position, reach, true);
        if self.woken {
            self.position.queued = Queued::No;
        } else {
            self.step = Step::Sleep(self.position.look);
        }
    }

    fn finish(&mut self, ended: Ended) {
        self.ended = ended;
        // We saw it free and were about to try: whoever is next is to look at once, and not to take
        // over our place and sleep there.
        self.woken |= self.step == Step::Try && self.position.queued == Queued::Yes;
        // Somebody may be about to wake us, or has done so: that must not be lost.
        let owes = self.woken || self.position.queued == Queued::Yes;
        self.step = if owes { Step::Leave } else { Step::End(ended) };
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
            // It dies with the queue, or at the next wake-up that it does not answer.
            return self.left(now, 0.0);
        }
        if now.since(*self.out_since.get_or_insert(now)) >= self.outage {
            self.step = Step::End(Ended::Outage);
            return;
        }
        self.step = Step::Sleep(now + self.retry);
        self.retry = (self.retry * 2).min(LONGEST_RETRY);
    }

    fn looked(
        &mut self,
        stand: Option<QueueView>,
        lock: Option<TargetState>,
        now: Moment,
        chance: f64,
    ) {
        let mut slow = false;
        let stand = if stand == Some(QueueView::Lost) {
            Some(QueueView::Gone { waiters: 0 })
        } else {
            stand
        };
        match stand {
            Some(QueueView::Gone { waiters }) if self.position.queued == Queued::Crowded => {
                self.position.seen = now;
                if waiters < MOST_WAITERS && !lock.is_some_and(TargetState::can_be_had) {
                    self.step = Step::Join { front: false };
                    return;
                }
            }
            // It was our turn, and perhaps still is: it may be reserved for us.
            Some(QueueView::Gone { .. }) if lock.is_none() => {
                self.step = Step::Look { lock: true, queue: true };
                return;
            }
            Some(QueueView::Gone { .. }) => {
                self.position.queued = Queued::No;
                self.woken =
                    lock.is_some_and(|lock| lock.can_be_had() || lock == TargetState::Reserved);
                self.step = if self.woken { Step::Try } else { Step::Join { front: true } };
                return;
            }
            Some(QueueView::Successors(before)) => {
                let unseen = now.since(self.position.looked) >= HEAD;
                slow = self.position.stands_behind(before, now) > SLOW && unseen;
            }
            Some(QueueView::Lost) | None => {}
        }
        match lock {
            Some(seen) => self.observe(seen, now, chance),
            None if slow || self.position.before == 0 => {
                self.step = Step::Look { lock: true, queue: false }
            }
            None => self.step = self.sleep(now, chance),
        }
    }

    fn observe(&mut self, seen: TargetState, now: Moment, chance: f64) {
        let position = &mut self.position;
        position.looked = now;
        let invited = std::mem::take(&mut position.invited);
        let awaited = std::mem::take(&mut position.awaited);
        match seen {
            TargetState::Reserved => {
                (position.queued, position.free) = (Queued::No, false);
                (self.woken, self.step) = (true, Step::Try);
                return;
            }
            TargetState::Awaited(left) => {
                (position.free, position.notifies, position.awaited) = (false, true, true);
                // That one may have its turn by then, and an unreachable waiter would not hear that
                // it is the next.
                if self.reach != Reach::Unreachable {
                    position.look = now + left.mul_f64(1.0 + 0.2 * chance);
                    self.step = Step::Sleep(position.look);
                    return;
                }
            }
            TargetState::Ours => {
                position.free = false;
                self.step = Step::Try;
                return;
            }
            // The one that was woken goes first.
            TargetState::Free if position.free || position.before == 0 && invited.is_zero() => {
                position.free = false;
                self.step = Step::Try;
                return;
            }
            TargetState::Free if position.leaves_it_to_others(chance) && !awaited => {
                position.free = true
            }
            TargetState::Free => {
                position.free = true;
                let grace = if position.before > 0 {
                    GRACE.mul_f64(1.0 + 0.6 * chance)
                } else {
                    Duration::ZERO
                };
                self.step = Step::Sleep(now + grace.max(invited));
                return;
            }
            TargetState::Held { notifies, left } => {
                (position.free, position.notifies) = (false, notifies);
                position.left = left.map(|left| now + left);
            }
        }
        self.step = self.sleep(now, chance);
    }

    fn look(&self, now: Moment) -> Step {
        let position = &self.position;
        if position.queued == Queued::No {
            return Step::Try;
        }
        // A waiter that was woken in vain is told by nothing else. For an unreachable one there is
        // a reservation.
        let told = self.has_its_turn() && self.reach != Reach::Unreachable && !position.free;
        let queue = told || now.since(position.seen) >= QUEUE_CHECK;
        if self.out_since.is_some() {
            Step::Look { lock: true, queue: true }
        } else if self.has_its_turn() && position.before > 0 && !position.free && !position.awaited
        {
            Step::Look { lock: false, queue: true }
        } else {
            Step::Look { lock: true, queue }
        }
    }

    /// Whether holders see to it that our turn comes: by waking us, or by a reservation.
    fn has_its_turn(&self) -> bool {
        self.position.notifies && self.position.queued == Queued::Yes
    }

    fn sleep(&mut self, now: Moment, chance: f64) -> Step {
        // Those who pass a free lock on hold it by then.
        let told = self.has_its_turn() || self.position.free && self.position.queued == Queued::Yes;
        let pause = match (told, self.reach, self.position.before) {
            (true, Reach::Proven, 0) => self.position.as_first(now).mul_f64(0.85 + 0.15 * chance),
            (true, Reach::Proven, _) if !self.position.free => {
                self.position.until_our_turn().mul_f64(1.0 + 0.15 * chance)
            }
            (true, Reach::Untested | Reach::Proven, 1..) => {
                self.position.until_our_turn().min(UNTESTED).mul_f64(0.85 + 0.15 * chance)
            }
            (told, reach, before) => {
                let soon = told && reach == Reach::Unreachable;
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
            if mutation::has(Mutation::BellsAlone) { Duration::from_secs(3600) } else { pause };
        self.position.look = now + pause;
        Step::Sleep(self.position.look)
    }
}

impl QueuePosition {
    /// So many stand before us. Gives how long the queue takes for one waiter.
    fn stands_behind(&mut self, before: usize, now: Moment) -> Duration {
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

    /// The pause of the first in the queue that expects to be woken.
    fn as_first(&self, now: Moment) -> Duration {
        // The server's last second may be over in no time, and a look too early costs another.
        let half = self.left.map_or(HEAD, |left| (left.since(now) / 2).max(HEAD / 4));
        HEAD.min(half)
    }

    /// When our turn should have come, behind others.
    fn until_our_turn(&self) -> Duration {
        let turns = f64::from(u32::try_from(self.before).unwrap_or(u32::MAX)) + 1.0;
        match self.pace {
            // A pace that was seen while something stood still is not to be relied on for long.
            Some(pace) => {
                let turn = pace.min(SLOWEST).mul_f64(1.25 * turns) + Duration::from_millis(300);
                // Nor is one that the process could not hear: it is to be found out in time.
                turn.clamp(LATER.0, LATER.1).min(HEAD.mul_f64(turns))
            }
            None => SLOW.mul_f64(turns).clamp(FIRST.0, FIRST.1),
        }
    }
}

#[cfg(test)]
mod tests;
