//! One connection for each file and process, which all clients of the file share.
//!
//! SQLite's locks on a file belong to the process, and a removed file is really gone only when no
//! connection of the process has it open: with one connection, both follow from its state.
//!
//! A client uses the file that its path leads to. Links may be switched, and directories renamed,
//! while the file that they led to stays where it is. Other processes then lock another file, and
//! so must this client: it looks every 10 ms where its path leads, and moves if that is another
//! file than before. Each client looks for itself, since the paths of others may lead there still.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::connection::{Connection, LOOK_EVERY};
use super::errors::Stop;
use super::file::{FileId, Location};
use super::fork_safety;
use crate::error::Result;
use crate::fork::ForkLocal;
use crate::store::Failure;

/// The connection to a file, once it is open.
#[derive(Debug)]
pub(super) struct SharedConnection {
    /// No other file is ever opened: a client whose path leads to another one uses another
    /// connection.
    pub(super) id: FileId,
    connection: Mutex<Option<Connection>>,
}

static CONNECTIONS: ForkLocal<Mutex<Vec<Weak<SharedConnection>>>> = ForkLocal::new();

impl SharedConnection {
    /// This process's connection to the file at this path, which is created if there is none.
    fn to(place: &Location) -> Result<Arc<SharedConnection>> {
        let id = {
            // Nothing opens the new file before its descriptor is closed.
            let _call = fork_safety::enter();
            place.prepare()?
        };
        let create = || Arc::new(SharedConnection { id, connection: Mutex::new(None) });
        #[cfg(test)]
        if place.is_of_another_process {
            return Ok(create());
        }
        let mut connections = CONNECTIONS.get().lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|connection| connection.strong_count() > 0);
        let mut known = connections.iter().filter_map(Weak::upgrade);
        if let Some(known) = known.find(|known| known.id == id) {
            return Ok(known);
        }
        let connection = create();
        connections.push(Arc::downgrade(&connection));
        Ok(connection)
    }

    /// The connection, for this thread.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Connection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        let mut connection = self.lock();
        let _call = fork_safety::enter();
        *connection = None;
    }
}

/// A client's share in the connection to its file. The last client that is closed, or moves to
/// another file, closes the connection.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// None before the client is used, and after it was closed.
    used: Mutex<Option<Used>>,
}

#[derive(Debug)]
struct Used {
    connection: Arc<SharedConnection>,
    /// When the path last led to its file.
    seen: Duration,
}

impl Share {
    /// The connection to the file that the path leads to.
    ///
    /// # Errors
    /// [`Stop::BusyOpening`] while the path leads nowhere, and led to a file before. Otherwise for
    /// a file that is not suitable, or is on a file system that this client does not trust.
    pub(super) fn find(
        &self,
        place: &Location,
        now: Duration,
    ) -> std::result::Result<Arc<SharedConnection>, Stop> {
        let mut used = self.lock();
        if let Some(Used { connection, seen }) = &mut *used {
            if now.saturating_sub(*seen) <= LOOK_EVERY {
                return Ok(Arc::clone(connection));
            }
            if FileId::of(&place.path) == Some(connection.id) {
                *seen = now;
                return Ok(Arc::clone(connection));
            }
        }
        let found = match *used {
            Some(_) => place.unless_nowhere(|| SharedConnection::to(place)),
            None => SharedConnection::to(place).map(Some),
        };
        let found = found.map_err(|error| Stop::Failed(Failure { error, sent: false }))?;
        let connection = found.ok_or(Stop::BusyOpening)?;
        *used = Some(Used { connection: Arc::clone(&connection), seen: now });
        Ok(connection)
    }

    /// The connection of the last call, wherever the path leads by now.
    #[cfg(feature = "admin")]
    pub(super) fn existing(&self) -> Option<Arc<SharedConnection>> {
        self.lock().as_ref().map(|used| Arc::clone(&used.connection))
    }

    /// Ends the use of the connection.
    pub(super) fn release(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Used>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
