//! The renewal thread: one thread for all leases that one process renews through one client.

use std::sync::Arc;

use super::entries::Entries;
use super::entry::RenewalEntry;
use super::round;
use crate::error::{Error, ErrorKind, Result};
use crate::thread;

/// Adds an entry, and starts the renewal thread if it does not run.
pub(super) fn add(entry: &Arc<RenewalEntry>) -> Result<()> {
    let shared = Entries::of(&entry.target.context);
    let mut list = shared.list();
    list.entries.push(Arc::clone(entry));
    list.changes += 1;
    if !std::mem::replace(&mut list.running, true) {
        let its = Arc::clone(shared);
        if let Err(error) = thread::start("memlock-renewer", move || run(&its)) {
            list.running = false;
            list.entries.retain(|other| !Arc::ptr_eq(other, entry));
            return Err(no_thread(&error));
        }
    }
    shared.changed.wake_all();
    Ok(())
}

fn run(shared: &Entries<RenewalEntry>) {
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
        drop(entries);
        let list = shared.list();
        // An entry that was added meanwhile may be due sooner.
        if list.changes == changes {
            shared.changed.sleep(list, pause);
        }
    }
}

/// An error with a message that says what to do.
fn no_thread(error: &std::io::Error) -> Error {
    Error::new(
        ErrorKind::Internal,
        format!("No thread can be started that renews leases, so it was released: {error}."),
    )
}
