//! Decides offline, from the histories of all processes, whether memlock kept its promises.
//!
//! | what is looked for | where |
//! | --- | --- |
//! | two valid holds of a mutex at once; a fence that does not rise; a lock lost before its deadline; a release that is answered as done after another was granted it; a refusal when no client can have held it | `check/locks.rs` |
//! | more permits out than there are; permits lost before their end; a release that is answered as done twice; a refusal when there must have been permits | `check/semaphores.rs` |
//! | waiters of low priority that come before those of higher priority | `check/turns.rs` |
//! | a key with two ids, an id with two keys, a key with two firsts or with none; a session set up twice, or gone | `check/lists.rs` |
//! | a call that outlasts its limit or its cancellation by more than [`Facts::bound`]; a wait that times out too early, or is interrupted and nobody cancelled it; a grant that is refused as too slow and was not; an answer that these programs cannot get | `check/calls.rs` |
//!
//! Stamps are taken so that they err on the side of memlock: a hold is counted from when the grant
//! was known until just before the release was begun, or until its deadline. Where the server lost
//! its memory (it was flushed, restarted, or evicts), a hold that spans that moment may be lost;
//! that is counted as a loss and is no violation. A server that was stopped may shorten what it
//! stored when it woke up: that counts as a loss too.
//!
//! [`Facts`] are what is known beside the histories. [`holds`] are the holds of mutexes, for what a
//! test checks by itself.

use crate::history::{Call, by_thread};

pub use facts::{Facts, KEPT, Semaphore};
pub use holds::{HoldInterval, holds};
pub use verdict::{Turns, Verdict};

mod calls;
mod facts;
mod holds;
mod lists;
mod locks;
mod losses;
mod semaphores;
#[cfg(test)]
mod tests;
mod turns;
mod verdict;

/// Looks for everything that may not be.
#[must_use]
pub fn check(calls: &[Call], facts: &Facts) -> Verdict {
    let calls = by_thread(calls);
    let mut verdict = Verdict::default();
    calls::check(&calls, facts, &mut verdict);
    locks::check(&calls, facts, &mut verdict);
    semaphores::check(&calls, facts, &mut verdict);
    turns::check(&calls, facts, &mut verdict);
    lists::check(&calls, facts, &mut verdict);
    verdict
}
