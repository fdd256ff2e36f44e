//! Waking the next waiter, by whatever reaches it.
//!
//! A waiter of this process is woken directly. One elsewhere is sent a message; if its line does
//! not say that it is proven reachable, what it waits for is reserved for it as well, so that it
//! finds it when it looks.

use std::time::Duration;

use super::entries::Entry;

use super::local::LocalWaiters;
use crate::fork;
use crate::mutation::{self, Mutation};
use crate::notify::{Successors, WakeMessage};
use crate::target::Target;
use crate::wait_id::WaitId;

/// A releaser takes no longer than this to write the queue, but for an outage.
const WRITTEN: Duration = Duration::from_millis(50);
/// For how many releases, and for how long, a waiter without an address is passed over before the
/// lock is reserved for it: it looks by itself, and nothing tells whether it is dead, for which to
/// wait costs more than some short holds.
const MOST_PASSES: u32 = 10;
const PATIENCE: Duration = Duration::from_millis(300);
/// The same where nothing can be reserved. Then it is removed; it notices that, and joins in front.
const MOST_PASSES_SHARED: u32 = 20;

/// What became of waking a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It was woken, or its turn is reserved for it: its entry can be removed.
    Sent,
    /// It is dead, or cannot be woken at all.
    Gone,
    /// Another client holds the target: its entry stays, and the next release deals with it.
    Unavailable,
}

/// How waiters are woken, as the queue knows it.
pub(crate) trait Wake {
    /// Wakes a waiter.
    fn wake(&self, entry: &Entry<'_>, message: WakeMessage) -> Delivery;
    /// Takes back what was reserved for waiters that have had their turn by now.
    fn withdraw(&self, ids: &[WaitId]);
    /// Whether releasers before us may not have written the queue yet.
    fn is_early(&self) -> bool;
    /// Whether a waiter that may not receive the wake-up stays in the queue for now.
    fn passes(&self, entry: &Entry<'_>) -> bool;
    /// The waiter that was woken before, ahead of the release.
    fn woken(&self) -> Option<WaitId>;
    /// Whether it is certain to hear that.
    fn is_heard_by(&self, entry: &Entry<'_>) -> bool;
}

/// Keeps what is waited for, which is free, for one waiter.
pub(crate) trait Reserve {
    /// Reserves it for the waiter of this id. False when another client holds it, or the server
    /// does not answer.
    fn reserve(&self, id: WaitId) -> bool;
    /// Frees it if it is reserved for one of these, which do not wait any more.
    fn withdraw(&self, ids: &[WaitId]);
}

/// Wakes the waiters of an item.
pub(crate) struct Waker<'a, A, G> {
    pub(crate) target: &'a Target,
    pub(crate) local: &'a LocalWaiters<A, G>,
    /// When they are to come.
    pub(crate) after: Duration,
    /// How many of the waiters behind it a wake-up names.
    pub(crate) named: usize,
    /// For how long it was held.
    pub(crate) held: Duration,
    /// The waiter that was woken before.
    pub(crate) woken_ahead: Option<WaitId>,
    pub(crate) reserver: Option<Box<dyn Reserve + 'a>>,
}

impl<'a, A, G> Waker<'a, A, G> {
    /// They are to try at once, their wake-ups name all waiters behind them, and nothing can be
    /// reserved for them.
    pub(crate) fn new(target: &'a Target, local: &'a LocalWaiters<A, G>) -> Self {
        Waker {
            target,
            local,
            after: Duration::ZERO,
            named: Successors::MOST,
            held: Duration::ZERO,
            woken_ahead: None,
            reserver: None,
        }
    }
}

impl<A: Copy, G> Wake for Waker<'_, A, G> {
    fn wake(&self, entry: &Entry<'_>, message: WakeMessage) -> Delivery {
        // A child that a callback forked in the middle of the call wakes no waiter in its parent's
        // name.
        if fork::is_astray() {
            return Delivery::Unavailable;
        }
        let trusted = self.woken_ahead.is_some() && mutation::has(Mutation::TrustTheEarlyWake);
        if self.woken_ahead == Some(entry.id)
            || trusted
            || self.local.wake(&self.target.key, entry.id, message.after)
        {
            return Delivery::Sent;
        }
        let after = if entry.proven { self.after.max(message.after) } else { message.after };
        let message = WakeMessage { after, successors: message.successors.first(self.named) };
        let sent = |address| self.target.context.notifier().send(address, entry.id, message);
        match (entry.address.map(sent), &self.reserver) {
            // A firewall may refuse messages, too, as that of a host does to which a tunnel leads:
            // so only of a waiter that was reached before it means that it is dead.
            (Some(false), _) if entry.proven => Delivery::Gone,
            (Some(true), _) if entry.proven => Delivery::Sent,
            // The message went first: a waiter that sees the reservation and has not heard it knows
            // that it was missed.
            (_, Some(reserver)) if reserver.reserve(entry.id) => Delivery::Sent,
            (_, Some(_)) => Delivery::Unavailable,
            (Some(true), None) => Delivery::Sent,
            (Some(false) | None, None) => Delivery::Gone,
        }
    }

    fn withdraw(&self, ids: &[WaitId]) {
        if let Some(reserver) = &self.reserver {
            reserver.withdraw(ids);
        }
    }

    fn is_early(&self) -> bool {
        self.held < WRITTEN
    }

    fn passes(&self, entry: &Entry<'_>) -> bool {
        let passed = entry.passed;
        match (&self.reserver, entry.address) {
            (Some(_), Some(_)) => false,
            (Some(_), None) => passed < MOST_PASSES && self.held * (passed + 1) < PATIENCE,
            (None, _) => passed < MOST_PASSES_SHARED,
        }
    }

    fn woken(&self) -> Option<WaitId> {
        self.woken_ahead
    }

    fn is_heard_by(&self, entry: &Entry<'_>) -> bool {
        entry.proven || self.local.has(&self.target.key, entry.id)
    }
}
