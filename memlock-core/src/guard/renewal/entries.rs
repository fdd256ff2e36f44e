//! The leases that one process renews through one client: a list, and a signal for the renewal
//! thread.

use std::sync::{Arc, PoisonError};

use crate::context::Context;
use crate::fork::ForkLocal;
use crate::mutation::{self, Mutation};
use crate::sync::{Mutex, MutexGuard};
use crate::thread::Signal;

pub(super) struct Entries<E> {
    list: Mutex<List<E>>,
    pub(super) changed: Signal,
}

pub(super) struct List<E> {
    pub(super) entries: Vec<Arc<E>>,
    /// How often the list was changed.
    pub(super) changes: u64,
    /// Whether the renewal thread runs.
    pub(super) running: bool,
}

impl<E> Default for Entries<E> {
    fn default() -> Entries<E> {
        let list = List { entries: Vec::new(), changes: 0, running: false };
        Entries { list: Mutex::new(list), changed: Signal::default() }
    }
}

impl<E: Send + Sync + 'static> Entries<E> {
    /// The entries of this process and client.
    pub(super) fn of(context: &Context) -> &Arc<Entries<E>> {
        context.extension(ForkLocal::<Arc<Entries<E>>>::new).get()
    }

    pub(super) fn list(&self) -> MutexGuard<'_, List<E>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the renewal of an entry.
    pub(super) fn forget(&self, entry: &E) {
        let mut list = self.list();
        let is_it = |other: &Arc<E>| {
            std::ptr::eq(&raw const **other, entry) && !mutation::has(Mutation::KeepForGood)
        };
        let place = list.entries.iter().position(is_it);
        let gone = place.map(|place| list.entries.swap_remove(place));
        list.changes += 1;
        self.changed.wake_all();
        drop(list);
        drop(gone);
    }

    /// Wakes the renewal thread before the next lease is due.
    pub(super) fn hurry(&self) {
        self.list().changes += 1;
        self.changed.wake_all();
    }
}
