//! One connection for each file and process, which all clients of the file share.
//!
//! SQLite's locks on a file belong to the process, and a removed file is really gone only when no
//! connection of the process has it open: with one connection, both follow from its state.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::connection::Connection;
use super::file::Location;
use super::fork_safety;
use crate::fork::ForkLocal;

/// The connection, once it is open.
#[derive(Debug, Default)]
pub(super) struct SharedConnection(Mutex<Option<Connection>>);

/// The connections of a process, by what a client opens: the file, and whether a network file
/// system is trusted.
type Connections = Vec<((PathBuf, bool), Weak<SharedConnection>)>;

static CONNECTIONS: ForkLocal<Mutex<Connections>> = ForkLocal::new();

impl SharedConnection {
    /// This process's connection to the file.
    pub(super) fn to(place: &Location) -> Arc<SharedConnection> {
        let key = (resolved(&place.path), place.trusts_networks);
        let mut connections = CONNECTIONS.get().lock().unwrap_or_else(PoisonError::into_inner);
        let known = connections.iter().find(|(known, _)| *known == key);
        if let Some(connection) = known.and_then(|(_, connection)| connection.upgrade()) {
            return connection;
        }
        connections.retain(|(_, connection)| connection.strong_count() > 0);
        let connection = Arc::new(SharedConnection::default());
        connections.push((key, Arc::downgrade(&connection)));
        connection
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Connection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes it, unless other clients use it, too.
    pub(super) fn close_if_unused(self: &Arc<SharedConnection>) {
        if Arc::strong_count(self) == 1 {
            self.close();
        }
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
