//! The semaphore: one item on the server, `semaphore:<name>`, with the number of permits and their
//! holders.
//!
//! | a permit | meaning | what may change it, and how |
//! | --- | --- | --- |
//! | in no holder's line | available | any client, by writing a line with a fresh token over the version that it read |
//! | in this acquisition's line, before its deadline | held by this acquisition | the holder, by writing the record without the line, or with a later end |
//! | in this acquisition's line, past its deadline | no holder | the last holder, as above, while the line exists |
//! | in a line whose end the server's clock has passed | available | any client: each grant drops such lines |
//! | there is no item | all permits are available, if their number is known | any client that knows the number, by adding the item |
//!
//! **The record is replaced only by compare-and-set**, so that several permits are acquired all or
//! none, and no two clients acquire the same permit: the slower client's version is outdated. A
//! semaphore that one process uses at a time costs that process one round trip to acquire and one
//! to release, because the reply to each write includes the record as written. If other processes
//! have written in between, each costs two. None of this depends on the number of permits.
//!
//! **Ends are in the server's seconds**, which every read of the item returns (see `record`).
//! Clocks of different hosts are never compared: a holder counts its lease on its own boot clock
//! from before it requested the server's time, and stops relying on the lease before the server's
//! clock shows the end.
//!
//! **Lost replies.** The record is read back. Either it has a line with the token of the
//! acquisition; or it has another version, so that the lost request can no longer be executed; or
//! the same is written over the same version again, and only one of the two requests can succeed.
//! If the record cannot be read either, the outcome is unknown, and the permits are taken back at
//! the next contact.
//!
//! **Why not one item for each permit?** See DESIGN.md, which has measurements.
//!
//! **The order of waiters.** The queue beside the item works as that of the mutex, see
//! [`wait`](crate::wait), and so does the list of the waiters of one process. A release hands permits
//! off to waiters in that list. Waiters that request several permits, or have a priority, each have
//! their own entry in the queue. A release wakes as many of the first waiters as there is capacity
//! for. If the first waiter requests more permits than are available, no waiter after it is woken.
//! To keep new callers from taking the permits that it waits for, it writes a reservation into the
//! record, for five of the server's seconds, and renews it by its inspections.
//!
//! Shared semaphores on memcached by compare-and-set have been described many times; permits that
//! return when their holder dies, and waiters that do not spin, have not.

mod acquire;
mod attempt;
mod batch;
mod combine;
mod handle;
mod inspect;
mod lead;
mod manage;
mod member;
mod mismatch;
mod number;
mod operation;
mod permit;
mod reclaim;
pub(crate) mod record;
mod release;
mod renew;
mod resolve;
mod snapshot;
mod submit;
mod ticket;
mod wake;

pub use handle::Semaphore;
pub use manage::{Holder, Status};
pub use mismatch::Mismatch;
pub use permit::Permit;
