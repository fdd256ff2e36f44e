//! What a process renews.

use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};

use memlock_core::Renewal;

/// What a process keeps: the judge looks at it, and its children find it there.
pub(crate) type Registry = Arc<StdMutex<Vec<Treasure>>>;

#[derive(Clone)]
pub(crate) struct Treasure {
    pub(super) token: String,
    pub(super) kept: Weak<Renewal>,
}

pub(super) fn treasures(registry: &Registry) -> Vec<(String, Arc<Renewal>)> {
    let mut registry = registry.lock().unwrap_or_else(PoisonError::into_inner);
    registry.retain(|it| it.kept.strong_count() > 0);
    registry.iter().filter_map(|it| Some((it.token.clone(), it.kept.upgrade()?))).collect()
}
