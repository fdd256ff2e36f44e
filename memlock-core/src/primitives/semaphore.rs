//! The semaphore: one item on the server, `semaphore:<name>`, with the number of permits and their
//! holders.
//!
//! | a permit | what is true | what may change it, and how |
//! | --- | --- | --- |
//! | in no holder's line | it is available | any client, by writing a line with a fresh token over the version that was read |
//! | in our line, before our deadline | we hold it | we, by writing the record without our line, or with a later end |
//! | in our line, past our deadline | it has no holder | we, as above, as long as the line is there |
//! | in a line whose end the server's clock has passed | it is available | any client: each write drops such lines |
//! | there is no item | all are available, if their number is known | any client that knows it, by adding the item |
//!
//! **The record is only ever replaced by compare-and-swap**, so that all or none of several permits
//! are taken, and no two clients take the same one: the other's version is no longer the one it
//! read. A semaphore that is used by one process at a time costs it one round trip to acquire and
//! one to release, because the reply to each write comes with what it became; where others have
//! written meanwhile, two each. None of that depends on how many permits there are.
//!
//! **Ends are in the server's seconds**, which come with every read of the item (see `record`).
//! Clocks of different hosts are never compared: a holder counts its lease on its own boot clock
//! from before it asked for the server's time, and stops relying on it before the server's clock
//! shows the end.
//!
//! **Lost replies.** The record is read back: it has a line with our token, or it has another
//! version, so that what we sent can never be carried out any more, or we write the same over the
//! same version again, of which only one can succeed. If nothing can be read either, the outcome is
//! unknown, and the permits are taken back at the next contact.
//!
//! **Why not an item for each permit?** See DESIGN.md: it was measured.
//!
//! **The order of waiters.** The queue beside the item is the mutex's, see [`wait`](crate::wait). A
//! release wakes as many of the first waiters as there is room for. If the first one wants more
//! than is available, no waiter behind it is woken; and so that newcomers do not take what it waits
//! for, it writes a reservation into the record: for five of the server's seconds, and again with
//! each of its inspections.
//!
//! Shared semaphores on memcached by compare-and-swap have been described many times; permits that
//! come back when their holder dies, and waiters that do not spin, have not.

mod acquire;
mod attempt;
mod batch;
mod combine;
mod handle;
mod inspect;
mod lead;
mod leave;
mod leaving;
mod manage;
mod member;
mod operation;
mod permit;
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
pub use permit::Permit;
