//! One behaviour suite, many front doors: what a test may do with memlock, whichever way it goes
//! in.
//!
//! [`Rust`] goes in by the Rust types and [`C`] by the C functions. Answers are the numbers of the
//! answer table, so that both must say the very same.

use std::time::Duration;

use memlock_core::{Answer, Report};

mod c;
mod rust;

pub use c::C;
pub use rust::Rust;

/// An answer that is not the hoped-for one, with its sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct No {
    /// Which row of the table.
    pub answer: Answer,
    /// What the user would read.
    pub sentence: String,
}

/// What a call gives, or why not.
pub type Outcome<T> = std::result::Result<T, No>;

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug)]
pub enum For {
    /// Try once.
    Never,
    /// At most this long.
    AtMost(Duration),
    /// As long as it takes.
    Ever,
}

/// A client.
pub trait Door: Send + Sync {
    /// Locks a mutex.
    fn lock(&self, name: &[u8], lease: Duration, wait: For) -> Outcome<Box<dyn Held>>;
    /// What names the acquisition that holds a mutex, if any.
    fn owner(&self, name: &[u8]) -> Outcome<Option<Holder>>;
    /// Takes a mutex away from that acquisition.
    fn force_unlock(&self, name: &[u8], token: &str) -> Outcome<()>;
    /// Sets a session up or joins it; the answer says which.
    fn set_up(&self, session: &[u8], duration: Duration) -> Outcome<(Answer, Box<dyn Listed>)>;
    /// A handle on a session.
    fn list(&self, session: &[u8]) -> Outcome<Box<dyn Listed>>;
    /// Ends all waits that are going on.
    fn cancel_waits(&self);
}

/// Who holds a mutex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Names the acquisition.
    pub token: String,
    /// The holder's process; 0 for a plain client's lock.
    pub pid: u32,
    /// When it was acquired, in Unix seconds; 0 for a plain client's lock.
    pub since: u64,
}

/// A lock that is held.
pub trait Held: Send {
    /// Its fencing token.
    fn fence(&self) -> u64;
    /// How long it is ours yet.
    fn remaining(&self) -> Duration;
    /// Gives it a new lease.
    fn extend(&mut self, lease: Duration) -> Outcome<()>;
    /// Unlocks it.
    fn unlock(self: Box<Self>) -> Outcome<()>;
}

/// A distinct list.
pub trait Listed: Send {
    /// Inserts a key: its id, and whether we were first.
    fn insert(&mut self, key: &[u8]) -> Outcome<(u64, bool)>;
    /// Inserts many.
    fn insert_many(&mut self, keys: &[&[u8]]) -> Outcome<Vec<(u64, bool)>>;
    /// A key's id.
    fn id(&mut self, key: &[u8]) -> Outcome<Option<u64>>;
    /// How many ids were given out.
    fn count(&mut self) -> Outcome<u64>;
    /// All keys with their ids.
    fn walk(&mut self) -> Outcome<Vec<(u64, Vec<u8>)>>;
    /// Ends the session.
    fn tear_down(&mut self) -> Outcome<()>;
}

impl From<Report> for No {
    fn from(report: Report) -> No {
        No { answer: report.answer(), sentence: report.to_string() }
    }
}
