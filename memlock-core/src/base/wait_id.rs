//! Wait ids: what a queue, a wake-up message and a reservation call a waiter by.

use std::fmt;

/// The id of one entry in a queue: 64 random bits, new for each time that a waiter joins.
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
    /// Reads sixteen lower-case hexadecimal digits, and nothing else.
    pub fn parse(text: &[u8]) -> Option<WaitId> {
        let digits =
            text.len() == 16 && text.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let text = std::str::from_utf8(text).ok().filter(|_| digits)?;
        u64::from_str_radix(text, 16).ok().map(WaitId)
    }
}
