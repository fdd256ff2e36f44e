//! The mutex: one item on the server, `lock:<name>`, whose value names its owner.
//!
//! | state of the item | meaning | what may change it, and how |
//! | --- | --- | --- |
//! | no item | the mutex is free | any client, by `Add` of a record with a fresh token |
//! | this acquisition's token, before its deadline | this acquisition holds the mutex | the holder, by `Delete` or `CompareAndSet` of the version that it knows |
//! | this acquisition's token, past its deadline | no holder; the server drops the item within 3 seconds | the last holder, as above: no other client can have held the mutex in between |
//! | a reservation for a waiter's id | no holder; the mutex is kept for that waiter, which may not have received its wake-up | that waiter, by `CompareAndSet` to its own record; any other waiter that has seen the reservation for 0.3 s, by `Delete`; the server, after 1 to 3 seconds |
//! | another token, or a plain client's value | another client holds the mutex | its owner; the server, when the TTL ends; an operator, by [`Mutex::force_unlock`] |
//!
//! The item alone decides. A deadline is counted on the holder's boot clock from before the request
//! was sent, so a holder stops relying on a lock before the server can grant it to another client.
//!
//! **Lost replies.** A request whose reply was lost may have been executed. The client then repeats
//! it on a fresh connection, with the same token, and reads the item back in the same packet: the
//! token shows whether this client holds the lock. The outcome is unknown only if this fails, too.
//! The grant is then remembered as orphaned, and removed as soon as the server answers again.
//! Another client may acquire the lock between two commands of such a packet: an item that was
//! missing when it was read, and that had changed a moment later, is read again before the lock is
//! considered lost.
//!
//! **Versions.** A version is valid only for the life of the server that issued it; the store
//! answers "version mismatch" to a version of another life. A version mismatch is never taken for a
//! loss: the item is read, and if it carries the holder's token (for example, because a waiter
//! appended a word to it), the step is repeated with the item's current version.
//!
//! The idea of `add` as a lock is Brad Fitzpatrick's answer to Kyle Burton on the memcached list in
//! 2004.

mod acquisition;
mod attempt;
mod hand_off;
mod handle;
mod lock;
mod release;
mod renew;
mod reserve;
mod resolve;
#[cfg(test)]
mod scripted;
mod step;
mod wake;

pub use handle::{Mutex, Owner};
pub use lock::Lock;
