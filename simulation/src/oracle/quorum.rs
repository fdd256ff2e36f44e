//! A quorum: mutexes of which each server has a vote.
//!
//! | event | must be |
//! | --- | --- |
//! | two processes rely on a mutex at once, each by its own clock | never, whatever the servers have |
//! | a holder relies on a mutex | a majority has its vote, or abstains: is down, or younger than the guard |
//! | a server stores a vote | it is older than the guard, or had this vote in an earlier life; and it had none |
//! | a server removes a vote | its own process asked for it, or it expired |
//! | a fence is granted | greater than each one that was granted before |
//! | a counter of fences is written | it rises, as long as its server lives |
//! | a holder is told that it held without a break | nobody else was granted the mutex meanwhile |
//! | a holder is told that it is lost | its lease is over, or a majority does not have its vote |
//! | a caller is told that it is busy | a server had another vote meanwhile |
//! | most servers are well, and a call waits | it or another one is granted the mutex, within a bound |
//!
//! What is said of a single server's mutexes elsewhere holds for a majority: see `is_there`.

mod answers;
mod changes;
mod liveness;
mod state;
mod support;

pub(super) use liveness::VOTE_OUTLIVES;
pub(super) use state::Quorum;
pub(super) use support::{end_of_majority, has_majority, owner_of};
