//! A client as its objects share it; and all clients of the process, whose waits the interpreter's
//! exit ends.

use std::sync::Arc;
use std::time::Duration;

use memlock_core::name::Key;
use memlock_core::store::Route;
use memlock_core::{Client, bare};
use pyo3::prelude::*;

use crate::weak_list::WeakList;

/// A client as its objects share it.
pub(crate) struct SharedClient {
    pub(crate) core: Client,
    pub(crate) url: String,
}

static CLIENTS: WeakList<SharedClient> = WeakList::new();

impl SharedClient {
    pub(crate) fn new(py: Python<'_>, core: Client, url: String) -> Arc<SharedClient> {
        let client = Arc::new(SharedClient { core, url });
        CLIENTS.add(py, Arc::downgrade(&client));
        client
    }

    /// The server of this key; for a client without servers, the name of its store.
    pub(crate) fn server(&self, key: &Key) -> Box<str> {
        server(&self.core, key)
    }
}

/// The server of this key, or all servers of a quorum; for a client without servers, the name of its
/// store.
pub(crate) fn server(core: &Client, key: &Key) -> Box<str> {
    let mut names = core.nodes().into_iter().map(|node| node.name);
    if core.guarantees().quorum.is_some() {
        return names.collect::<Vec<_>>().join(", ").into();
    }
    names.nth(core.server_of(Route::of(key))).unwrap_or_default().into()
}

/// Whether threads of a client have calls to carry out.
pub(crate) fn any_calls(_attached: Python<'_>) -> bool {
    CLIENTS.objects().iter().any(|client| !client.core.finish_calls(Duration::ZERO))
}

/// Ends the waits that are in progress, of all clients and the default client, in all threads.
pub(crate) fn cancel_all_waits(_attached: Python<'_>) {
    CLIENTS.objects().iter().for_each(|client| client.core.cancel_waits());
    if let Some(client) = bare::existing_client() {
        client.cancel_waits();
    }
}
