//! Whether a server evicts locks when its memory is full.
//!
//! Locks have a time to live, so the `volatile-*` policies evict them as the `allkeys-*` ones do.

use crate::error::{Error, Result};
use crate::name::Key;

/// How to start a server that evicts no lock.
pub(super) const MEND: &str =
    "start it with --maxmemory-policy noeviction, on a server of its own if this one is a cache";

/// What a server does when its memory is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Retention {
    /// It refuses what needs memory, or its memory has no limit.
    Keeps,
    /// It evicts by this policy.
    Evicts(String),
    /// It does not tell.
    Unknown,
}

impl Retention {
    /// By the fields `maxmemory_policy` and `maxmemory` of its `INFO`; empty if there are none.
    pub(super) fn of(policy: &str, limit: &str) -> Retention {
        match (policy, limit) {
            ("noeviction", _) | (_, "0") => Retention::Keeps,
            ("", _) | (_, "") => Retention::Unknown,
            _ => Retention::Evicts(policy.escape_debug().to_string()),
        }
    }

    pub(super) fn evicts(&self) -> bool {
        matches!(self, Retention::Evicts(_))
    }

    /// Fails if the server may evict the item.
    pub(super) fn check(&self, key: &Key) -> Result<()> {
        let why = match self {
            Retention::Keeps => return Ok(()),
            Retention::Evicts(policy) => {
                format!(
                    "evicts items when its memory is full (maxmemory-policy {policy}), also {key}"
                )
            }
            Retention::Unknown => {
                format!("does not tell whether it evicts items when its memory is full, also {key}")
            }
        };
        Err(Error::config(format!("The server {why}, and the URL has evictions=refuse: {MEND}.")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::name::Keyspace;

    #[test]
    fn a_server_that_may_evict_is_refused_and_so_is_one_that_does_not_tell() {
        let key = Keyspace::default().lock(b"x");
        for (limit, policy, is_refused) in [
            ("0", "allkeys-lru", false),
            ("100", "noeviction", false),
            ("", "noeviction", false),
            ("100", "volatile-ttl", true),
            ("100", "allkeys-lfu", true),
            ("", "volatile-ttl", true),
            ("100", "", true),
            ("", "", true),
        ] {
            let checked = Retention::of(policy, limit).check(&key);
            assert_eq!(checked.is_err(), is_refused, "{limit} {policy}");
            if let Err(error) = checked {
                assert_eq!(error.kind(), ErrorKind::Config);
                assert!(error.to_string().contains("lock:x"), "{error}");
            }
        }
        assert!(!Retention::of("", "").evicts(), "nothing is known, so nobody is warned");
        assert!(Retention::of("volatile-lru", "100").evicts());
    }
}
