//! The waiters of one process. Those that wait for the same target through the same client form a
//! list, and only the first of them is in the server's queue.
//!
//! | a waiter in the list | what is true | what may move it on |
//! | --- | --- | --- |
//! | idle | it sleeps on its listener, or has just been woken | the waiter, by becoming active; a releaser in this process, by handing off to it |
//! | active | it exchanges requests with the server, or is about to end its wait | the waiter |
//! | handing off | another thread is handing off to it, and exchanges requests on its behalf; the waiter may not leave before the result is known | that thread |
//! | granted | it owns the target, and takes its guard when it wakes | the waiter |
//!
//! A process with very short holds that reacquires immediately each time would spend most of its
//! time on hand-overs. Such a process gets a **batch window**: it wakes the next waiter with a
//! delay of two milliseconds, and until then acquires and releases the target as if there were no
//! waiters.
//!
//! A waiter that requests several permits, or has a priority, is *on its own*: it has its own entry in
//! the server's queue, wherever it is in the list, and nothing is handed off to it.
//!
//! When the first waiter leaves, the next one is woken, and takes over the first waiter's listener,
//! and its position in the server's queue if that is still there. The list also records what this process knows of
//! the queue: whether others were waiting, and the pace of the queue.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::policy::{Known, QueuePosition};
use crate::clock::Moment;
use crate::fork::ForkLocal;
use crate::name::Key;
use crate::notify::Listener;
use crate::sync::{AtomicBool, Mutex, MutexGuard};
use crate::wait_id::WaitId;

/// If there are more lists than this, those without waiters are dropped.
const MAX_LISTS: usize = 1024;
/// The most entries left behind in the server's queue that a list remembers.
const MAX_LEFT_BEHIND: usize = 8;
/// A pause shorter than this counts as reacquiring at once, and a hold shorter than this as brief.
pub(crate) const MOMENT: Duration = Duration::from_micros(200);
/// How long the number of waiters at the last release remains valid, and from which number on it
/// may be used: a waiter near its turn has to know its position.
pub(crate) const RECENT: Duration = Duration::from_millis(2);
const ENOUGH: usize = 5;
/// How long a woken waiter has to acquire the target before this process acquires it again.
const WOKEN_GRACE: Duration = Duration::from_millis(2);
/// The length of a batch window.
const BATCH_WINDOW: Duration = Duration::from_millis(2);

/// The local waiters of one client. `A` is a waiter's hand-off request, `G` the guard that it is
/// given.
pub(crate) struct LocalWaiters<A, G> {
    shared: ForkLocal<Shared<A, G>>,
}

struct Shared<A, G> {
    /// Whether there is any list. Without contention, callers read nothing else.
    occupied: AtomicBool,
    lists: Mutex<WaitLists<A, G>>,
}

struct WaitLists<A, G> {
    last_number: u64,
    by_key: HashMap<Key, WaitList<A, G>>,
}

struct WaitList<A, G> {
    /// By their numbers, in the order in which they entered.
    waiters: BTreeMap<u64, LocalWaiter<A, G>>,
    /// The ids of entries that may still be in the server's queue, though no waiter uses them. A
    /// waiter that is woken by one of them treats the wake-up as its own.
    left_behind: Vec<WaitId>,
    /// What the first waiter that left has left to the next one, which has not taken it over yet.
    ticket: Option<QueueTicket>,
    listener: Option<Arc<dyn Listener>>,
    known: Known,
    habit: Habit,
}

/// How this process uses the target.
struct Habit {
    /// When this process last released the target while others were waiting.
    released: Moment,
    /// The number of waiters at that release.
    waiting: usize,
    /// Whether the last hold was brief.
    brief: bool,
    /// Whether this process reacquires at once each time.
    brisk: bool,
    /// The end of the batch window: until then the process acquires the target as if there were no
    /// waiters.
    window_ends: Moment,
}

/// What a releaser found in the queue when it woke the next waiter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WakeSummary {
    /// Whether other waiters were in the queue.
    pub(crate) others: bool,
    /// Whether one of the releaser's own entries was still in the queue.
    pub(crate) ours: bool,
    /// Whether the queue could not be written: the releaser's entries may still be there.
    pub(crate) stuck: bool,
    /// For a semaphore: the number of remaining waiters, if all have the same request.
    pub(crate) waiting: usize,
}

/// A position in the server's queue.
pub(crate) struct QueueTicket {
    pub(crate) position: QueuePosition,
    pub(crate) ids: Vec<WaitId>,
    /// Whether all entries of these ids said that wake-ups are proven to arrive.
    pub(crate) proven: bool,
}

/// What the first waiter takes over from the one before it.
pub(crate) struct TakenOver {
    pub(crate) ticket: Option<QueueTicket>,
    /// Wake-ups for the ticket arrive there. Without a ticket, its open descriptors are of use.
    pub(crate) listener: Option<Arc<dyn Listener>>,
}

struct LocalWaiter<A, G> {
    /// Whether the waiter has its own entry in the server's queue, wherever it is in the list.
    on_its_own: bool,
    request: A,
    listener: Arc<dyn Listener>,
    /// The ids of the waiter's entries in the server's queue.
    ids: Vec<WaitId>,
    /// Set when the waiter was woken: the delay after which it is to try.
    woken: Option<Duration>,
    state: State<G>,
}

enum State<G> {
    Idle,
    Active,
    HandingOff,
    Granted(G),
}

/// A waiter to which a thread is handing off. Dropping this value without a grant returns the
/// waiter to idle and wakes it, with `request` as its request: the waiter then inspects the target
/// itself.
pub(crate) struct HandingOff<'a, A: Copy, G> {
    local: &'a LocalWaiters<A, G>,
    key: &'a Key,
    number: u64,
    pub(crate) request: A,
    is_quiet: bool,
}

impl<A: Copy, G> HandingOff<'_, A, G> {
    /// Ends the hand-off without a grant. The waiter goes on sleeping.
    pub(crate) fn call_off(mut self) {
        self.is_quiet = true;
    }

    /// Grants the waiter its guard.
    pub(crate) fn grant(self, guard: G) {
        let mut guard = Some(guard);
        self.end(|waiter| {
            if let Some(guard) = guard.take() {
                waiter.state = State::Granted(guard);
            }
        });
        // The hand-off has ended: there is nothing left to return.
        std::mem::forget(self);
        // If the waiter is gone, the guard is dropped here, while the lists are not locked: the
        // drop may exchange requests with the server.
        drop(guard);
    }

    /// Ends the hand-off by this change, and wakes the waiter, which may have been woken meanwhile,
    /// and waits for the end of the hand-off.
    fn end(&self, change: impl FnOnce(&mut LocalWaiter<A, G>)) {
        let listener = self.local.with_waiter(self.key, self.number, |waiter| {
            change(waiter);
            Arc::clone(&waiter.listener)
        });
        // While the lists are not locked: the waiter would only run into that lock.
        if let Some(listener) = listener {
            listener.interrupt();
        }
    }
}

impl<A: Copy, G> Drop for HandingOff<'_, A, G> {
    fn drop(&mut self) {
        self.end(|waiter| {
            (waiter.state, waiter.request) = (State::Idle, self.request);
            if !self.is_quiet {
                waiter.woken = Some(Duration::ZERO);
            }
        });
    }
}

/// What a waiter finds when it wakes up.
pub(crate) enum Unparked<G> {
    /// A thread is handing off to the waiter, which has to continue to sleep.
    HandingOff,
    /// The waiter was given a guard.
    Granted(G),
    /// No hand-off; the waiter may have been woken.
    Up {
        /// Set if another thread of this process woke the waiter: the delay after which it is to
        /// try.
        woken: Option<Duration>,
    },
}

impl<A, G> Default for LocalWaiters<A, G> {
    fn default() -> Self {
        LocalWaiters { shared: ForkLocal::new() }
    }
}

impl<A, G> Default for Shared<A, G> {
    fn default() -> Self {
        let lists = WaitLists { last_number: 0, by_key: HashMap::new() };
        Shared { occupied: AtomicBool::new(false), lists: Mutex::new(lists) }
    }
}

impl<A: Copy, G> LocalWaiters<A, G> {
    /// What is known of the queue for a caller that arrives now; `None` if the caller may try
    /// immediately. Without contention, this costs one atomic read.
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

    /// The batch window of this process, which releases the target after holding it for `held`
    /// while others may be waiting. Zero: no batch window.
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

    /// Records what was found in the queue at a release that happens now.
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

    /// Records entries of this process that could not be removed from the server's queue.
    pub(crate) fn leave_behind(&self, key: &Key, ids: &[WaitId]) {
        if ids.is_empty() {
            return;
        }
        let mut lists = self.lists();
        let left = &mut lists.by_key.entry(key.clone()).or_default().left_behind;
        left.extend(ids);
        left.drain(..left.len().saturating_sub(MAX_LEFT_BEHIND));
        self.forget_unused(lists, key);
    }

    /// The ids of entries that were left behind. The caller takes responsibility for them.
    pub(crate) fn take_left_behind(&self, key: &Key) -> Vec<WaitId> {
        let mut lists = self.lists();
        lists
            .by_key
            .get_mut(key)
            .map(|list| std::mem::take(&mut list.left_behind))
            .unwrap_or_default()
    }

    /// Adds a waiter to the end of the list. Returns the number that identifies the waiter.
    pub(crate) fn enter(
        &self,
        key: &Key,
        request: A,
        on_its_own: bool,
        listener: &Arc<dyn Listener>,
    ) -> u64 {
        let mut lists = self.lists();
        lists.last_number += 1;
        let number = lists.last_number;
        let list = lists.by_key.entry(key.clone()).or_default();
        let listener = Arc::clone(listener);
        let (ids, woken, state) = (Vec::new(), None, State::Idle);
        list.waiters
            .insert(number, LocalWaiter { on_its_own, request, listener, ids, woken, state });
        self.forget_unused(lists, key);
        number
    }

    /// What this waiter, which is not on its own, takes over if it is the first; `None` if it is
    /// not.
    pub(crate) fn take_over(&self, key: &Key, number: u64) -> Option<TakenOver> {
        let mut lists = self.lists();
        let list = lists.by_key.get_mut(key)?;
        let (_, first) = first_of(&mut list.waiters).filter(|&(first, _)| first == number)?;
        let taken = TakenOver { ticket: list.ticket.take(), listener: list.listener.take() };
        if let Some(ticket) = &taken.ticket {
            first.ids.clone_from(&ticket.ids);
        }
        if let Some(listener) = &taken.listener {
            first.listener = Arc::clone(listener);
        }
        Some(taken)
    }

    /// Marks the waiter active before it sends a request or ends its wait. False if a thread is
    /// handing off to the waiter, which then has to sleep again.
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

    /// Marks the waiter idle before it sleeps, with these ids in the server's queue. False if there
    /// is a reason not to sleep.
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

    /// Records that this waiter has removed its entries from the server's queue: a wake-up for one
    /// of those entries no longer counts.
    pub(crate) fn has_left(&self, key: &Key, number: u64) {
        self.with_waiter(key, number, |waiter| {
            waiter.ids.clear();
            waiter.woken = None;
        });
    }

    /// Called when the waiter is awake again.
    pub(crate) fn unpark(&self, key: &Key, number: u64) -> Unparked<G> {
        let unparked = self.with_waiter(key, number, |waiter| {
            match std::mem::replace(&mut waiter.state, State::Idle) {
                State::Granted(guard) => {
                    // It does not wait any more.
                    waiter.state = State::Active;
                    Unparked::Granted(guard)
                }
                State::HandingOff => {
                    waiter.state = State::HandingOff;
                    Unparked::HandingOff
                }
                State::Idle | State::Active => Unparked::Up { woken: waiter.woken.take() },
            }
        });
        unparked.unwrap_or(Unparked::Up { woken: None })
    }

    /// Keeps a wake-up for the position in the server's queue that this waiter, being granted the
    /// target, does not need: the next waiter in the list, which takes over the position, acts on
    /// it.
    pub(crate) fn leave_wake(&self, key: &Key, number: u64, after: Duration) {
        self.with_waiter(key, number, |waiter| waiter.woken = Some(after));
    }

    /// Leaves the list. The next waiter is woken, and takes over the position in the server's
    /// queue. Returns the position if there is no next waiter.
    pub(crate) fn leave(
        &self,
        key: &Key,
        number: u64,
        ticket: Option<QueueTicket>,
        pace: Option<Duration>,
    ) -> Option<QueueTicket> {
        let mut lists = self.lists();
        let Some(list) = lists.by_key.get_mut(key) else { return ticket };
        let was_first = first_of(&mut list.waiters).is_some_and(|(first, _)| first == number);
        // The removed waiter's guard may exchange requests with the server when it is dropped: not
        // before the lists are unlocked.
        let gone = list.waiters.remove(&number);
        let woken = gone.as_ref().and_then(|gone| gone.woken);
        list.known.pace = pace.or(list.known.pace);
        // A ticket that the next waiter has not taken over yet goes to the one after it.
        let ticket = ticket.or_else(|| if was_first { list.ticket.take() } else { None });
        let left = match first_of(&mut list.waiters) {
            Some((_, next)) if was_first => {
                list.ticket = ticket;
                if list.listener.is_none() {
                    list.listener = gone.as_ref().map(|gone| Arc::clone(&gone.listener));
                }
                next.woken = next.woken.or(woken);
                next.listener.interrupt();
                None
            }
            Some(_) => ticket,
            None => {
                list.listener = None;
                ticket
            }
        };
        self.forget_unused(lists, key);
        left
    }

    /// The first waiter in the list, if it is idle. It does not leave while the hand-off lasts.
    pub(crate) fn begin_hand_off<'a>(&'a self, key: &'a Key) -> Option<HandingOff<'a, A, G>> {
        if !self.is_occupied() {
            return None;
        }
        let mut lists = self.lists();
        let (number, first) = first_of(&mut lists.by_key.get_mut(key)?.waiters)?;
        matches!(first.state, State::Idle).then(|| self.hand_off_to(key, number, first))
    }

    /// The first idle waiters in the list that are not on their own, as many as `most` returns. It is
    /// called only if there may be any.
    pub(crate) fn begin_hand_offs<'a>(
        &'a self,
        key: &'a Key,
        most: impl FnOnce() -> usize,
    ) -> Vec<HandingOff<'a, A, G>> {
        if !self.is_occupied() {
            return Vec::new();
        }
        let most = most();
        let mut lists = self.lists();
        let Some(list) = lists.by_key.get_mut(key) else { return Vec::new() };
        let idle = list
            .waiters
            .iter_mut()
            .filter(|(_, waiter)| !waiter.on_its_own && matches!(waiter.state, State::Idle));
        idle.take(most).map(|(&number, waiter)| self.hand_off_to(key, number, waiter)).collect()
    }

    fn hand_off_to<'a>(
        &'a self,
        key: &'a Key,
        number: u64,
        waiter: &mut LocalWaiter<A, G>,
    ) -> HandingOff<'a, A, G> {
        waiter.state = State::HandingOff;
        let request = waiter.request;
        HandingOff { local: self, key, number, request, is_quiet: false }
    }

    /// The ids of all waiters that are not on their own.
    pub(crate) fn ids(&self, key: &Key) -> Vec<WaitId> {
        let lists = self.lists();
        let Some(list) = lists.by_key.get(key) else { return Vec::new() };
        let waiters = list.waiters.values().filter(|waiter| !waiter.on_its_own);
        let left = list.ticket.iter().flat_map(|ticket| &ticket.ids);
        waiters.flat_map(|waiter| &waiter.ids).chain(left).copied().collect()
    }

    /// Whether this id belongs to a waiter of this process.
    pub(crate) fn has(&self, key: &Key, id: WaitId) -> bool {
        let lists = self.lists();
        let Some(list) = lists.by_key.get(key) else { return false };
        let orphaned = list.ticket.as_ref().is_some_and(|ticket| ticket.ids.contains(&id));
        orphaned || list.waiters.values().any(|waiter| waiter.ids.contains(&id))
    }

    /// Wakes the waiter of this process that has this id; it is to try after the delay. False if
    /// there is none.
    pub(crate) fn wake(&self, key: &Key, id: WaitId, after: Duration) -> bool {
        let mut lists = self.lists();
        let Some(WaitList { waiters, ticket, .. }) = lists.by_key.get_mut(key) else {
            return false;
        };
        let orphaned = ticket.as_ref().is_some_and(|ticket| ticket.ids.contains(&id));
        let waiter = match orphaned {
            true => first_of(waiters).map(|(_, first)| first),
            false => waiters.values_mut().find(|waiter| waiter.ids.contains(&id)),
        };
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
        lists.by_key.get_mut(key)?.waiters.get_mut(&number).map(body)
    }

    /// Drops a list that holds nothing worth remembering; if there are too many lists, drops all
    /// without waiters.
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

/// The first waiter that is not on its own.
fn first_of<A, G>(
    waiters: &mut BTreeMap<u64, LocalWaiter<A, G>>,
) -> Option<(u64, &mut LocalWaiter<A, G>)> {
    let first = waiters.iter_mut().find(|(_, waiter)| !waiter.on_its_own);
    first.map(|(&number, waiter)| (number, waiter))
}

impl<A, G> Default for WaitList<A, G> {
    fn default() -> Self {
        let never = Moment::from_boot(Duration::ZERO);
        let habit =
            Habit { released: never, waiting: 0, brief: false, brisk: false, window_ends: never };
        WaitList {
            waiters: BTreeMap::new(),
            left_behind: Vec::new(),
            ticket: None,
            listener: None,
            known: Known::default(),
            habit,
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
