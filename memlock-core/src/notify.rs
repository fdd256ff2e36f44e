//! Wake-up messages: how one process wakes a waiter in another, by one datagram.
//!
//! A releaser wakes the next waiter. A wake-up is a hint: the waiter tries for
//! itself, and waits on if it was woken in vain; and a wake-up that is lost costs time and nothing
//! else. `udp` has the real ones; what stands here is all that the rest knows of them, so that a
//! simulation can have its own.

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
    /// A listener that is not in use, for one waiter whose server is near this address of ours.
    fn take(&self, near: Option<IpAddr>) -> Arc<dyn Listener>;

    /// Wakes a waiter: one datagram, that may get lost. False when it is known that the listener
    /// does not exist any more, so that no waiter received it: the waiter's process is dead.
    fn send(&self, address: WakeAddress, id: WaitId, message: WakeMessage) -> bool;

    /// Whether wake-up messages reach this process.
    fn reach(&self) -> Reach;

    /// Notes that a message was sent to this process and did not arrive in time.
    fn missed(&self);

    /// Notes that this may be so: the message may have been on its way when it was not needed any
    /// more.
    fn may_have_missed(&self);

    /// Wakes all sleeping waiters. A signal handler may call it.
    fn interrupt_all(&self);
}

/// A listener in use by one waiter.
pub trait Listener: Send + Sync {
    /// Where it can be woken, if it can. `test`: an id by which it may wake itself, to hear whether
    /// it can be heard.
    fn address(&self, test: WaitId) -> Option<WakeAddress>;

    /// Sleeps for so long, or until a message arrives or the listener is interrupted.
    fn sleep(&self, duration: Duration);

    /// The message that was sent to one of the ids `live`, if any. Earlier messages are dropped.
    fn heard(&self, live: &[WaitId]) -> Option<WakeMessage>;

    /// Wakes the sleeper, or lets it not fall asleep the next time.
    fn interrupt(&self);
}
