//! Where a holder last confirmed what it holds. The guard shares it with the threads that check and
//! renew it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Clone, Debug)]
pub(crate) struct Confirmed<T>(Arc<Mutex<T>>);

impl<T: Copy> Confirmed<T> {
    pub(crate) fn new(at: T) -> Confirmed<T> {
        Confirmed(Arc::new(Mutex::new(at)))
    }

    pub(crate) fn get(&self) -> T {
        *self.last()
    }

    pub(crate) fn set(&self, at: T) {
        self.change(|last| *last = at);
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.last());
    }

    fn last(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
