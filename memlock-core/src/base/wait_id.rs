//! Wait ids: the ids of waiters in queues, wake-up messages and reservations.

use std::fmt;

use crate::name::parse_hex;

/// The id of one queue entry: 64 random bits, new each time a waiter joins.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WaitId(pub u64);

impl fmt::Display for WaitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for WaitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl WaitId {
    /// Parses exactly sixteen lower-case hexadecimal digits.
    pub fn parse(text: &[u8]) -> Option<WaitId> {
        parse_hex(text).map(WaitId)
    }
}
