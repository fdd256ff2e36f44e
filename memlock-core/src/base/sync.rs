//! The source of locks, atomics and threads for shared state: the standard library or, in the model tests,
//! shuttle, which decides which thread runs next.
//!
//! `make sanitize` runs the model tests: unit tests that are compiled with `--cfg shuttle`.
//! Everything else, the other unit tests included, never sees shuttle.

#[cfg(not(all(test, shuttle)))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic::AtomicBool},
    thread,
};

#[cfg(all(test, shuttle))]
pub(crate) use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, atomic::AtomicBool},
    thread,
};
