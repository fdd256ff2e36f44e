//! Combining: the threads of a process change a semaphore's record together.
//!
//! All holders write the record by compare-and-set: of many concurrent attempts only one succeeds,
//! and the others have to read and try again. Threads of one process have no reason to compete with
//! each other. Each client therefore has, for each semaphore, one **combiner**: while a thread
//! changes the record, other threads of the process put their *operations* (acquire, release,
//! extend) on a list, and the thread that writes, the *leader*, takes all listed operations into
//! one *batch*: one read and one compare-and-set. (Flat combining, Hendler et al. 2010; group
//! commit in databases.) Without concurrency, a thread leads a batch of one, at the cost of one
//! local mutex.
//!
//! | an operation | meaning | what may change it, and how |
//! | --- | --- | --- |
//! | listed | no request for it is under way; its thread sleeps on its ticket | the leader, by taking it into its batch; its thread, by taking it back when the wait has ended |
//! | in a batch | the leader reads, plans and writes for it | the leader, by completing it when the write has succeeded or cannot be performed; by passing it on with the lead |
//! | in a batch, in doubt | a request for it got no reply | the leader, by reading the record back: it has the operation's token, or another version than the one to be replaced |
//! | leading | its thread was woken as the next leader, with its operation | its thread |
//! | completed | its outcome is on its ticket | its thread, which wakes up and takes it |
//! | parked | an acquisition that found no permit; nothing was sent for it | the next leader that releases permits, by taking it into its batch; its thread, by taking it back, to join the queue or because the wait has ended |
//!
//! **A leader leads until its own operation has an outcome.** It then passes the other operations,
//! and the lead, to the thread of the first listed operation. No thread thus works for others
//! without end, and none waits for longer than two batches take, each of which ends after at most
//! `ATTEMPTS` failed requests, or `ROUNDS` refused ones.
//!
//! | event | handling |
//! | --- | --- |
//! | the batch is refused, because another process was faster | the whole batch is planned again by the new record, with the operations listed since |
//! | the reply to the batch is lost | each operation notes from when its lease would count; the next read shows for each token whether it is in the record; an operation that the new record has no capacity for was not executed, and cannot be any more |
//! | a wait ends (limit, cancellation) while its operation is listed | its thread takes the operation back |
//! | a wait ends while its operation is in a batch | the leader drops the operation before the next request, unless it is in doubt; its thread waits for that, for no longer than a batch lasts |
//! | the thread of an operation unwinds (a callback panicked) | a grant that the operation may get is remembered as orphaned, and reaped at the next contact |
//! | the leader unwinds, or its own wait ends | the batch returns to the head of the list, with its doubts, and the next leader is woken |
//! | the process forks | the child has a combiner of its own |
//!
//! The lease of each operation is counted from before the request whose reply had the server's time
//! for it, never from a later one: see `Snapshot::lease`.
//!
//! **Parking.** A thread that finds no permit would join the queue, at the cost of three commands
//! and a read of the whole record; a thousand such threads would bring the server and themselves to
//! a standstill. While its process keeps releasing permits, the thread therefore waits for those,
//! in a second list of the combiner. If that takes too long, it joins the queue, but no more than
//! [`MOST_IN_QUEUE`] threads of a process are in the queue at once. The waiters in the queue are
//! not passed over: while there are any, half of the released permits go to the queue, and all of
//! them while one of these waiters has a higher priority or requests several permits.
//!
//! **Between processes**, a compare-and-set is fair only among equals: a process that immediately
//! returns with the next batch competes with all others each time. A process that was refused, and
//! has work for several threads, therefore *rests* after a batch that succeeded: for a random time
//! that doubles with each refused batch, shrinks with each other one, and is bounded by [`REST`]
//! and by the number of operations in the batch. Refused processes retry within some milliseconds,
//! so they can write during the rest; meanwhile, operations accumulate in the list.

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

/// An acquisition is parked while this process releases permits at shorter intervals than this,
const RELEASES_EVERY: Duration = Duration::from_millis(10);
/// or while the process has at least this many holders, and writes at shorter intervals than this.
const MANY: usize = 8;
const WRITES_EVERY: Duration = Duration::from_millis(50);
/// The most threads of this process that parking lets into the queue at once. Other threads stay
/// parked until one of these has left the queue.
const MOST_IN_QUEUE: usize = 16;
/// The bounds of a rest.
const REST: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(3));
/// The longest rest for each operation of the last batch.
const REST_FOR_EACH: Duration = Duration::from_micros(100);

/// What this process remembers of a semaphore, to save reads.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The last write of this process: which semaphore, and the count of its writes.
    pub(super) written: Option<(Token, u64)>,
    /// The record after that write, if no other process was using the semaphore.
    pub(super) snapshot: Option<Snapshot>,
}

/// The combiners of one client in this process.
type Combiners = Mutex<HashMap<Key, Weak<Combiner>>>;

/// What the threads of one client share that change the same semaphore.
#[derive(Default)]
pub(super) struct Combiner {
    state: Mutex<State>,
    leaving: Leaving,
}

struct State {
    /// Whether a thread leads, or was woken to lead.
    led: bool,
    listed: VecDeque<Entry>,
    /// Acquisitions that wait for permits that this process releases.
    parked: VecDeque<Entry>,
    /// When this process last released permits while it held others; and when it last wrote while
    /// it had many holders.
    released: Option<Moment>,
    wrote_many: Option<Moment>,
    queue: ObservedQueue,
    /// The number of threads in the queue that were parked, or might have been.
    in_queue: usize,
    /// How many permits this process has passed to its own parked threads, and how many it has
    /// released, since it last saw the queue empty.
    passed: (u32, u32),
    memory: Memory,
    /// The length of the next rest, before it is bounded and randomized.
    rest: Duration,
    /// Until when this process leaves the record to others.
    rests_until: Moment,
}

/// The queue when this process last released permits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ObservedQueue {
    Empty,
    /// This many waiters.
    HasWaiters(u32),
    /// Some of the waiters precede any parked thread: they request several permits, or have a
    /// higher priority.
    HasPrecedence,
}

/// The permits that parked acquisitions may take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    /// This many of the permits that this process releases,
    pub(super) freed: u32,
    /// and the permits that were available before, except for this many, for which other waiters
    /// may have been woken.
    pub(super) spare: u32,
}

/// What a leader knows when it begins.
pub(super) struct Begun {
    pub(super) snapshot: Option<Snapshot>,
    pub(super) written: Option<(Token, u64)>,
    pub(super) rests_until: Moment,
}

/// What a leader leaves behind when it ends.
pub(super) struct Ended {
    /// The rest of its batch, and the operations that stay parked.
    pub(super) rest: Vec<Entry>,
    pub(super) parked: Vec<Entry>,
    /// The last write, and the record after it, if no other process was using the semaphore.
    pub(super) written: Option<(Token, u64)>,
    pub(super) snapshot: Option<Snapshot>,
    /// The number of operations in the last batch; and whether another process was faster to write.
    pub(super) served: usize,
    pub(super) refused: bool,
}

impl fmt::Debug for Combiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Combiner").finish_non_exhaustive()
    }
}

/// Which thread leads.
pub(super) enum Lead {
    /// This thread, with its own operation.
    Ours(Box<Begun>, Box<Operation>),
    /// Another thread; this one has to sleep on that ticket.
    Another(Arc<Ticket>),
}

/// Where to wait for a permit.
pub(super) enum Parking {
    Here(Arc<Ticket>),
    Queue,
}

impl Combiner {
    /// The combiner for the semaphore of this key.
    pub(super) fn of(context: &Context, key: &Key) -> Arc<Combiner> {
        let combiners = context.extension(ForkLocal::<Combiners>::new).get();
        let mut combiners = combiners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(combiner) = combiners.get(key).and_then(Weak::upgrade) {
            return combiner;
        }
        // Unused combiners are dropped each time the map would have to grow.
        if combiners.len() == combiners.capacity() {
            combiners.retain(|_, combiner| combiner.strong_count() > 0);
        }
        let combiner = Arc::<Combiner>::default();
        combiners.insert(key.clone(), Arc::downgrade(&combiner));
        combiner
    }

    /// Makes this thread the leader if there is none; otherwise lists the operation.
    pub(super) fn enlist(&self, operation: Operation) -> Lead {
        let mut state = self.state();
        if std::mem::replace(&mut state.led, true) {
            Lead::Another(list(&mut state.listed, operation))
        } else {
            Lead::Ours(Box::new(state.begins()), Box::new(operation))
        }
    }

    /// Parks the operation if this process is expected to release a permit soon, or if enough of
    /// its threads are in the queue.
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

    /// Takes an operation back that is listed or parked: because its wait has ended (`is_enough`),
    /// or to join the queue, in which case the second field of the result is true. `is_long`: for a
    /// parked operation, whether it has been parked for long.
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
            // The operation is in a batch. If it returns from there to the parked ones, it has to
            // end.
            ticket.is_not_wanted_any_more();
        }
        let operation = operation?;
        let in_queue = goes && !is_enough;
        state.in_queue += usize::from(in_queue);
        Some((operation, in_queue))
    }

    /// The thread of this ticket unwinds. Returns its operation, if that was listed or parked.
    pub(super) fn abandon(&self, ticket: &Arc<Ticket>) -> Option<Operation> {
        let mut state = self.state();
        let operation = state.take_back(ticket);
        if ticket.is_abandoned() {
            state.wake_next();
        }
        operation
    }

    /// Takes the listed operations.
    pub(super) fn take_listed(&self) -> VecDeque<Entry> {
        std::mem::take(&mut self.state().listed)
    }

    /// Takes the parked operations, for a leader whose batch has `freed` releases, and returns what
    /// the leader may pass to them.
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

    /// A waiter that parking sent to the queue has left it: it acquired its permit, or gave up.
    /// Another one may join.
    pub(super) fn leaves_queue(&self) {
        let mut state = self.state();
        state.in_queue = state.in_queue.saturating_sub(1);
        if let Some(entry) = state.parked.front() {
            entry.ticket.wake_to_reconsider();
        }
    }

    /// The record was written, by a request that was sent at `sent`. `holders`: how many holders of
    /// this process it has. `released`: if permits were released, how many, how many of those were
    /// passed to parked acquisitions, and the queue at that time.
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

    /// The leader has ended: wakes the next one, if an operation is listed.
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

    /// Whether a permit of this process can be expected soon.
    fn is_worth_waiting(&self, now: Moment) -> bool {
        let is_recent =
            |when: Option<Moment>, every| when.is_some_and(|when| now.since(when) < every);
        self.queue != ObservedQueue::HasPrecedence
            && (is_recent(self.released, RELEASES_EVERY)
                || is_recent(self.wrote_many, WRITES_EVERY))
    }

    /// Passes the lead to the thread of the first listed operation.
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

    /// Takes the operation of this ticket back, if it is listed or parked.
    fn take_back(&mut self, ticket: &Arc<Ticket>) -> Option<Operation> {
        let is_its = |entry: &Entry| Arc::ptr_eq(&entry.ticket, ticket);
        let mut lists = [&mut self.listed, &mut self.parked].into_iter();
        let entry = lists
            .find_map(|list| list.iter().position(is_its).and_then(|place| list.remove(place)));
        entry.map(|entry| entry.operation)
    }
}

/// Appends the operation. Returns the ticket on which its thread has to sleep.
fn list(list: &mut VecDeque<Entry>, operation: Operation) -> Arc<Ticket> {
    let ticket = Arc::<Ticket>::default();
    list.push_back(Entry { operation, ticket: Arc::clone(&ticket) });
    ticket
}
