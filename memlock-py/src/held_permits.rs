//! The acquisitions that a semaphore object holds: any number, of any number of threads.
//!
//! release() ends the latest acquisition of the calling thread, so that nested `with` statements
//! end in reverse order. In a thread that has none it ends the oldest one of the object. So one
//! thread may release the permits of another, but no thread does so by mistake while it has an
//! acquisition of its own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use memlock_core::{Loss, Release, Result, fork};
use pyo3::prelude::*;

use crate::acquisition::Acquisition;
use crate::deferral::REMEMBERED;
use crate::deferred_release::Defers;
use crate::leftover::{self, Holds};

/// The acquisitions of a semaphore object. See `acquisition` for the rules of its lock.
pub(crate) struct HeldPermits(Mutex<State>);

#[derive(Default)]
struct State {
    /// The process to which this state belongs; in another process nothing is held.
    process: u64,
    /// The number of acquisitions so far.
    count: u64,
    /// The oldest first.
    entries: Vec<Entry>,
}

/// One acquisition, and its number among all acquisitions of the object.
pub(crate) struct Entry {
    number: u64,
    held: Arc<Acquisition>,
}

impl HeldPermits {
    pub(crate) fn new(py: Python<'_>) -> Arc<HeldPermits> {
        let held_permits = Arc::new(HeldPermits(Mutex::default()));
        leftover::add(py, &held_permits);
        held_permits
    }

    pub(crate) fn push(&self, py: Python<'_>, held: Arc<Acquisition>) {
        self.with(py, |state| {
            state.forget_over(held.thread);
            state.count += 1;
            state.entries.push(Entry { number: state.count, held });
        });
    }

    /// The acquisition that this thread would release. To be dropped without the GIL.
    pub(crate) fn current(&self, py: Python<'_>) -> Option<Arc<Acquisition>> {
        self.with(py, |state| Some(state.entries[state.next()?].held.clone()))
            .filter(|held| !held.deferral.is_over())
    }

    /// The time for which the current acquisition is guaranteed to be held.
    pub(crate) fn remaining(&self, py: Python<'_>) -> Option<std::time::Duration> {
        self.with(py, |state| Some(state.entries[state.next()?].held.remaining()))
    }

    /// Why the current acquisition was lost, if a loss is known.
    pub(crate) fn lost(&self, py: Python<'_>) -> Option<Loss> {
        self.with(py, |state| {
            let held = &state.entries[state.next()?].held;
            held.lost().or_else(|| held.deferral.loss())
        })
    }

    /// Takes out the acquisitions that this thread releases by its next `n` calls, except those
    /// whose release is left to a transaction. Returns `None`, and takes none, if there are fewer.
    pub(crate) fn take(&self, py: Python<'_>, n: usize) -> Option<Vec<Entry>> {
        self.with(py, |state| {
            let unreleased = |entry: &&Entry| !entry.held.deferral.is_left();
            if n > state.entries.iter().filter(unreleased).count() {
                return None;
            }
            Some((0..n).filter_map(|_| state.take_next()).collect())
        })
    }

    /// The acquisition that this thread would release, unless a transaction has released it.
    pub(crate) fn to_defer(&self, py: Python<'_>) -> Option<Arc<Acquisition>> {
        self.with(py, |state| Some(state.entries[state.next_released()?].held.clone()))
            .filter(|held| !held.deferral.is_over())
    }

    /// Puts back acquisitions that could not be released.
    pub(crate) fn put_back(&self, py: Python<'_>, entries: Vec<Entry>) {
        self.with(py, |state| {
            state.entries.extend(entries);
            state.entries.sort_by_key(|entry| entry.number);
        });
    }

    pub(crate) fn len(&self, py: Python<'_>) -> usize {
        self.with(py, |state| {
            state.entries.iter().filter(|entry| !entry.held.deferral.is_over()).count()
        })
    }

    /// Takes all acquisitions out, when the object is deallocated. To be dropped without the GIL.
    pub(crate) fn take_all(&self) -> Vec<Entry> {
        std::mem::take(&mut self.locked().entries)
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

impl Defers for HeldPermits {
    fn is_over(&self, py: Python<'_>, _held: &Arc<Acquisition>) {
        self.with(py, State::forget_oldest_over);
    }
}

impl Holds for HeldPermits {
    fn let_go(&self, thread: ThreadId) {
        // Locked in a child that was forked by a thread without the GIL: there nothing is held.
        let Ok(state) = self.0.try_lock() else { return };
        let all: Vec<_> = state.entries.iter().map(|entry| Arc::clone(&entry.held)).collect();
        drop(state);
        all.iter().filter(|held| held.thread == thread).for_each(|held| held.let_go());
    }
}

impl State {
    /// The index of the acquisition that is "the acquisition" of this thread: of those that it
    /// would release; or of those whose release is left to a transaction, or that are over.
    fn next(&self) -> Option<usize> {
        self.select(|held| !held.deferral.is_left() && !held.deferral.is_over())
            .or_else(|| self.select(|held| !held.deferral.is_over()))
            .or_else(|| self.select(|_| true))
    }

    /// The index of the acquisition that this thread would release: the latest of its own; else
    /// the oldest of which no transaction disposes.
    fn next_released(&self) -> Option<usize> {
        let unreleased = |held: &Acquisition| !held.deferral.is_left();
        let this_thread = thread::current().id();
        let own = |held: &Acquisition| unreleased(held) && held.thread == this_thread;
        self.select(own)
            .or_else(|| self.select(|held| unreleased(held) && !held.deferral.is_deferred()))
            .or_else(|| self.select(unreleased))
    }

    /// The latest acquisition of this thread or, if it has none, the oldest, of those that suit.
    fn select(&self, suits: impl Fn(&Acquisition) -> bool) -> Option<usize> {
        let this_thread = thread::current().id();
        let mut entries = self.entries.iter();
        let own = entries.rposition(|Entry { held, .. }| held.thread == this_thread && suits(held));
        own.or_else(|| self.entries.iter().position(|Entry { held, .. }| suits(held)))
    }

    /// Takes out the acquisition that this thread releases; or `None` if a transaction has released
    /// it or will.
    fn take_next(&mut self) -> Option<Entry> {
        let next = self.next_released()?;
        let deferral = &self.entries[next].held.deferral;
        if !deferral.is_deferred() {
            return Some(self.entries.remove(next));
        }
        deferral.leave();
        if deferral.is_over() && deferral.loss().is_none() {
            self.entries.remove(next);
        }
        None
    }

    /// A thread acquires anew: what is over is of no interest, unless a `with` statement is to end.
    fn forget_over(&mut self, thread: ThreadId) {
        self.entries.retain(|Entry { held, .. }| {
            held.thread != thread || !held.deferral.is_over() || held.is_due_by_with()
        });
    }

    /// Bounds the number of acquisitions that are over: their release() may never come.
    fn forget_oldest_over(&mut self) {
        let is_over = |entry: &Entry| entry.held.deferral.is_over();
        let mut excess = self.entries.iter().filter(|entry| is_over(entry)).count();
        self.entries.retain(|entry| {
            let is_forgotten = excess > REMEMBERED && is_over(entry);
            excess -= usize::from(is_forgotten);
            !is_forgotten
        });
    }
}

/// Releases all of them, in this order; stops at the first failure. Returns those that are still
/// held, the outcome, and the failure. Sends requests: to be called without the GIL.
pub(crate) fn release_all(entries: Vec<Entry>) -> (Vec<Entry>, Release, Result<()>) {
    let mut entries = entries.into_iter();
    let mut outcome = Release::Released;
    while let Some(entry) = entries.next() {
        match entry.held.release() {
            Ok(Release::Lost) => outcome = Release::Lost,
            Ok(Release::Released | Release::NotHeld) => {}
            Err(error) => {
                return (std::iter::once(entry).chain(entries).collect(), outcome, Err(error));
            }
        }
    }
    (Vec::new(), outcome, Ok(()))
}
