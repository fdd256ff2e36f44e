//! The outcome of setting up what outlives its creator.

use crate::error::Answer;

/// The result of setting up a semaphore or a session.
#[must_use = "it may be new, or one that others use already"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetUp {
    /// It is new.
    Created,
    /// It existed already.
    Joined,
}

impl From<SetUp> for Answer {
    fn from(set_up: SetUp) -> Answer {
        match set_up {
            SetUp::Created => Answer::Ok,
            SetUp::Joined => Answer::Exists,
        }
    }
}
