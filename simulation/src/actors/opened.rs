//! The semaphores that a process has opened.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as StdMutex};

use memlock_core::{Mismatch, Semaphore};

/// The open semaphores of a process: its threads share them, and its children inherit them.
pub(crate) type Items = Arc<StdMutex<BTreeMap<String, Opened>>>;

#[derive(Clone)]
pub(crate) struct Opened {
    pub(super) semaphore: Semaphore,
    /// The number of permits that it was opened with.
    pub(super) number: Option<u32>,
    /// What it does if the semaphore has another number.
    pub(super) mismatch: Mismatch,
}
