//! The route of a key: which of several servers owns it.

use crate::hash::{fnv1a, mix};
use crate::name::Key;

/// Determines which of several servers owns a group of keys: a hash of the key by which they are
/// found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route(u64);

impl Route {
    /// The route of all items that belong to `key`.
    pub fn of(key: &Key) -> Route {
        Route(mix(fnv1a(key.as_str().as_bytes())))
    }

    /// A route on a store of one server, which owns them all.
    #[cfg(feature = "memcached")]
    pub(crate) const fn of_any() -> Route {
        Route(0)
    }

    /// The pinned hash.
    pub fn hash(self) -> u64 {
        self.0
    }
}
