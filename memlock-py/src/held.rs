//! What a mutex object holds, and which of the threads that share the object it is for.
//!
//! The object holds one acquisition at a time. While it is held, the server lets no second thread in. But a
//! lease may run out with its thread still at work; then the next thread is granted the mutex through the
//! same object, and the first, when it comes to release, must not release the second's. So a thread whose
//! acquisition was displaced is remembered, and told that its lock was lost.
//!
//! | lock | held while | never while |
//! | --- | --- | --- |
//! | the slot's | a few instructions, with the interpreter attached | detaching, doing I/O, dropping a `Held` |
//! | a `Held`'s | extending and releasing on the server, detached | attaching |
//!
//! So no thread ever waits for the interpreter with one of them in hand. And a fork catches nobody in the
//! slot's: whoever forks Python holds the interpreter's lock. A `Held` that another process made is never
//! locked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use memlock_core::clock::{Clock, Moment, SystemClock};
use memlock_core::{Answer, Extension, Lock, Release, Result, fork};
use pyo3::prelude::*;

/// One acquisition.
pub(crate) struct Held {
    pub(crate) fence: u64,
    thread: ThreadId,
    /// Until when it is certainly ours, in nanoseconds of the boot clock: readable during an extension.
    ends: AtomicU64,
    /// `None` once it is released.
    lock: Mutex<Option<Lock>>,
}

impl Held {
    /// To be called in the thread that acquired it.
    pub(crate) fn new(lock: Lock) -> Held {
        let ends = AtomicU64::new(nanoseconds(lock.deadline()));
        Held { fence: lock.fence(), thread: thread::current().id(), ends, lock: Mutex::new(Some(lock)) }
    }

    /// How long it is certainly ours yet. No I/O, and no waiting for an extension that is under way.
    pub(crate) fn remaining(&self) -> Duration {
        let now = nanoseconds(SystemClock.now());
        Duration::from_nanos(self.ends.load(Ordering::Relaxed).saturating_sub(now))
    }

    /// To be called detached: it speaks to the server.
    pub(crate) fn release(&self) -> Result<Release> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = match lock.as_mut() {
            None => return Ok(Release::NotHeld),
            Some(lock) => lock.unlock()?,
        };
        *lock = None;
        Ok(ended)
    }

    /// To be called detached: it speaks to the server.
    pub(crate) fn extend(&self, lease: Duration) -> Result<Extension> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(lock) = lock.as_mut() else { return Ok(Extension::NotHeld) };
        // Until the answer is there, count on the shorter of the two.
        self.ends.fetch_min(nanoseconds(SystemClock.now() + lease), Ordering::Relaxed);
        let ended = lock.extend(lease);
        self.ends.store(nanoseconds(lock.deadline()), Ordering::Relaxed);
        ended
    }
}

fn nanoseconds(moment: Moment) -> u64 {
    moment.since_boot().as_nanos().try_into().unwrap_or(u64::MAX)
}

/// The place for what an object holds.
#[derive(Default)]
pub(crate) struct Slot(Mutex<State>);

#[derive(Default)]
struct State {
    /// The process that all of this is about; in another, nothing is held.
    process: u64,
    held: Option<Arc<Held>>,
    /// The threads whose acquisition another thread's has displaced, and that were not told yet.
    lost: Vec<ThreadId>,
}

impl Slot {
    /// Puts a new acquisition in. What it displaces is returned, to be dropped detached.
    pub(crate) fn keep(&self, py: Python<'_>, held: Arc<Held>) -> Option<Arc<Held>> {
        self.with(py, |state| {
            let displaced = state.held.replace(held);
            if let Some(displaced) = &displaced {
                state.tell_later(displaced.thread);
            }
            displaced
        })
    }

    /// What this thread would release: [`Answer::NotHeld`] or [`Answer::Lost`] when there is nothing.
    pub(crate) fn look<T>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&Arc<Held>) -> T,
    ) -> std::result::Result<T, Answer> {
        self.with(py, |state| match &state.held {
            Some(held) if state.is_for_us(held) => Ok(read(held)),
            _ if state.lost.contains(&thread::current().id()) => Err(Answer::Lost),
            _ => Err(Answer::NotHeld),
        })
    }

    /// Takes out what this thread releases.
    pub(crate) fn take(&self, py: Python<'_>) -> std::result::Result<Arc<Held>, Answer> {
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
    pub(crate) fn put_back(&self, py: Python<'_>, held: Arc<Held>) {
        let late = self.with(py, |state| {
            if state.held.is_none() {
                state.held = Some(held);
                return None;
            }
            // The server has granted the mutex to another thread meanwhile, so it is not this one's any more.
            state.tell_later(held.thread);
            Some(held)
        });
        py.detach(|| drop(late));
    }

    /// Empties it for good, when the object goes.
    pub(crate) fn empty(&mut self) -> Option<Arc<Held>> {
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
    fn is_for_us(&self, held: &Held) -> bool {
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
