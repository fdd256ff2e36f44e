//! Combining: the threads of a process change a semaphore's record together.
//!
//! The record is one item that all holders write by compare-and-swap: of many that try at once only
//! one succeeds, and the others have to read and try again. Threads of one process have no reason
//! to compete with each other. So each client has, for each semaphore, one **combiner**: a thread
//! that is about to change the record while another one of this process is doing so leaves its
//! *operation* (acquire, release, extend) in a list, and the thread that writes, the *leader*,
//! takes all that are listed into one *batch*: one read and one compare-and-swap. (Flat combining,
//! Hendler et al. 2010; group commit in databases.) A thread that finds no other leads a batch of
//! one, and pays for one mutex.
//!
//! | an operation | what is true | what may change it, and how |
//! | --- | --- | --- |
//! | listed | nothing was sent for it; its thread sleeps on its ticket | the leader, by taking it into its batch; its thread, by taking it back when the wait has ended |
//! | in a batch | the leader reads, plans and writes for it | the leader, by settling it when the write has succeeded, or could not be done; by handing it on with the lead |
//! | in a batch, in doubt | a request was sent for it and got no reply | the leader, by reading the record back: it has the operation's token, or another version than the one that was to be replaced |
//! | leading | its thread was woken as the next leader, with its operation | its thread |
//! | settled | its outcome is on its ticket | its thread, which wakes up and takes it |
//! | parked | an acquisition that found no permit; nothing was sent for it | the next leader that gives permits back, by taking it into its batch; its thread, by taking it back, to stand in the queue or because the wait has ended |
//!
//! **A leader leads until its own operation has an outcome**, and then hands what is left, and the
//! lead, to the thread of the first operation that is listed. So no thread works for others without
//! end, and none waits for longer than two batches take, each of which ends after at most
//! `ATTEMPTS` failed requests, or `ROUNDS` refused ones.
//!
//! | what can go wrong | what then holds |
//! | --- | --- |
//! | the batch is refused, since another process was faster | all of it is planned anew by the new record, together with what has been listed since |
//! | the reply to the batch is lost | each operation remembers from when its lease would count; the next read shows for each token whether it is there; one that the new record has no room for was not carried out, and cannot be any more |
//! | a wait ends (limit, cancelled) while its operation is listed | its thread takes it back |
//! | it ends while it is in a batch | the leader drops it before the next request, unless it is in doubt; its thread waits for that, for no longer than a batch lasts |
//! | the thread of an operation unwinds (a callback panicked) | what it was granted is remembered as an orphaned grant, and reaped at the next contact |
//! | the leader unwinds, or its own wait ends | the batch goes back to the head of the list, doubts and all, and the next leader is woken |
//! | the process forks | the child has a combiner of its own; a leader or sleeper in it abandons all at its next step |
//!
//! The lease of each operation is counted from before the request whose reply had the server's time
//! for it, never from a later one: see `Snapshot::lease`.
//!
//! **Parking.** A thread that finds no permit would stand in the queue, with three commands and the
//! whole record for each; a thousand of them would bring the server and themselves to a standstill.
//! As long as its process gives permits back all the time it waits for those instead, in the same
//! list as everything else; and where that takes too long, no more than [`MOST_IN_QUEUE`] of a
//! process stand in the queue at once. The waiters there are not left out: as long as there are
//! any, half of the released permits go there, and all of them while one of these waiters is of
//! higher priority or wants several permits.
//!
//! **Between processes** a compare-and-swap is fair only among equals: a process that comes back at
//! once with the next batch competes with all others each time. So a process that was refused, and
//! has work for several threads, *rests* after a batch that succeeded: for a random time that
//! doubles with each refused batch and shrinks with each one that was not, bounded by [`REST`] and
//! by how many the batch served. Processes that were refused try again within some milliseconds, so
//! the rest belongs to them; meanwhile operations gather in the list.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::leaving::Leaving;
use super::operation::Operation;
use super::snapshot::Snapshot;
use super::ticket::{Entry, Ticket};
use crate::clock::Moment;
use crate::context::Context;
use crate::fork::ForkLocal;
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::owner::{Identity, Token};

/// An acquisition is parked as long as this process gives permits back so often;
const RELEASES_EVERY: Duration = Duration::from_millis(10);
/// or has so many holders, and writes so often;
const MANY: usize = 8;
const WRITES_EVERY: Duration = Duration::from_millis(50);
/// Then it stands in the queue, where no more than so many of this process do so at once: others
/// stay parked until one of these has gone.
const MOST_IN_QUEUE: usize = 16;
/// Between which bounds a process rests.
const REST: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(3));
/// For how long at most, for each operation that the last batch served.
const REST_FOR_EACH: Duration = Duration::from_micros(100);

/// What this process remembers of it, to save looks.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// What we wrote last: which semaphore it was, and how often it had been written.
    pub(super) written: Option<(Token, u64)>,
    /// What it became then, if no other process was using it.
    pub(super) snapshot: Option<Snapshot>,
}

/// The semaphores that this process uses by one client.
type Combiners = Mutex<HashMap<Key, Weak<Combiner>>>;

/// Where the threads of one client meet that change the same semaphore.
#[derive(Default)]
pub(super) struct Combiner {
    state: Mutex<State>,
    leaving: Leaving,
}

struct State {
    /// Whether some thread leads, or was woken to do so.
    led: bool,
    listed: VecDeque<Entry>,
    /// Acquisitions that wait for permits which this process gives back.
    parked: VecDeque<Entry>,
    /// When this process last gave permits back while it had others; and when it last wrote while
    /// it had many.
    released: Option<Moment>,
    wrote_many: Option<Moment>,
    queue: ObservedQueue,
    /// How many of this process stand in the queue that were parked, or might have been.
    in_queue: usize,
    /// How many permits this process has passed to its own waiters since others were last seen in
    /// the queue, and how many it has given back.
    passed: (u32, u32),
    memory: Memory,
    /// For how long the next rest is.
    rest: Duration,
    /// Until when we leave the record to other processes.
    rests_until: Moment,
}

/// What the queue was when this process last gave permits back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ObservedQueue {
    Empty,
    /// So many others wait there.
    HasWaiters(u32),
    /// Some of them come before any that are parked here: they want several permits, or are of
    /// higher priority.
    HasPrecedence,
}

/// What those that are parked may have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    /// So many of the permits that are given back by this process.
    pub(super) freed: u32,
    /// And what was available before, but for so many that others may have been woken for.
    pub(super) spare: u32,
}

/// What a leader knows when it begins.
pub(super) struct Begun {
    pub(super) snapshot: Option<Snapshot>,
    pub(super) written: Option<(Token, u64)>,
    pub(super) rests_until: Moment,
}

/// What a leader leaves behind.
pub(super) struct Ended {
    /// What is left of its batch, and what is to stay parked.
    pub(super) rest: Vec<Entry>,
    pub(super) parked: Vec<Entry>,
    /// What was written last, and what it became, if no other process was using it.
    pub(super) written: Option<(Token, u64)>,
    pub(super) snapshot: Option<Snapshot>,
    /// How many operations its last batch had; and whether others were faster to write.
    pub(super) served: usize,
    pub(super) refused: bool,
}

impl fmt::Debug for Combiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Combiner").finish_non_exhaustive()
    }
}

/// The leader.
pub(super) enum Lead {
    /// This thread does, with its own operation.
    Ours(Box<Begun>, Box<Operation>),
    /// Another one; this one is to sleep on that ticket.
    Another(Arc<Ticket>),
}

/// Where to wait for a permit.
pub(super) enum Parking {
    Here(Arc<Ticket>),
    Queue,
}

impl Combiner {
    /// Where the threads of this process meet that change the semaphore of this key.
    pub(super) fn of(context: &Context, key: &Key) -> Arc<Combiner> {
        let combiners = context.extension(ForkLocal::<Combiners>::new).get();
        let mut combiners = combiners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(combiner) = combiners.get(key).and_then(Weak::upgrade) {
            return combiner;
        }
        // Combiners that are not used any more are dropped each time the map would have to grow.
        if combiners.len() == combiners.capacity() {
            combiners.retain(|_, combiner| combiner.strong_count() > 0);
        }
        let combiner = Arc::<Combiner>::default();
        combiners.insert(key.clone(), Arc::downgrade(&combiner));
        combiner
    }

    /// Makes this thread the leader, if there is none; otherwise the operation is listed.
    pub(super) fn enlist(&self, operation: Operation) -> Lead {
        let mut state = self.state();
        if std::mem::replace(&mut state.led, true) {
            Lead::Another(list(&mut state.listed, operation))
        } else {
            Lead::Ours(Box::new(state.begins()), Box::new(operation))
        }
    }

    /// Parks it, if it is worth waiting for what this process gives back, or if enough of it stand
    /// in the queue.
    pub(super) fn park(&self, operation: Operation, now: Moment) -> Parking {
        let mut state = self.state();
        if !state.is_worth_waiting(now) && state.in_queue < MOST_IN_QUEUE {
            state.in_queue += 1;
            return Parking::Queue;
        }
        Parking::Here(list(&mut state.parked, operation))
    }

    /// What a new leader knows.
    pub(super) fn begins(&self) -> Begun {
        self.state().begins()
    }

    /// Takes an operation off the list, or from where it is parked, if it is there: because its
    /// wait has ended, or to join the queue, which is true of the second then. `is_long`: of a
    /// parked one, whether it was parked for long.
    pub(super) fn take_back(
        &self,
        ticket: &Arc<Ticket>,
        is_enough: bool,
        is_long: Option<bool>,
        now: Moment,
    ) -> Option<(Operation, bool)> {
        let mut state = self.state();
        let goes = is_long.is_some_and(|is_long| {
            let in_vain = is_long || !state.is_worth_waiting(now);
            in_vain && state.in_queue < MOST_IN_QUEUE && !mutation::has(Mutation::ParkForGood)
        });
        let operation = if goes || is_enough { state.take_back(ticket) } else { None };
        if is_enough && operation.is_none() {
            // It is in a batch. If it comes back from there to where it was parked, it is to end.
            ticket.is_not_wanted_any_more();
        }
        let operation = operation?;
        let in_queue = goes && !is_enough;
        state.in_queue += usize::from(in_queue);
        Some((operation, in_queue))
    }

    /// The thread of this ticket unwinds. Gives its operation, if that was listed or parked.
    pub(super) fn abandon(&self, ticket: &Arc<Ticket>) -> Option<Operation> {
        let mut state = self.state();
        let operation = state.take_back(ticket);
        if ticket.is_abandoned() {
            state.wake_next();
        }
        operation
    }

    /// What has been listed so far.
    pub(super) fn take_listed(&self) -> VecDeque<Entry> {
        std::mem::take(&mut self.state().listed)
    }

    /// Those that are parked, for a leader that is about to give so many permits back, and what it
    /// may pass to them.
    pub(super) fn take_parked(&self, freed: u32) -> (VecDeque<Entry>, Share) {
        let mut state = self.state();
        let (passed, released) = state.passed;
        let share = match state.queue {
            ObservedQueue::Empty => Share { freed, spare: 0 },
            ObservedQueue::HasWaiters(spare) => {
                let half = released.saturating_add(freed) / 2;
                Share { freed: half.saturating_sub(passed).min(freed), spare }
            }
            ObservedQueue::HasPrecedence => return (VecDeque::new(), Share::default()),
        };
        (std::mem::take(&mut state.parked), share)
    }

    /// A waiter that [`Combiner::park`] sent to the queue has left it: it got its permit, or gave
    /// up. Another one may join.
    pub(super) fn leaves_queue(&self) {
        let mut state = self.state();
        state.in_queue = state.in_queue.saturating_sub(1);
        if let Some(entry) = state.parked.front() {
            entry.ticket.wake_to_reconsider();
        }
    }

    /// The record was written, by a request that left then. `holders`: how many of this process it
    /// has. `released`: if permits were given back, how many, how many of those went to those that
    /// were parked, and what the queue was then.
    pub(super) fn note_written(
        &self,
        sent: Moment,
        holders: usize,
        released: Option<(u32, u32, ObservedQueue)>,
    ) {
        let mut state = self.state();
        state.wrote_many = (holders >= MANY).then_some(sent);
        let Some((freed, passed, queue)) = released else { return };
        state.released = (holders > 0).then_some(sent);
        let (own, all) = state.passed;
        let counted = (own.saturating_add(passed), all.saturating_add(freed));
        state.passed = if queue == ObservedQueue::Empty { (0, 0) } else { counted };
        state.queue = queue;
    }

    /// The leader is done: the next one is woken, if there is anything to do.
    pub(super) fn wake_next(&self, context: &Context, ended: Ended) {
        let mut state = self.state();
        state.memory = Memory { written: ended.written, snapshot: ended.snapshot };
        for entry in
            ended.parked.iter().chain(&ended.rest).filter(|entry| entry.ticket.is_unwanted())
        {
            entry.ticket.wake_to_reconsider();
        }
        for entry in ended.parked.into_iter().rev() {
            state.parked.push_front(entry);
        }
        if ended.refused || !state.rest.is_zero() {
            state.rest = if ended.refused {
                (state.rest * 2).clamp(REST.0, REST.1)
            } else {
                Some(state.rest / 4 * 3).filter(|rest| *rest >= REST.0).unwrap_or_default()
            };
            let served = u32::try_from(ended.served).unwrap_or(u32::MAX).min(100);
            let most = if served > 1 { REST_FOR_EACH * served } else { Duration::ZERO };
            let chance = context.identity().map_or(0.5, Identity::fraction);
            state.rests_until = context.clock().now() + state.rest.min(most).mul_f64(0.5 + chance);
        }
        for entry in ended.rest.into_iter().rev() {
            state.listed.push_front(entry);
        }
        state.wake_next();
    }

    pub(super) fn leaving(&self) -> &Leaving {
        &self.leaving
    }

    pub(super) fn memory<T>(&self, look: impl FnOnce(&mut Memory) -> T) -> T {
        look(&mut self.state().memory)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for State {
    fn default() -> State {
        let rests_until = Moment::from_boot(Duration::ZERO);
        State {
            led: false,
            listed: VecDeque::new(),
            parked: VecDeque::new(),
            released: None,
            wrote_many: None,
            queue: ObservedQueue::Empty,
            in_queue: 0,
            passed: (0, 0),
            memory: Memory::default(),
            rest: Duration::ZERO,
            rests_until,
        }
    }
}

impl State {
    fn begins(&mut self) -> Begun {
        let Memory { written, ref mut snapshot } = self.memory;
        Begun { snapshot: snapshot.take(), written, rests_until: self.rests_until }
    }

    /// Whether this process gives permits back so often that one is to be expected soon.
    fn is_worth_waiting(&self, now: Moment) -> bool {
        let is_recent =
            |when: Option<Moment>, every| when.is_some_and(|when| now.since(when) < every);
        self.queue != ObservedQueue::HasPrecedence
            && (is_recent(self.released, RELEASES_EVERY)
                || is_recent(self.wrote_many, WRITES_EVERY))
    }

    /// Hands the lead on to the first that is listed.
    fn wake_next(&mut self) {
        if mutation::has(Mutation::StrandTheNext) {
            self.led = false;
            return;
        }
        while let Some(Entry { operation, ticket }) = self.listed.pop_front() {
            if ticket.leads(operation).is_none() {
                return;
            }
        }
        self.led = false;
    }

    /// Takes the operation of this ticket off the list, if it is there, or where it is parked.
    fn take_back(&mut self, ticket: &Arc<Ticket>) -> Option<Operation> {
        let is_its = |entry: &Entry| Arc::ptr_eq(&entry.ticket, ticket);
        let mut lists = [&mut self.listed, &mut self.parked].into_iter();
        let entry = lists
            .find_map(|list| list.iter().position(is_its).and_then(|place| list.remove(place)));
        entry.map(|entry| entry.operation)
    }
}

/// Puts it at the end. Gives the ticket on which its thread is to sleep.
fn list(list: &mut VecDeque<Entry>, operation: Operation) -> Arc<Ticket> {
    let ticket = Arc::<Ticket>::default();
    list.push_back(Entry { operation, ticket: Arc::clone(&ticket) });
    ticket
}
