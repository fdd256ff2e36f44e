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
//! **Hand-offs.** A leader that releases permits also takes acquisitions of waiters of its process into
//! the batch (see [`local`](crate::wait::local)), each by a token that the waiter has set aside. While
//! its acquisition is in a batch, the waiter does not leave.
//!
//! The lease of each operation is counted from before the request whose reply had the server's time
//! for it, never from a later one: see `Snapshot::lease`.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::operation::Operation;
use super::snapshot::Snapshot;
use super::ticket::{Entry, Ticket};
use crate::context::Context;
use crate::fork::ForkLocal;
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::owner::Token;

/// What this process remembers of a semaphore, to save reads.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The last write of this process: which semaphore, and the count of its writes.
    pub(super) written: Option<(Token, u64)>,
    /// The record after that write, if no other process was using the semaphore.
    pub(super) snapshot: Option<Snapshot>,
}

impl Memory {
    /// What a new leader knows.
    fn begin(&mut self) -> Memory {
        Memory { written: self.written, snapshot: self.snapshot.take() }
    }
}

/// The combiners of one client in this process.
type Combiners = Mutex<HashMap<Key, Weak<Combiner>>>;

/// What the threads of one client share that change the same semaphore.
#[derive(Default)]
pub(super) struct Combiner {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether a thread leads, or was woken to lead.
    led: bool,
    listed: VecDeque<Entry>,
    memory: Memory,
    others: Others,
    /// Whether this process has released an odd number of permits.
    is_odd: bool,
}

/// The waiters of other processes, when this process last released permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Others {
    #[default]
    None,
    /// This many, equal to those of this process.
    Some(u32),
    /// Some of them come first: they request several permits, or have a higher priority.
    First,
}

impl fmt::Debug for Combiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Combiner").finish_non_exhaustive()
    }
}

/// Which thread leads.
pub(super) enum Lead {
    /// This thread, with its own operation.
    Ours(Box<(Memory, Operation)>),
    /// Another thread; this one has to sleep on that ticket.
    Another(Arc<Ticket>),
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
            let ticket = Arc::<Ticket>::default();
            state.listed.push_back(Entry { operation, ticket: Arc::clone(&ticket) });
            Lead::Another(ticket)
        } else {
            Lead::Ours(Box::new((state.memory.begin(), operation)))
        }
    }

    /// What a new leader knows.
    pub(super) fn begin(&self) -> Memory {
        self.state().memory.begin()
    }

    /// Takes an operation back, if it is listed, because its wait has ended.
    pub(super) fn take_back(&self, ticket: &Arc<Ticket>) -> Option<Operation> {
        let operation = self.state().take_back(ticket);
        if operation.is_none() {
            // The operation is in a batch. If it returns from there to the list, it has to end.
            ticket.is_not_wanted_any_more();
        }
        operation
    }

    /// The thread of this ticket unwinds. Returns its operation, if that was listed.
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

    /// How many permits a leader may hand off to waiters of this process, if `free` are available,
    /// and it releases `freed` more. Of these, others get every second one.
    pub(super) fn share(&self, free: u32, freed: u32) -> u32 {
        let state = self.state();
        match state.others {
            Others::None => free.saturating_add(freed),
            Others::Some(waiters) => {
                let half = freed.saturating_add(u32::from(state.is_odd)) / 2;
                half.saturating_add(free.saturating_sub(waiters))
            }
            Others::First => 0,
        }
    }

    /// So many permits were released, and these others were waiting.
    pub(super) fn released(&self, freed: u32, others: Others) {
        let mut state = self.state();
        state.is_odd ^= freed % 2 == 1;
        state.others = others;
    }

    /// The leader has ended, and leaves the rest of its batch: wakes the next one, if an operation is
    /// listed.
    pub(super) fn wake_next(&self, rest: Vec<Entry>, memory: Memory) {
        let mut state = self.state();
        state.memory = memory;
        for entry in rest.iter().filter(|entry| entry.ticket.is_unwanted()) {
            entry.ticket.wake_to_reconsider();
        }
        for entry in rest.into_iter().rev() {
            state.listed.push_front(entry);
        }
        state.wake_next();
    }

    pub(super) fn memory<T>(&self, look: impl FnOnce(&mut Memory) -> T) -> T {
        look(&mut self.state().memory)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
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

    /// Takes the operation of this ticket back, if it is listed.
    fn take_back(&mut self, ticket: &Arc<Ticket>) -> Option<Operation> {
        let place = self.listed.iter().position(|entry| Arc::ptr_eq(&entry.ticket, ticket))?;
        self.listed.remove(place).map(|entry| entry.operation)
    }
}
