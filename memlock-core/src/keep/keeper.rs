//! The keeper: a client's list of what is kept, and the thread that renews it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Hold, no_thread, round};
use crate::error::Result;
use crate::fork::Call;
use crate::mutation::{self, Mutation};
use crate::thread::{self, Signal};

/// What one process keeps by one client.
#[derive(Default)]
pub(crate) struct Keeper {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    list: Mutex<List>,
    changed: Signal,
}

#[derive(Default)]
struct List {
    holds: Vec<Arc<Hold>>,
    /// How often it was changed.
    changes: u64,
    /// Whether there is a thread.
    running: bool,
}

impl Keeper {
    /// Keeps it from now on.
    pub(super) fn keep(&self, hold: &Arc<Hold>) -> Result<()> {
        let mut list = self.shared.list();
        list.holds.push(Arc::clone(hold));
        list.changes += 1;
        if !std::mem::replace(&mut list.running, true) {
            let shared = Arc::clone(&self.shared);
            if let Err(error) = thread::start("memlock-keeper", move || run(&shared)) {
                list.running = false;
                list.holds.retain(|other| !Arc::ptr_eq(other, hold));
                return Err(no_thread(&error));
            }
        }
        self.shared.changed.wake_all();
        Ok(())
    }

    /// Keeps it no longer.
    pub(super) fn forget(&self, hold: &Hold) {
        let mut list = self.shared.list();
        let is_it = |other: &Arc<Hold>| {
            std::ptr::eq(&raw const **other, hold) && !mutation::has(Mutation::KeepForGood)
        };
        let place = list.holds.iter().position(is_it);
        let gone = place.map(|place| list.holds.swap_remove(place));
        list.changes += 1;
        self.shared.changed.wake_all();
        drop(list);
        drop(gone);
    }

    /// There is something to be done before it is due.
    pub(super) fn hurry(&self) {
        self.shared.list().changes += 1;
        self.shared.changed.wake_all();
    }
}

impl Shared {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn run(shared: &Shared) {
    let call = Call::begin();
    loop {
        let (holds, changes) = {
            let mut list = shared.list();
            if list.holds.is_empty() {
                list.running = false;
                return;
            }
            (list.holds.clone(), list.changes)
        };
        let pause = round::round(&holds);
        // A child that was made by what is told keeps nothing.
        if call.is_astray() {
            thread::end_child();
        }
        drop(holds);
        let list = shared.list();
        // A hold that came meanwhile may be due sooner.
        if list.changes == changes {
            shared.changed.sleep(list, pause);
        }
    }
}
