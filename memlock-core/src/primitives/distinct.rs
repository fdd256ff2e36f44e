//! The distinct list: every key gets one id, and exactly one inserter is answered that it was
//! first.
//!
//! Items on the server, all on the session's server and all dying with the session:
//!
//! | item | holds | written by |
//! | --- | --- | --- |
//! | `list:<session>` | the generation, a fresh token of each set-up | set-up, by `Add`; removed by tear-down |
//! | `list:%c<generation>:` | the counter: the highest id given out | set-up, by `Add`; `Increment` |
//! | `list:%k<generation>:<key>` | `? <token>` while claimed, then `<id> <token>` | `Add`, then `CompareAndSet` |
//! | `list:%n<generation>:<id>` | the key with that id | `Add` |
//!
//! An insert *claims* the key's item, draws an id from the counter, then writes the id's item and
//! *commits* the key's item, in that order in one packet. Whose token the committed item carries
//! was first.
//!
//! | what can happen | what then |
//! | --- | --- |
//! | the inserter dies after claiming | the next comer with that key waits for a grace, then draws an id and commits it itself: then it was first |
//! | a slow inserter finds its key committed by another | it removes its own id's item and returns the other's id: the key is a duplicate |
//! | dies between the id's item and committing | as above; enumeration commits it too, and skips the id if the key has another |
//! | dies after drawing an id | the id is never used: enumeration skips such a hole after a grace |
//! | a reply is lost | the key's item is read back, and its token says how far we came |
//! | the session is torn down meanwhile | every packet also reads the session: another generation, or none, refuses the insert |
//!
//! Tear-down is one `Delete` of the session's item. What is left of the generation is unreachable,
//! since a new set-up has another, and expires.
//!
//! `add` for the key and `incr` for its id are Brad Fitzpatrick's recipe for Kyle Burton's
//! `distinct_list_*`, memcached list, 2004. Ids of duplicates, generations and repair are ours.

mod insert;
mod iterate;
mod list;
#[cfg(test)]
mod tests;

pub use insert::Insertion;
pub use iterate::Entries;
pub use list::{DistinctList, SetUp};
