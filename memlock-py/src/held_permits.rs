//! What a semaphore object holds: any number of acquisitions, of any number of threads.
//!
//! A thread's release() is for the latest of its own acquisitions, as a `with` inside another ends
//! before it. A thread that has none releases the oldest of all: so permits that one thread took
//! may be given back by another, and yet no thread gives back another's by mistake as long as it
//! has one of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use memlock_core::{Loss, Permit, Release, Result, fork};
use pyo3::prelude::*;

use crate::held::Held;

/// The place for what a semaphore object holds. See `held` for when its lock may be held.
#[derive(Default)]
pub(crate) struct HeldPermits(Mutex<State>);

#[derive(Default)]
struct State {
    /// The process that all of this is about; in another, nothing is held.
    process: u64,
    /// How many there have been.
    count: u64,
    /// The oldest first.
    entries: Vec<Entry>,
}

/// One acquisition, and its number among all that the object ever held.
pub(crate) struct Entry {
    number: u64,
    held: Arc<Held<Permit>>,
}

impl HeldPermits {
    pub(crate) fn keep(&self, py: Python<'_>, held: Held<Permit>) {
        self.with(py, |state| {
            state.count += 1;
            state.entries.push(Entry { number: state.count, held: Arc::new(held) });
        });
    }

    /// What this thread would release. To be dropped detached.
    pub(crate) fn look(&self, py: Python<'_>) -> Option<Arc<Held<Permit>>> {
        self.with(py, |state| Some(state.entries[state.next()?].held.clone()))
    }

    /// How long that is certainly ours yet.
    pub(crate) fn remaining(&self, py: Python<'_>) -> Option<std::time::Duration> {
        self.with(py, |state| Some(state.entries[state.next()?].held.remaining()))
    }

    /// Why that was lost, if it was.
    pub(crate) fn lost(&self, py: Python<'_>) -> Option<Loss> {
        self.with(py, |state| state.entries[state.next()?].held.lost())
    }

    /// Takes out what this thread releases by its next `n` calls; `None`, and nothing is taken, if
    /// there are fewer.
    pub(crate) fn take(&self, py: Python<'_>, n: usize) -> Option<Vec<Entry>> {
        self.with(py, |state| {
            if n > state.entries.len() {
                return None;
            }
            Some(
                (0..n).map_while(|_| state.next().map(|next| state.entries.remove(next))).collect(),
            )
        })
    }

    /// Puts back what could not be released.
    pub(crate) fn put_back(&self, py: Python<'_>, entries: Vec<Entry>) {
        self.with(py, |state| {
            state.entries.extend(entries);
            state.entries.sort_by_key(|entry| entry.number);
        });
    }

    pub(crate) fn len(&self, py: Python<'_>) -> usize {
        self.with(py, |state| state.entries.len())
    }

    /// Empties it for good, when the object goes. To be dropped detached.
    pub(crate) fn empty(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.0.get_mut().unwrap_or_else(PoisonError::into_inner).entries)
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
    /// The place of what this thread would release.
    fn next(&self) -> Option<usize> {
        let us = thread::current().id();
        let ours = self.entries.iter().rposition(|entry| entry.held.thread == us);
        ours.or(if self.entries.is_empty() { None } else { Some(0) })
    }
}

/// Releases all of them, in this order; after a failure the rest is not tried. Gives what is still
/// held, and how it went. To be called detached: it speaks to the server.
pub(crate) fn release_all(entries: Vec<Entry>) -> (Vec<Entry>, Release, Result<()>) {
    let mut entries = entries.into_iter();
    let mut ended = Release::Released;
    while let Some(entry) = entries.next() {
        match entry.held.release() {
            Ok(Release::Lost) => ended = Release::Lost,
            Ok(Release::Released | Release::NotHeld) => {}
            Err(error) => {
                return (std::iter::once(entry).chain(entries).collect(), ended, Err(error));
            }
        }
    }
    (Vec::new(), ended, Ok(()))
}
