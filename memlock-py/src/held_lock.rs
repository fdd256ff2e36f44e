//! What a mutex object holds, and which of the threads that share the object it is for.
//!
//! The object holds one acquisition at a time. While it is held, the server lets no second thread
//! in. But a lease may run out with its thread still at work; then the next thread is granted the
//! mutex through the same object, and the first, when it comes to release, must not release the
//! second's. So a thread whose acquisition was displaced is remembered, and told that its lock was
//! lost.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use memlock_core::{Answer, Lock, fork};
use pyo3::prelude::*;

use crate::held::Held;

/// The place for what a mutex object holds.
#[derive(Default)]
pub(crate) struct HeldLock(Mutex<State>);

#[derive(Default)]
struct State {
    /// The process that all of this is about; in another, nothing is held.
    process: u64,
    held: Option<Arc<Held<Lock>>>,
    /// The threads whose acquisition another thread's has displaced, and that were not told yet.
    lost: Vec<ThreadId>,
}

impl HeldLock {
    /// Puts a new acquisition in. What it displaces is returned, to be dropped detached.
    pub(crate) fn keep(&self, py: Python<'_>, held: Arc<Held<Lock>>) -> Option<Arc<Held<Lock>>> {
        self.with(py, |state| {
            let displaced = state.held.replace(held);
            if let Some(displaced) = &displaced {
                state.tell_later(displaced.thread);
            }
            displaced
        })
    }

    /// What this thread would release: [`Answer::NotHeld`] or [`Answer::Lost`] when there is
    /// nothing.
    pub(crate) fn look<T>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&Arc<Held<Lock>>) -> T,
    ) -> std::result::Result<T, Answer> {
        self.with(py, |state| match &state.held {
            Some(held) if state.is_for_us(held) => Ok(read(held)),
            _ if state.lost.contains(&thread::current().id()) => Err(Answer::Lost),
            _ => Err(Answer::NotHeld),
        })
    }

    /// Takes out what this thread releases.
    pub(crate) fn take(&self, py: Python<'_>) -> std::result::Result<Arc<Held<Lock>>, Answer> {
        self.with(py, |state| match state.held.take() {
            Some(held) if state.is_for_us(&held) => Ok(held),
            other => {
                state.held = other;
                let us = thread::current().id();
                let place = state.lost.iter().position(|&thread| thread == us);
                match place {
                    Some(place) => {
                        state.lost.swap_remove(place);
                        Err(Answer::Lost)
                    }
                    None => Err(Answer::NotHeld),
                }
            }
        })
    }

    /// Puts back what could not be released.
    pub(crate) fn put_back(&self, py: Python<'_>, held: Arc<Held<Lock>>) {
        let late = self.with(py, |state| {
            if state.held.is_none() {
                state.held = Some(held);
                return None;
            }
            // The server has granted the mutex to another thread meanwhile, so it is not this one's
            // any more.
            state.tell_later(held.thread);
            Some(held)
        });
        py.detach(|| drop(late));
    }

    /// Empties it for good, when the object goes.
    pub(crate) fn empty(&mut self) -> Option<Arc<Held<Lock>>> {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).held.take()
    }

    fn with<T>(&self, _attached: Python<'_>, body: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let process = fork::generation();
        if state.process != process {
            // The parent's: in this process dropping it touches nothing but memory.
            *state = State { process, ..State::default() };
        }
        body(&mut state)
    }
}

impl State {
    /// Any thread may release what another acquired, unless it had an acquisition of its own.
    fn is_for_us(&self, held: &Held<Lock>) -> bool {
        self.lost.is_empty() || {
            let us = thread::current().id();
            held.thread == us || !self.lost.contains(&us)
        }
    }

    fn tell_later(&mut self, thread: ThreadId) {
        if !self.lost.contains(&thread) {
            self.lost.push(thread);
        }
    }
}
