//! The acquisition that a mutex object holds, and the threads that have lost theirs.
//!
//! The object holds one acquisition at a time. While it is held, the server grants the mutex to no
//! other thread. But the lease may expire while the holding thread still works. Then another thread
//! may acquire the mutex by the same object, and the first thread must not release the acquisition
//! of the second. Therefore a thread whose acquisition was displaced is recorded, and its release()
//! reports that the lock was lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use memlock_core::{Answer, fork};
use pyo3::prelude::*;

use crate::acquisition::Acquisition;
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
    lost: Vec<ThreadId>,
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
            let displaced = state.held.replace(held);
            if let Some(displaced) = &displaced {
                state.record_loss(displaced.thread);
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
        self.with(py, |state| match &state.held {
            Some(held) if state.belongs_to_this_thread(held) => Ok(read(held)),
            _ if state.lost.contains(&thread::current().id()) => Err(Answer::Lost),
            _ => Err(Answer::NotHeld),
        })
    }

    /// Takes out the acquisition that this thread releases.
    pub(crate) fn take(&self, py: Python<'_>) -> std::result::Result<Arc<Acquisition>, Answer> {
        self.with(py, |state| match state.held.take() {
            Some(held) if state.belongs_to_this_thread(&held) => Ok(held),
            other => {
                state.held = other;
                let this_thread = thread::current().id();
                let position = state.lost.iter().position(|&thread| thread == this_thread);
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

    /// Puts back an acquisition that could not be released.
    pub(crate) fn put_back(&self, py: Python<'_>, held: Arc<Acquisition>) {
        let displaced = self.with(py, |state| {
            if state.held.is_none() {
                state.held = Some(held);
                return None;
            }
            // The server has granted the mutex to another thread meanwhile, so this one has lost
            // it.
            state.record_loss(held.thread);
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

impl Holds for HeldLock {
    fn let_go(&self, thread: ThreadId) {
        // Locked in a child that was forked by a thread without the GIL: there nothing is held.
        let held = self.0.try_lock().ok().and_then(|state| state.held.clone());
        if let Some(held) = held.filter(|held| held.thread == thread) {
            held.let_go();
        }
    }
}

impl State {
    /// Any thread may release the acquisition of another, unless it has lost one of its own.
    fn belongs_to_this_thread(&self, held: &Acquisition) -> bool {
        self.lost.is_empty() || {
            let this_thread = thread::current().id();
            held.thread == this_thread || !self.lost.contains(&this_thread)
        }
    }

    fn record_loss(&mut self, thread: ThreadId) {
        if !self.lost.contains(&thread) {
            self.lost.push(thread);
        }
    }
}
