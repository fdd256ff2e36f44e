//! The renewer: a client's list of what is kept, and the thread that renews it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::entry::RenewalEntry;
use super::round;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::fork::{Call, ForkLocal};
use crate::mutation::{self, Mutation};
use crate::thread::{self, Signal};

/// What one process keeps by one client.
#[derive(Default)]
pub(super) struct Renewer {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    list: Mutex<List>,
    changed: Signal,
}

#[derive(Default)]
struct List {
    entries: Vec<Arc<RenewalEntry>>,
    /// How often it was changed.
    changes: u64,
    /// Whether there is a thread.
    running: bool,
}

impl Renewer {
    /// That of this process and client.
    pub(super) fn of(context: &Context) -> &Renewer {
        context.extension(ForkLocal::<Renewer>::new).get()
    }

    /// Keeps it from now on.
    pub(super) fn add(&self, entry: &Arc<RenewalEntry>) -> Result<()> {
        let mut list = self.shared.list();
        list.entries.push(Arc::clone(entry));
        list.changes += 1;
        if !std::mem::replace(&mut list.running, true) {
            let shared = Arc::clone(&self.shared);
            if let Err(error) = thread::start("memlock-renewer", move || run(&shared)) {
                list.running = false;
                list.entries.retain(|other| !Arc::ptr_eq(other, entry));
                return Err(no_thread(&error));
            }
        }
        self.shared.changed.wake_all();
        Ok(())
    }

    /// Keeps it no longer.
    pub(super) fn forget(&self, entry: &RenewalEntry) {
        let mut list = self.shared.list();
        let is_it = |other: &Arc<RenewalEntry>| {
            std::ptr::eq(&raw const **other, entry) && !mutation::has(Mutation::KeepForGood)
        };
        let place = list.entries.iter().position(is_it);
        let gone = place.map(|place| list.entries.swap_remove(place));
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
        let (entries, changes) = {
            let mut list = shared.list();
            if list.entries.is_empty() {
                list.running = false;
                return;
            }
            (list.entries.clone(), list.changes)
        };
        let pause = round::round(&entries);
        // A child that was made by what is told keeps nothing.
        if call.is_astray() {
            thread::end_child();
        }
        drop(entries);
        let list = shared.list();
        // A hold that came meanwhile may be due sooner.
        if list.changes == changes {
            shared.changed.sleep(list, pause);
        }
    }
}

/// Ends with a sentence that a person can act on.
fn no_thread(error: &std::io::Error) -> Error {
    Error::new(
        ErrorKind::Internal,
        format!("No thread can be started that renews leases, so it was released: {error}."),
    )
}
