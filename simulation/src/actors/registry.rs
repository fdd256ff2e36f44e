//! The renewals of a process.

use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};

use memlock_core::Renewal;

/// The renewals of a process: the oracle inspects them, and its children inherit them.
pub(crate) type Registry = Arc<StdMutex<Vec<Registered>>>;

#[derive(Clone)]
pub(crate) struct Registered {
    pub(super) token: String,
    pub(super) renewal: Weak<Renewal>,
}

pub(super) fn registered(registry: &Registry) -> Vec<(String, Arc<Renewal>)> {
    let mut registry = registry.lock().unwrap_or_else(PoisonError::into_inner);
    registry.retain(|it| it.renewal.strong_count() > 0);
    registry.iter().filter_map(|it| Some((it.token.clone(), it.renewal.upgrade()?))).collect()
}
