//! Wake-up messages between processes: one process wakes a waiter in another by one datagram.
//!
//! A releaser wakes the next waiter. A wake-up is a hint: the woken waiter tries to acquire the
//! target, and continues to wait if it was woken in vain. A lost wake-up costs time and nothing
//! else. `udp` sends real datagrams. The rest of the crate uses only the traits in this file, so
//! that a simulation can provide its own implementation.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::wait_id::WaitId;

mod address;
mod message;
mod reach;
mod setting;
pub(crate) mod udp;

pub use address::WakeAddress;
pub use message::{Successors, WakeMessage};
pub use reach::{Reach, ReachRecord};
pub(crate) use setting::NotifySetting;

/// The listeners of one client.
pub trait Notifier: Send + Sync + fmt::Debug {
    /// Takes a listener that is not in use, for one waiter.
    fn take(&self) -> Arc<dyn Listener>;

    /// Wakes a waiter by one datagram, which may be lost. False if the listener is known not to
    /// exist any more, so that no waiter received the datagram: the waiter's process is dead.
    fn send(&self, address: WakeAddress, id: WaitId, message: WakeMessage) -> bool;

    /// Whether wake-up messages reach this process.
    fn reach(&self) -> Reach;

    /// Records that a message to this process did not arrive in time.
    fn missed(&self);

    /// Records that a message may have been missed: it may have been under way when it was no
    /// longer needed.
    fn may_have_missed(&self);

    /// Wakes all sleeping waiters. A signal handler may call it.
    fn interrupt_all(&self);

    /// The client was closed, and all waiters were interrupted: closes each listener as soon as no
    /// waiter uses it.
    fn close(&self) {}
}

/// A listener in use by one waiter.
pub trait Listener: Send + Sync {
    /// The address at which the waiter can be woken, if any. Only from now on does the listener
    /// receive messages, and need descriptors. `near`: this host's address on the side of the
    /// waiter's server. `test`: an id under which the listener may send a message to itself, to test
    /// whether it receives messages.
    fn address(&self, near: Option<IpAddr>, test: WaitId) -> Option<WakeAddress>;

    /// Sleeps for this long, or until a message arrives or the listener is interrupted. A signal may
    /// end the sleep early.
    fn sleep(&self, duration: Duration);

    /// The message that was sent to one of the ids `live`, if any. Earlier messages are dropped.
    fn heard(&self, live: &[WaitId]) -> Option<WakeMessage>;

    /// Wakes the sleeper, or prevents its next sleep.
    fn interrupt(&self);
}
