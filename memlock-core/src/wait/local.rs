//! The waiters of one process: those that wait for the same target through the same client form a
//! list, and only the first of them is in the server's queue.
//!
//! | a waiter in the list | what is true | what may move it on |
//! | --- | --- | --- |
//! | idle | it sleeps on its listener, or has just been woken | itself, by becoming active; a releaser in this process, by handing over to it |
//! | at work | it speaks to the server, or is about to end its wait | itself |
//! | handing off | another thread is handing over to it, and speaks to the server for it; it may not leave before the result is known | that thread |
//! | given | it has it, and is to take it when it wakes | itself |
//!
//! A process that holds the target only for moments, and comes back at once each time, would spend
//! most of its time on hand-overs. It gets a **batch window** instead: it asks the next waiter to
//! try two milliseconds later, and until then acquires and releases the target as if there were no
//! waiters.
//!
//! Where several can hold the target at once, the list only names the waiters of this process: each
//! of them is in the server's queue for itself, with its own priority there.
//!
//! When the first one goes, the next one is woken, and takes over its place in the server's queue
//! if it still has one. The room also remembers what this process knows of the queue: whether
//! others were waiting, and its pace.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::policy::{Known, QueuePosition};
use crate::clock::Moment;
use crate::fork::{self, ForkLocal};
use crate::name::Key;
use crate::notify::Listener;
use crate::sync::{AtomicBool, Mutex, MutexGuard};
use crate::wait_id::WaitId;

/// If there are more lists, those without waiters are dropped.
const MAX_LISTS: usize = 1024;
/// The most entries that could not be removed from the server's queue to remember.
const MAX_LEFT_BEHIND: usize = 8;
/// What counts as "at once", and as holding something only for a moment.
pub(crate) const MOMENT: Duration = Duration::from_micros(200);
/// For how long the number of waiters at the last release is good enough, and from which number on:
/// a waiter near its turn has to know its place.
pub(crate) const RECENT: Duration = Duration::from_millis(2);
const ENOUGH: usize = 5;
/// How long a waiter that was woken has to acquire the target before this process takes it again.
const WOKEN_GRACE: Duration = Duration::from_millis(2);
/// How long a turn lasts.
const BATCH_WINDOW: Duration = Duration::from_millis(2);

/// The lines of one client. `A` is what a waiter asks for, `G` what it is given.
pub(crate) struct LocalWaiters<A, G> {
    /// Whether each waiter stands in the server's queue for itself: several of them can be served
    /// at once.
    side_by_side: bool,
    /// Also a child that a callback made in the middle of a call comes here: it finds its own.
    shared: ForkLocal<Shared<A, G>>,
}

struct Shared<A, G> {
    /// Whether there is any list: all that a caller reads as long as there is no competition.
    occupied: AtomicBool,
    lists: Mutex<WaitLists<A, G>>,
}

struct WaitLists<A, G> {
    last_number: u64,
    by_key: HashMap<Key, WaitList<A, G>>,
}

struct WaitList<A, G> {
    waiters: VecDeque<LocalWaiter<A, G>>,
    /// The ids of entries that may still be in the server's queue, though no waiter uses them: a
    /// waiter that is woken by one of them takes the wake-up for its own.
    left_behind: Vec<WaitId>,
    ticket: Option<QueueTicket>,
    known: Known,
    habit: Habit,
}

/// How this process uses what it waits for.
struct Habit {
    /// When it released the target last, if others had been waiting.
    released: Moment,
    /// The number of waiters then.
    waiting: usize,
    /// It had held it for a moment only.
    brief: bool,
    /// It comes back at once each time.
    brisk: bool,
    /// Until then it acquires the target as if there were no waiters.
    window_ends: Moment,
}

/// What was found in the queue when the next waiter was woken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WakeSummary {
    /// Others were waiting, and the turn of the first of them has come.
    pub(crate) others: bool,
    /// One of our own entries was still there.
    pub(crate) ours: bool,
    /// The queue could not be written: our entries may be there yet.
    pub(crate) stuck: bool,
    /// Of a semaphore: the number of waiters that are left, if all want the same.
    pub(crate) waiting: usize,
}

/// A place in the server's queue, with the listener that belongs to it.
pub(crate) struct QueueTicket {
    pub(crate) position: QueuePosition,
    pub(crate) ids: Vec<WaitId>,
    pub(crate) listener: Arc<dyn Listener>,
}

struct LocalWaiter<A, G> {
    number: u64,
    ask: A,
    listener: Arc<dyn Listener>,
    /// Under which ids it stands in the server's queue.
    ids: Vec<WaitId>,
    /// It was woken, and is to come so much later.
    woken: Option<Duration>,
    state: State<G>,
}

enum State<G> {
    Idle,
    Active,
    HandingOff,
    Granted(G),
}

/// A waiter that is being served. Unless it is given something, it is to look for itself in the
/// end, and asks with what stands here then.
pub(crate) struct HandingOff<'a, A: Copy, G> {
    local: &'a LocalWaiters<A, G>,
    key: &'a Key,
    number: u64,
    pub(crate) ask: A,
}

impl<A: Copy, G> HandingOff<'_, A, G> {
    /// Gives it what it waits for.
    pub(crate) fn grant(self, got: G) {
        let mut got = Some(got);
        self.local.with_waiter(self.key, self.number, |waiter| {
            if let Some(got) = got.take() {
                waiter.state = State::Granted(got);
                waiter.listener.interrupt();
            }
        });
        // If the waiter is gone, it is dropped here, where the rooms are not locked: that may speak
        // to the server.
        drop(got);
    }
}

impl<A: Copy, G> Drop for HandingOff<'_, A, G> {
    fn drop(&mut self) {
        // In a child that a callback made, the line is its parent's.
        if fork::is_astray() {
            return;
        }
        self.local.with_waiter(self.key, self.number, |waiter| {
            if matches!(waiter.state, State::HandingOff) {
                (waiter.state, waiter.ask, waiter.woken) =
                    (State::Idle, self.ask, Some(Duration::ZERO));
                waiter.listener.interrupt();
            }
        });
    }
}

/// What a waiter finds when it wakes up.
pub(crate) enum Unparked<G> {
    /// It is being served: sleep on.
    HandingOff,
    /// It has it.
    Granted(G),
    /// Nothing but perhaps a wake-up.
    Up {
        /// Another thread of this process woke it, for it to come so much later.
        woken: Option<Duration>,
    },
}

impl<A, G> Default for LocalWaiters<A, G> {
    fn default() -> Self {
        LocalWaiters { side_by_side: false, shared: ForkLocal::new() }
    }
}

impl<A, G> Default for Shared<A, G> {
    fn default() -> Self {
        let lists = WaitLists { last_number: 0, by_key: HashMap::new() };
        Shared { occupied: AtomicBool::new(false), lists: Mutex::new(lists) }
    }
}

impl<A: Copy, G> LocalWaiters<A, G> {
    /// One in which each waiter stands in the server's queue for itself.
    pub(crate) fn side_by_side() -> LocalWaiters<A, G> {
        LocalWaiters { side_by_side: true, ..LocalWaiters::default() }
    }

    /// What is known of the queue for a caller that arrives now; `None` when it may try at once. As
    /// long as there is no competition, this costs one atomic read.
    pub(crate) fn arrive(&self, key: &Key, now: Moment) -> Option<Known> {
        if !self.is_occupied() {
            return None;
        }
        let mut lists = self.lists();
        let list = lists.by_key.get_mut(key)?;
        let habit = &mut list.habit;
        let in_window = now < habit.window_ends;
        let at_once = now.since(habit.window_ends.max(habit.released)) < MOMENT;
        if !in_window {
            habit.brisk = habit.brief && at_once;
        }
        let fair_reentry = !list.waiters.is_empty() || list.known.fair_reentry && !in_window;
        let grace = if at_once { WOKEN_GRACE } else { Duration::ZERO };
        let is_recent = now.since(habit.released) < RECENT;
        let waiting = Some(habit.waiting).filter(|&waiting| is_recent && waiting >= ENOUGH);
        fair_reentry.then_some(Known { fair_reentry, grace, waiting, ..list.known })
    }

    /// For how long this process goes on, now that it releases what it held for `held` while others
    /// may be waiting.
    pub(crate) fn batch_window(&self, key: &Key, now: Moment, held: Duration) -> Duration {
        let mut lists = self.lists();
        let Some(list) = lists.by_key.get_mut(key) else { return Duration::ZERO };
        let habit = &mut list.habit;
        habit.brief = held < MOMENT;
        if !habit.brisk || !habit.brief || !list.waiters.is_empty() {
            return Duration::ZERO;
        }
        habit.window_ends = now + BATCH_WINDOW;
        BATCH_WINDOW
    }

    /// Remembers what was found in the queue at a release, which happens now.
    pub(crate) fn released(&self, key: &Key, summary: WakeSummary, now: Moment) {
        let mut lists = self.lists();
        if summary.others {
            let list = lists.by_key.entry(key.clone()).or_default();
            list.known.fair_reentry = true;
            (list.habit.released, list.habit.waiting) = (now, summary.waiting);
        } else if let Some(list) = lists.by_key.get_mut(key) {
            list.known.fair_reentry = false;
        }
        self.forget_unused(lists, key);
    }

    /// These entries of ours could not be removed from the server's queue.
    pub(crate) fn leave_behind(&self, key: &Key, ids: &[WaitId]) {
        // Those of a child that a callback made in the middle of a call are its parent's.
        if ids.is_empty() || fork::is_astray() {
            return;
        }
        let mut lists = self.lists();
        let left = &mut lists.by_key.entry(key.clone()).or_default().left_behind;
        left.extend(ids);
        left.drain(..left.len().saturating_sub(MAX_LEFT_BEHIND));
        self.forget_unused(lists, key);
    }

    /// The ids of entries that were left behind: from now on they are the caller's.
    pub(crate) fn take_left_behind(&self, key: &Key) -> Vec<WaitId> {
        let mut lists = self.lists();
        lists
            .by_key
            .get_mut(key)
            .map(|list| std::mem::take(&mut list.left_behind))
            .unwrap_or_default()
    }

    /// Stands at the end of the line. Gives a number by which the waiter is known from now on.
    pub(crate) fn enter(&self, key: &Key, ask: A, listener: &Arc<dyn Listener>) -> u64 {
        let mut lists = self.lists();
        lists.last_number += 1;
        let number = lists.last_number;
        let list = lists.by_key.entry(key.clone()).or_default();
        let listener = Arc::clone(listener);
        list.waiters.push_back(LocalWaiter {
            number,
            ask,
            listener,
            ids: Vec::new(),
            woken: None,
            state: State::Idle,
        });
        self.forget_unused(lists, key);
        number
    }

    /// Whether this waiter is the first, and the place in the server's queue that it finds there.
    pub(crate) fn first(&self, key: &Key, number: u64) -> (bool, Option<QueueTicket>) {
        if self.side_by_side {
            return (true, None);
        }
        let mut lists = self.lists();
        match lists.by_key.get_mut(key) {
            Some(list) if list.waiters.front().is_none_or(|first| first.number == number) => {
                let ticket = list.ticket.take();
                if let (Some(ticket), Some(first)) = (&ticket, list.waiters.front_mut()) {
                    (first.listener, first.ids) =
                        (Arc::clone(&ticket.listener), ticket.ids.clone());
                }
                (true, ticket)
            }
            list => (list.is_none(), None),
        }
    }

    /// About to speak to the server, or to end the wait. False when it is being served: then it is
    /// to sleep on.
    pub(crate) fn start_work(&self, key: &Key, number: u64) -> bool {
        let go = self.with_waiter(key, number, |waiter| match waiter.state {
            State::Idle | State::Active => {
                waiter.state = State::Active;
                true
            }
            State::HandingOff | State::Granted(_) => false,
        });
        go.unwrap_or(true)
    }

    /// About to sleep, standing in the server's queue under these ids. False when there is a reason
    /// not to.
    pub(crate) fn park(&self, key: &Key, number: u64, ids: &[WaitId]) -> bool {
        let park = self.with_waiter(key, number, |waiter| {
            if matches!(waiter.state, State::Active) {
                waiter.state = State::Idle;
            }
            if waiter.ids != ids {
                waiter.ids = ids.to_vec();
            }
            matches!(waiter.state, State::Idle) && waiter.woken.is_none()
        });
        park.unwrap_or(true)
    }

    /// This waiter has taken its lines off the server's queue: it was not woken by those any more.
    pub(crate) fn has_left(&self, key: &Key, number: u64) {
        self.with_waiter(key, number, |waiter| {
            waiter.ids.clear();
            waiter.woken = None;
        });
    }

    /// Awake again.
    pub(crate) fn unpark(&self, key: &Key, number: u64) -> Unparked<G> {
        let unparked = self.with_waiter(key, number, |waiter| {
            match std::mem::replace(&mut waiter.state, State::Idle) {
                State::Granted(got) => Unparked::Granted(got),
                State::HandingOff => {
                    waiter.state = State::HandingOff;
                    Unparked::HandingOff
                }
                State::Idle | State::Active => Unparked::Up { woken: waiter.woken.take() },
            }
        });
        unparked.unwrap_or(Unparked::Up { woken: None })
    }

    /// This waiter was woken at its place in the server's queue, and has no use for the wake-up any
    /// more: the next one in the list, which takes over the place, is to act on it.
    pub(crate) fn leave_wake(&self, key: &Key, number: u64, after: Duration) {
        self.with_waiter(key, number, |waiter| waiter.woken = Some(after));
    }

    /// Leaves the list, and its place in the server's queue to the next waiter, which is woken.
    /// Returns the place if there is none.
    pub(crate) fn leave(
        &self,
        key: &Key,
        number: u64,
        ticket: Option<QueueTicket>,
        pace: Option<Duration>,
    ) -> Option<QueueTicket> {
        let mut lists = self.lists();
        let Some(list) = lists.by_key.get_mut(key) else { return ticket };
        let was_first =
            !self.side_by_side && list.waiters.front().is_some_and(|first| first.number == number);
        let position = list.waiters.iter().position(|waiter| waiter.number == number);
        // What it holds may speak to the server when it is dropped: not before the rooms are
        // unlocked.
        let gone = position.and_then(|position| list.waiters.remove(position));
        let woken = gone.as_ref().and_then(|gone| gone.woken);
        list.known.pace = pace.or(list.known.pace);
        // A ticket that the next waiter has not taken over yet goes to the one after it.
        let ticket = ticket.or_else(|| if was_first { list.ticket.take() } else { None });
        let left = match list.waiters.front_mut() {
            Some(next) if was_first => {
                list.ticket = ticket;
                next.woken = next.woken.or(woken);
                next.listener.interrupt();
                None
            }
            _ => ticket,
        };
        self.forget_unused(lists, key);
        left
    }

    /// The first in line, if it is idle: it will not go as long as this lasts.
    pub(crate) fn begin_hand_off<'a>(&'a self, key: &'a Key) -> Option<HandingOff<'a, A, G>> {
        if !self.is_occupied() {
            return None;
        }
        let mut lists = self.lists();
        let first = lists.by_key.get_mut(key)?.waiters.front_mut()?;
        if !matches!(first.state, State::Idle) {
            return None;
        }
        first.state = State::HandingOff;
        Some(HandingOff { local: self, key, number: first.number, ask: first.ask })
    }

    /// Whether a waiter by this id is one of this process.
    pub(crate) fn has(&self, key: &Key, id: WaitId) -> bool {
        let lists = self.lists();
        let Some(list) = lists.by_key.get(key) else { return false };
        let orphaned = list.ticket.as_ref().is_some_and(|ticket| ticket.ids.contains(&id));
        orphaned || list.waiters.iter().any(|waiter| waiter.ids.contains(&id))
    }

    /// Wakes a waiter of this process, for it to come so much later. False when there is none by
    /// this id.
    pub(crate) fn wake(&self, key: &Key, id: WaitId, after: Duration) -> bool {
        let mut lists = self.lists();
        let Some(WaitList { waiters, ticket, .. }) = lists.by_key.get_mut(key) else {
            return false;
        };
        let orphaned = ticket.as_ref().is_some_and(|ticket| ticket.ids.contains(&id));
        let waiter = waiters.iter_mut().find(|waiter| orphaned || waiter.ids.contains(&id));
        let Some(waiter) = waiter else { return false };
        waiter.woken = Some(waiter.woken.map_or(after, |other| other.min(after)));
        waiter.listener.interrupt();
        true
    }

    fn with_waiter<T>(
        &self,
        key: &Key,
        number: u64,
        body: impl FnOnce(&mut LocalWaiter<A, G>) -> T,
    ) -> Option<T> {
        let mut lists = self.lists();
        let list = lists.by_key.get_mut(key)?;
        list.waiters.iter_mut().find(|waiter| waiter.number == number).map(body)
    }

    /// Drops a list that holds nothing worth remembering, and when there are too many, all without
    /// waiters.
    fn forget_unused(&self, mut lists: MutexGuard<'_, WaitLists<A, G>>, key: &Key) {
        let worthless = |list: &WaitList<A, G>| {
            list.waiters.is_empty() && !list.known.fair_reentry && list.left_behind.is_empty()
        };
        if lists.by_key.get(key).is_some_and(worthless) {
            lists.by_key.remove(key);
        }
        if lists.by_key.len() > MAX_LISTS {
            lists.by_key.retain(|_, list| !list.waiters.is_empty());
        }
        self.shared.get().occupied.store(!lists.by_key.is_empty(), Ordering::Release);
    }

    fn is_occupied(&self) -> bool {
        self.shared.existing().is_some_and(|shared| shared.occupied.load(Ordering::Acquire))
    }

    fn lists(&self) -> MutexGuard<'_, WaitLists<A, G>> {
        self.shared.get().lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A, G> Default for WaitList<A, G> {
    fn default() -> Self {
        let never = Moment::from_boot(Duration::ZERO);
        let habit =
            Habit { released: never, waiting: 0, brief: false, brisk: false, window_ends: never };
        WaitList {
            waiters: VecDeque::new(),
            left_behind: Vec::new(),
            ticket: None,
            known: Known::default(),
            habit,
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::name::Keyspace;
    use crate::notify::{WakeAddress, WakeMessage};

    /// A listener that never wakes.
    struct Silent;

    impl Listener for Silent {
        fn address(&self, _test: WaitId) -> Option<WakeAddress> {
            None
        }
        fn sleep(&self, _duration: Duration) {}
        fn heard(&self, _live: &[WaitId]) -> Option<WakeMessage> {
            None
        }
        fn interrupt(&self) {}
    }

    /// Otherwise the waiter would believe that the entry under which it has joined since was
    /// removed.
    #[test]
    fn a_waiter_that_has_left_the_queue_is_not_woken_by_its_earlier_line() {
        let key = Keyspace::default().semaphore(b"x");
        let local = LocalWaiters::<(), ()>::side_by_side();
        let listener: Arc<dyn Listener> = Arc::new(Silent);
        let number = local.enter(&key, (), &listener);
        assert!(local.park(&key, number, &[WaitId(1)]));
        assert!(local.wake(&key, WaitId(1), Duration::ZERO));
        local.has_left(&key, number);
        assert!(!local.wake(&key, WaitId(1), Duration::ZERO), "nobody waits under it");
        assert!(local.park(&key, number, &[WaitId(2)]));
        assert!(matches!(local.unpark(&key, number), Unparked::Up { woken: None }));
    }

    #[test]
    fn a_waiter_that_takes_over_a_place_acts_on_its_wake_up() {
        let key = Keyspace::default().lock(b"x");
        let local = LocalWaiters::<(), ()>::default();
        let listener: Arc<dyn Listener> = Arc::new(Silent);
        let (first, next) = (local.enter(&key, (), &listener), local.enter(&key, (), &listener));
        assert!(local.park(&key, first, &[WaitId(1)]));
        local.begin_hand_off(&key).unwrap().grant(());
        assert!(matches!(local.unpark(&key, first), Unparked::Granted(())));
        local.leave_wake(&key, first, Duration::ZERO);
        assert!(local.leave(&key, first, None, None).is_none());
        assert!(matches!(local.unpark(&key, next), Unparked::Up { woken: Some(Duration::ZERO) }));
    }

    #[test]
    fn how_many_were_waiting_is_known_for_a_moment_if_they_were_many() {
        let key = Keyspace::default().semaphore(b"x");
        let at = |micros: u64| Moment::from_boot(Duration::from_micros(1_000_000 + micros));
        let local = LocalWaiters::<(), ()>::side_by_side();
        let waiting = |waiting, later| {
            local.released(
                &key,
                WakeSummary { others: true, waiting, ..WakeSummary::default() },
                at(0),
            );
            local.arrive(&key, at(later)).and_then(|known| known.waiting)
        };
        assert_eq!(waiting(ENOUGH, 1999), Some(ENOUGH));
        assert_eq!(waiting(ENOUGH, 2001), None, "too long ago");
        assert_eq!(waiting(ENOUGH - 1, 1), None, "a waiter near its turn has to know its place");
    }
}
