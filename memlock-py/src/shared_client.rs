//! A client as its objects share it; and all clients of the process, whose waits the interpreter's
//! exit ends.

use std::sync::Arc;

use memlock_core::store::without_password;
use memlock_core::{Client, bare};
use pyo3::prelude::*;

use crate::weak_list::WeakList;

/// A client as its objects share it.
pub(crate) struct SharedClient {
    pub(crate) core: Client,
    /// Without a password.
    pub(crate) shown_url: String,
}

static CLIENTS: WeakList<SharedClient> = WeakList::new();

impl SharedClient {
    pub(crate) fn new(py: Python<'_>, core: Client, url: &str) -> Arc<SharedClient> {
        let client = Arc::new(SharedClient { core, shown_url: without_password(url) });
        CLIENTS.add(py, Arc::downgrade(&client));
        client
    }
}

/// Ends the waits that are in progress, of all clients and the default client, in all threads.
pub(crate) fn cancel_all_waits(_attached: Python<'_>) {
    CLIENTS.objects().iter().for_each(|client| client.core.cancel_waits());
    if let Some(client) = bare::existing_client() {
        client.cancel_waits();
    }
}
