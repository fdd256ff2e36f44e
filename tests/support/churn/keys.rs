//! The keys that the processes of the churn test contend for.

/// How many keys there are.
pub(crate) const KEYS: usize = 5;

/// The name of a key's mutex.
pub(crate) fn name(key: usize) -> String {
    format!("churn{key}")
}
