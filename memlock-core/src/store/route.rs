//! Which of several servers owns some keys.

use crate::hash::{fnv1a, mix};
use crate::name::Key;

/// Decides which of several servers owns some keys: a hash of the key they are all found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route(u64);

impl Route {
    /// The route of everything that belongs to `key`.
    pub fn of(key: &Key) -> Route {
        Route(mix(fnv1a(key.as_str().as_bytes())))
    }

    /// The pinned hash.
    pub fn hash(self) -> u64 {
        self.0
    }
}
