//! The acquisition that a mutex object holds, and the threads that have lost theirs.
//!
//! The object holds one acquisition at a time. While it is held, the server grants the mutex to no
//! other thread. But the lease may expire while the holding thread still works. Then another thread
//! may acquire the mutex by the same object, and the first thread must not release the acquisition
//! of the second. Therefore a thread whose acquisition was displaced is recorded, and its release()
//! reports that the lock was lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use memlock_core::{Answer, Loss, fork};
use pyo3::prelude::*;

use crate::acquisition::Acquisition;
use crate::deferral::REMEMBERED;
use crate::deferred_release::Defers;
use crate::green::Agent;
use crate::leftover::{self, Holds};

/// The acquisition of a mutex object.
pub(crate) struct HeldLock(Mutex<State>);

#[derive(Default)]
struct State {
    /// The process to which this state belongs; in another process nothing is held.
    process: u64,
    held: Option<Arc<Acquisition>>,
    /// The threads whose acquisition was displaced by another thread's, and that have not got that
    /// answer yet.
    lost: Vec<Agent>,
    /// What the ends of transactions have released, the oldest first: what release() and the end of
    /// a `with` statement are still to come for, or what was lost.
    over: Vec<Arc<Acquisition>>,
}

/// What a release finds.
pub(crate) enum Taken {
    Held(Arc<Acquisition>),
    /// The release was left to the end of a transaction.
    Deferred,
}

impl HeldLock {
    pub(crate) fn new(py: Python<'_>) -> Arc<HeldLock> {
        let held_lock = Arc::new(HeldLock(Mutex::default()));
        leftover::add(py, &held_lock);
        held_lock
    }

    /// Stores a new acquisition. Returns the displaced one, which must be dropped without the GIL.
    pub(crate) fn replace(
        &self,
        py: Python<'_>,
        held: Arc<Acquisition>,
    ) -> Option<Arc<Acquisition>> {
        self.with(py, |state| {
            let agent = held.agent;
            state.over.retain(|over| over.agent != agent || over.is_due_by_with());
            let displaced = state.held.replace(held);
            if let Some(displaced) = &displaced
                && !displaced.deferral.is_left()
            {
                state.record_loss(displaced.agent);
            }
            displaced
        })
    }

    /// Reads the acquisition that this thread would release, or [`Answer::NotHeld`] or
    /// [`Answer::Lost`].
    pub(crate) fn get<T>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&Arc<Acquisition>) -> T,
    ) -> std::result::Result<T, Answer> {
        let this_one = Agent::current(py);
        self.with(py, |state| match &state.held {
            Some(held) if state.belongs_to(this_one, held) => Ok(read(held)),
            _ if state.lost.contains(&this_one) => Err(Answer::Lost),
            _ => Err(Answer::NotHeld),
        })
    }

    /// Takes out the acquisition that this thread releases.
    pub(crate) fn take(&self, py: Python<'_>) -> std::result::Result<Taken, Answer> {
        let this_one = Agent::current(py);
        self.with(py, |state| match state.held.take() {
            Some(held) if state.is_next(this_one, &held) => {
                if !held.deferral.is_pending() {
                    return Ok(Taken::Held(held));
                }
                let first = held.deferral.leave();
                state.held = Some(held);
                if first { Ok(Taken::Deferred) } else { Err(Answer::NotHeld) }
            }
            other => {
                state.held = other;
                if state.leave_over(this_one) {
                    return Ok(Taken::Deferred);
                }
                let position = state.lost.iter().position(|&lost| lost == this_one);
                match position {
                    Some(position) => {
                        state.lost.swap_remove(position);
                        Err(Answer::Lost)
                    }
                    None => Err(Answer::NotHeld),
                }
            }
        })
    }

    /// The acquisition that this thread would release, if it has not done so.
    pub(crate) fn to_defer(&self, py: Python<'_>) -> std::result::Result<Arc<Acquisition>, Answer> {
        let held = self.get(py, Clone::clone)?;
        if held.deferral.is_left() { Err(Answer::NotHeld) } else { Ok(held) }
    }

    /// The loss that the end of a transaction has found, of this thread's last acquisition.
    pub(crate) fn last_loss(&self, py: Python<'_>) -> Option<Loss> {
        let this_one = Agent::current(py);
        self.with(py, |state| {
            state.over.iter().rfind(|over| over.agent == this_one)?.deferral.loss()
        })
    }

    /// Puts back an acquisition that could not be released.
    pub(crate) fn put_back(&self, py: Python<'_>, held: Arc<Acquisition>) {
        let displaced = self.with(py, |state| {
            if state.held.is_none() {
                state.held = Some(held);
                return None;
            }
            // The server has granted the mutex to another thread meanwhile, so this one has lost
            // it.
            state.record_loss(held.agent);
            Some(held)
        });
        py.detach(|| drop(displaced));
    }

    /// Takes the acquisition out, when the object is deallocated.
    pub(crate) fn take_all(&self) -> Option<Arc<Acquisition>> {
        self.locked().held.take()
    }

    fn with<T>(&self, _attached: Python<'_>, body: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.locked();
        let process = fork::generation();
        if state.process != process {
            // The parent's state: dropping it in this process affects only memory.
            *state = State { process, ..State::default() };
        }
        body(&mut state)
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Defers for HeldLock {
    fn is_over(&self, py: Python<'_>, held: &Arc<Acquisition>) {
        self.with(py, |state| {
            // Displaced otherwise, and recorded as lost.
            if state.held.as_ref().is_some_and(|current| Arc::ptr_eq(current, held)) {
                state.over.extend(state.held.take());
                let excess = state.over.len().saturating_sub(REMEMBERED);
                state.over.drain(..excess);
            }
        });
    }
}

impl Holds for HeldLock {
    fn let_go(&self, thread: ThreadId) {
        // Locked in a child that was forked by a thread without the GIL: there nothing is held.
        let held = self.0.try_lock().ok().and_then(|state| state.held.clone());
        if let Some(held) = held.filter(|held| held.agent.thread == thread) {
            held.let_go();
        }
    }
}

impl State {
    /// Any thread may release the acquisition of another, unless it has lost one of its own.
    fn belongs_to(&self, this_one: Agent, held: &Acquisition) -> bool {
        held.agent == this_one || !self.lost.contains(&this_one)
    }

    /// Whether a release by this thread concerns what is held, and not what a transaction has
    /// released before another thread acquired.
    fn is_next(&self, this_one: Agent, held: &Acquisition) -> bool {
        held.agent == this_one
            || self.belongs_to(this_one, held) && self.over_of(this_one).is_none()
    }

    /// The latest of this thread that is over and was not released by it.
    fn over_of(&self, agent: Agent) -> Option<usize> {
        self.over.iter().rposition(|over| over.agent == agent && !over.deferral.is_left())
    }

    /// A release of what is over, if there is something: of this thread or, if nothing is held, of
    /// any.
    fn leave_over(&mut self, agent: Agent) -> bool {
        let any = || match self.held {
            Some(_) => None,
            None => self.over.iter().position(|over| !over.deferral.is_left()),
        };
        let Some(position) = self.over_of(agent).or_else(any) else { return false };
        self.over[position].deferral.leave();
        self.over.retain(|over| !over.deferral.is_left() || over.deferral.loss().is_some());
        true
    }

    fn record_loss(&mut self, agent: Agent) {
        if !self.lost.contains(&agent) {
            self.lost.push(agent);
        }
    }
}
