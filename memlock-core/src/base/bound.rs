//! What is bound: acquisitions that only one thread, or one event loop, will release. A wait without a
//! limit for one of them would be a wait for itself, if it keeps that thread or event loop from going
//! on.
//!
//! There is one list in each copy of this library in a process: C, C++ and the bare functions of C share
//! one, and so do all objects and functions of the Python module.
//!
//! | bound | to | until |
//! | --- | --- | --- |
//! | a bare mutex | the thread that locked it | it is unlocked |
//! | a `memlock::mutex` of C++ | the thread that locked it | it is unlocked |
//! | what a `with` statement of Python has entered | the thread, or the event loop, that has to leave it | it is left, or a release is tried |
//! | a handle of C, after `memlock_lock_bind` or `memlock_permit_bind` | the thread that called it | the handle is freed |
//! | what the `memlock run` around a nested one holds | the thread that waits | the process ends |
//! | any token, in Rust | the thread that made the [`Bound`] | that is dropped |
//!
//! Any thread may release everything else, so a wait for that is never taken for a wait for itself. The
//! server decides whether one of the tokens is in the way: what is bound may have been lost, and the lease
//! may be over.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::fork::ForkLocal;
use crate::owner::Token;

static BOUND: ForkLocal<Mutex<BTreeSet<Entry>>> = ForkLocal::new();

/// The number, which no other entry of this process and its children has, tells those that bind the same
/// token apart.
type Entry = (Releaser, Token, u64);

/// A thread: a number that no other thread of this process has or had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Thread(u64);

impl Thread {
    /// The calling thread. Unlike `std::thread::current`, this does not panic in the last destructors
    /// of a thread: the variable has no destructor.
    pub fn current() -> Thread {
        static LAST: AtomicU64 = AtomicU64::new(0);
        thread_local! {
            static NUMBER: Cell<u64> = const { Cell::new(0) };
        }
        if NUMBER.get() == 0 {
            NUMBER.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        }
        Thread(NUMBER.get())
    }
}

/// What alone releases an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Releaser {
    /// This thread.
    Thread(Thread),
    /// What an event loop runs: a number that no other event loop has that exists at the same time, such
    /// as its address. See [`Wait::in_event_loop`](crate::Wait::in_event_loop).
    EventLoop(usize),
}

/// An acquisition that is bound as long as this value exists, which any thread may drop. A child made
/// by `fork` has bound nothing.
#[derive(Debug)]
#[must_use = "dropping it ends what it stands for"]
pub struct Bound(Entry);

impl Bound {
    /// Only the calling thread will release the acquisition with this token.
    pub fn to_this_thread(token: Token) -> Bound {
        Bound::to(Releaser::Thread(Thread::current()), token)
    }

    /// Only `releaser` will release the acquisition with this token.
    pub fn to(releaser: Releaser, token: Token) -> Bound {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let entry = (releaser, token, LAST.fetch_add(1, Ordering::Relaxed));
        bound().insert(entry);
        Bound(entry)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        bound().remove(&self.0);
    }
}

/// Whether anything is bound to an event loop.
pub fn has_event_loops() -> bool {
    let (first, _) = all_of(Releaser::EventLoop(0));
    existing().is_some_and(|bound| bound.range(first..).next().is_some())
}

/// The tokens of what is bound to this thread, or to the event loop that runs in it.
pub(crate) fn tokens(event_loop: Option<usize>) -> Vec<Token> {
    let Some(bound) = existing() else { return Vec::new() };
    let thread = Releaser::Thread(Thread::current());
    let releasers = std::iter::once(thread).chain(event_loop.map(Releaser::EventLoop));
    releasers
        .flat_map(|releaser| {
            let (first, last) = all_of(releaser);
            bound.range(first..=last)
        })
        .map(|&(_, token, _)| token)
        .collect()
}

/// The first and the last entry that this releaser may have.
fn all_of(releaser: Releaser) -> (Entry, Entry) {
    ((releaser, Token::from_bits(0), 0), (releaser, Token::from_bits(u128::MAX), u64::MAX))
}

fn bound() -> MutexGuard<'static, BTreeSet<Entry>> {
    BOUND.get().lock().unwrap_or_else(PoisonError::into_inner)
}

fn existing() -> Option<MutexGuard<'static, BTreeSet<Entry>>> {
    BOUND.existing().map(|bound| bound.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::fork::in_a_child;

    const fn token(bits: u128) -> Token {
        Token::from_bits(bits)
    }

    #[test]
    fn what_is_bound_is_of_one_thread_until_anyone_drops_it() {
        let (first, last) =
            (Bound::to_this_thread(token(0)), Bound::to_this_thread(token(u128::MAX)));
        assert_eq!(tokens(None), [token(0), token(u128::MAX)]);
        let others = thread::spawn(|| {
            let mine = Bound::to_this_thread(token(7));
            assert_eq!(tokens(None), [token(7)]);
            drop(first);
            mine
        });
        let others = others.join().unwrap();
        assert_eq!(tokens(None), [token(u128::MAX)]);
        let again = Bound::to_this_thread(token(u128::MAX));
        drop((last, others));
        assert_eq!(tokens(None), [token(u128::MAX)], "it was bound again");
        drop(again);
        assert_eq!(tokens(None), []);
    }

    #[test]
    fn what_is_bound_to_an_event_loop_counts_where_that_runs() {
        let (one, other) = (4096, 8192);
        let bound = Bound::to(Releaser::EventLoop(one), token(1));
        assert!(has_event_loops());
        assert_eq!(tokens(None), []);
        assert_eq!(tokens(Some(other)), []);
        let mine = Bound::to_this_thread(token(2));
        assert_eq!(tokens(Some(one)), [token(2), token(1)]);
        thread::spawn(move || assert_eq!(tokens(Some(one)), [token(1)])).join().unwrap();
        drop(bound);
        assert_eq!(tokens(Some(one)), [token(2)]);
        drop(mine);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot fork")]
    fn a_child_has_bound_nothing_and_ends_nothing_of_its_parent() {
        let bound = Bound::to_this_thread(token(3));
        assert_eq!(tokens(None), [token(3)]);
        assert!(in_a_child(|| {
            let own = tokens(None).is_empty().then(|| Bound::to_this_thread(token(3)));
            drop(bound);
            own.is_some() && tokens(None) == [token(3)]
        }));
    }
}
