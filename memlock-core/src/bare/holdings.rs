//! What this process holds through the bare functions.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bound::{Bound, Thread};
use crate::distinct_list::DistinctList;
use crate::fork::ForkLocal;
use crate::hash::{fnv1a, mix};
use crate::mutex::Lock;
use crate::semaphore::{Permit, Semaphore};

/// With this many sessions, those that have ended are forgotten; with this many displaced threads,
/// which may never return, or semaphores, all of them are.
pub(super) const MOST: usize = 1024;

static HOLDINGS: ForkLocal<Mutex<Holdings>> = ForkLocal::new();

/// What this process holds through the bare functions.
#[derive(Default)]
pub(super) struct Holdings {
    pub(super) locks: ByName<HeldLock>,
    /// Threads whose lease has ended, and whose lock another thread has acquired since: their late
    /// unlock must not release the other thread's lock.
    pub(super) displaced: HashSet<(Vec<u8>, Thread)>,
    pub(super) sessions: ByName<DistinctList>,
    pub(super) permits: ByName<Vec<HeldPermit>>,
    pub(super) semaphores: ByName<Semaphore>,
}

/// The names come from this process itself, so a cheap hash suffices.
type ByName<T> = HashMap<Vec<u8>, T, BuildHasherDefault<Fnv>>;

#[derive(Default)]
pub(super) struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        self.0 ^= fnv1a(bytes);
    }

    fn finish(&self) -> u64 {
        mix(self.0)
    }
}

pub(super) struct HeldLock {
    pub(super) lock: Lock,
    pub(super) thread: Thread,
    pub(super) _bound: Bound,
}

pub(super) struct HeldPermit {
    pub(super) permit: Permit,
    pub(super) thread: Thread,
}

pub(super) fn holdings() -> MutexGuard<'static, Holdings> {
    HOLDINGS.get().lock().unwrap_or_else(PoisonError::into_inner)
}
