//! One connection for each file and process, which all clients of the file share.
//!
//! SQLite's locks on a file belong to the process, and a removed file is really gone only when no
//! connection of the process has it open: with one connection, both follow from its state.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::connection::Connection;
use super::file::{FileId, Location};
use super::fork_safety;
use crate::error::Result;
use crate::fork::ForkLocal;

/// The connection, once it is open.
#[derive(Debug)]
struct SharedConnection {
    /// The file through all symbolic links, as they were when the first client used it: whichever
    /// client opens the connection opens that file.
    place: Location,
    /// How many clients have used it and were not closed since.
    users: AtomicUsize,
    connection: Mutex<Option<Connection>>,
}

static CONNECTIONS: ForkLocal<Mutex<Vec<Weak<SharedConnection>>>> = ForkLocal::new();

impl SharedConnection {
    /// This process's connection to the file.
    fn to(place: &Location) -> Arc<SharedConnection> {
        let path = resolved(&place.path);
        let create = || {
            let mut place = place.clone();
            // Each client has checked for itself whether it trusts the file system.
            (place.path, place.trusts_networks) = (path.clone(), true);
            let (users, connection) = (AtomicUsize::new(0), Mutex::new(None));
            Arc::new(SharedConnection { place, users, connection })
        };
        #[cfg(test)]
        if place.is_of_another_process {
            return create();
        }
        let mut connections = CONNECTIONS.get().lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|connection| connection.strong_count() > 0);
        let id = FileId::of(&path);
        let is_it = |known: &Arc<SharedConnection>| {
            known.place.path == path || (id.is_some() && FileId::of(&known.place.path) == id)
        };
        if let Some(known) = connections.iter().filter_map(Weak::upgrade).find(is_it) {
            return known;
        }
        let connection = create();
        connections.push(Arc::downgrade(&connection));
        connection
    }

    fn lock(&self) -> MutexGuard<'_, Option<Connection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        let mut connection = self.lock();
        let _call = fork_safety::enter();
        *connection = None;
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        self.close();
    }
}

/// A client's share in the connection to its file.
#[derive(Debug)]
pub(super) struct Share {
    shared: Arc<SharedConnection>,
    /// Whether the client has used it and was not closed since.
    is_used: AtomicBool,
}

impl Share {
    /// # Errors
    /// For a file that is not suitable, or is on a file system that this client does not trust.
    pub(super) fn of(place: &Location) -> Result<Share> {
        place.check_as_far_as_it_exists()?;
        Ok(Share { shared: SharedConnection::to(place), is_used: AtomicBool::new(false) })
    }

    /// The file that the connection is to.
    pub(super) fn place(&self) -> &Location {
        &self.shared.place
    }

    /// The connection, for this thread.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Connection>> {
        if !self.is_used.load(Ordering::Relaxed) && !self.is_used.swap(true, Ordering::SeqCst) {
            self.shared.users.fetch_add(1, Ordering::SeqCst);
        }
        self.shared.lock()
    }

    /// Ends the use of it. The last user closes the connection.
    pub(super) fn release(&self) {
        if self.is_used.swap(false, Ordering::SeqCst)
            && self.shared.users.fetch_sub(1, Ordering::SeqCst) == 1
        {
            self.shared.close();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.release();
    }
}

/// The path through all symbolic links, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| {
        let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
        match (parent, path.file_name()) {
            (Some(parent), Some(name)) => parent.join(name),
            _ => path.to_owned(),
        }
    })
}
