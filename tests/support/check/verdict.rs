//! The result of a check.

use std::fmt::Display;
use std::time::Duration;

use crate::safety::MARKER;

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Promises that were broken, each with the calls that show it. Breaches of safety begin with
    /// [`MARKER`].
    pub violations: Vec<String>,
    /// Calls that took too long.
    pub hung: Vec<String>,
    /// Locks that were lost with the server's memory, as is documented.
    pub losses: Vec<String>,
    /// By how much a call exceeded its limit at most.
    pub latest: Duration,
    /// In which order waiters of different priority got their permits.
    pub turns: Turns,
}

impl Verdict {
    /// Adds a breach of safety, with the marker before it.
    pub(super) fn breach(&mut self, text: impl Display) {
        self.violations.push(format!("{MARKER}{text}"));
    }
}

/// How many pairs there were of a waiter and one of lower priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// The one of higher priority came first.
    pub in_order: usize,
    /// The one of lower priority came first.
    pub overtaken: usize,
}

impl Turns {
    /// In words.
    pub fn summary(&self) -> String {
        let Turns { in_order, overtaken } = self;
        format!(
            "of waiters with another of lower priority: {in_order} came before it, {overtaken} after it"
        )
    }
}
