//! A list of objects that it does not keep alive, for what is to be done at interpreter exit.

use std::sync::{Arc, Mutex, TryLockError, Weak};

use pyo3::prelude::*;

/// Used only with the GIL, or when no thread can take the GIL any more: so no thread ever waits for
/// it, and no fork by Python code finds it locked.
pub(crate) struct WeakList<T: ?Sized>(Mutex<Vec<Weak<T>>>);

impl<T: ?Sized> WeakList<T> {
    pub(crate) const fn new() -> WeakList<T> {
        WeakList(Mutex::new(Vec::new()))
    }

    pub(crate) fn add(&self, _attached: Python<'_>, object: Weak<T>) {
        self.with(|list| {
            if list.len() == list.capacity() {
                list.retain(|object| object.strong_count() > 0);
                // So that this is not repeated soon.
                list.reserve(list.len());
            }
            list.push(object);
        });
    }

    /// The objects that are alive.
    pub(crate) fn objects(&self) -> Vec<Arc<T>> {
        let mut objects = Vec::new();
        self.with(|list| objects.extend(list.iter().filter_map(Weak::upgrade)));
        objects
    }

    fn with(&self, body: impl FnOnce(&mut Vec<Weak<T>>)) {
        match self.0.try_lock() {
            Ok(mut list) => body(&mut list),
            Err(TryLockError::Poisoned(list)) => body(&mut list.into_inner()),
            // In a child forked by a thread without the GIL. The list serves promptness and
            // tidiness, and nothing depends on it.
            Err(TryLockError::WouldBlock) => {}
        }
    }
}
