//! The distinct list: each key gets one id, and exactly one of its inserters gets the answer that
//! it was first.
//!
//! Items on the server. All are on the session's server, and all expire with the session:
//!
//! | item | holds | written by |
//! | --- | --- | --- |
//! | `list:<session>` | the generation, a fresh token of each set-up | set-up, by `Add`; removed by tear-down |
//! | `list:%c<generation>:` | the counter: the highest id given out | set-up, by `Add`; `Increment` |
//! | `list:%k<generation>:<key>` | `? <token>` while claimed, then `<id> <token>` | `Add`, then `CompareAndSet` |
//! | `list:%n<generation>:<id>` | the key with that id | `Add` |
//!
//! An insert *claims* the key's item, draws an id from the counter, then writes the id's item and
//! *commits* the key's item, in that order in one packet. The inserter whose token the committed
//! item carries was first.
//!
//! | event | handling |
//! | --- | --- |
//! | an inserter dies after claiming | the next inserter of the key waits for a grace period, draws an id, commits the key, and was first |
//! | a slow inserter finds its key committed by another | it removes its own id's item and returns the other id: the key is a duplicate |
//! | an inserter dies between writing the id's item and committing | as above; enumeration commits the key, too, and skips the id if the key has another |
//! | an inserter dies after drawing an id | the id is never used: enumeration skips such a hole after a grace period |
//! | a reply is lost | the key's item is read back: its token shows how far the insert came |
//! | the server refuses to store the id's item and commits the key's item | the inserter reads both back, stores the id's item, or, if it is refused again, removes the key's item |
//! | the session is torn down during an insert | each packet that claims or commits keys, or waits for the claim of another inserter, also reads the session: another generation, or none, refuses the insert |
//!
//! Tear-down is one `Delete` of the session's item. The other items of the generation become
//! unreachable, because the next set-up has another generation, and expire.
//!
//! `add` for the key and `incr` for its id are Brad Fitzpatrick's recipe for Kyle Burton's
//! `distinct_list_*`, memcached list, 2004. The ids of duplicates, generations and repair are
//! additions of memlock.

mod batch;
mod insert;
mod insertion;
mod iterate;
mod list;
#[cfg(test)]
mod tests;

pub use insertion::Insertion;
pub use iterate::Entries;
pub use list::DistinctList;
