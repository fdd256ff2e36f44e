//! The mutex: one item on the server, `lock:<name>`, whose value names its owner.
//!
//! | state of the item | what is true | what may change it, and how |
//! | --- | --- | --- |
//! | none | the mutex is free | any client, by `Add` of a record with a fresh token |
//! | our token, before our deadline | we hold it | we, by `Delete` or `CompareAndSet` of the version we know |
//! | our token, past our deadline | the mutex has no holder; the server drops the item within 3 seconds | we, as above: no other can have held it in between |
//! | a reservation for a waiter's id | the mutex has no holder; it is that waiter's turn, which may not have received its wake-up | that waiter, by `CompareAndSet` for a record of its own; any other that has seen it for 0.3 s, by `Delete`; the server, after 1 to 3 seconds |
//! | another token, or a plain client's value | another holds it | its owner; the server, when its TTL ends; an operator by [`Mutex::force_unlock`] |
//!
//! The item alone decides. The deadline is counted on our boot clock from before the request left,
//! so we stop relying on a lock before the server can grant it to another client.
//!
//! **Lost replies.** A request whose reply does not come may have been carried out. We then ask
//! again on a fresh connection, with the same token, and read the item back in the same packet: the
//! token says whether it is ours. Only if that fails too is the outcome unknown; the lock is then
//! remembered and removed as soon as the server answers again. Another client may take the lock
//! between two commands of such a packet: what was gone when it was read, and is changed a moment
//! later, is read again before it is called lost.
//!
//! **Versions.** A version is good only for the life of the server that gave it; the store answers
//! "version mismatch" to one of another life. "Version mismatch" is never taken for "lost": the
//! item is read, and if it carries our token (because a waiter appended to it, say) the step is
//! taken again with its present version.
//!
//! The idea of `add` as a lock is Brad Fitzpatrick's answer to Kyle Burton on the memcached list in
//! 2004.

mod attempt;
mod hand_off;
mod handle;
mod lock;
mod release;
mod renew;
mod reserve;
mod resolve;
mod wake;

pub use handle::{Mutex, Owner};
pub use lock::Lock;
