//! Wait ids: the ids of waiters in queues, wake-up messages and reservations.

use std::fmt;

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
        let digits =
            text.len() == 16 && text.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let text = std::str::from_utf8(text).ok().filter(|_| digits)?;
        u64::from_str_radix(text, 16).ok().map(WaitId)
    }
}
