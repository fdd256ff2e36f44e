//! The result of an insert.

use crate::error::Answer;

/// The result of an insert.
#[must_use = "only one of all who insert a key was first"]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Insertion {
    /// This insert was first; the key has this id.
    First(u64),
    /// The key was in the list already, with this id.
    Duplicate(u64),
}

impl From<Insertion> for Answer {
    fn from(insertion: Insertion) -> Answer {
        match insertion {
            Insertion::First(_) => Answer::Ok,
            Insertion::Duplicate(_) => Answer::Duplicate,
        }
    }
}

impl Insertion {
    /// The key's id, which is the same for all callers.
    pub fn id(self) -> u64 {
        match self {
            Insertion::First(id) | Insertion::Duplicate(id) => id,
        }
    }
}
