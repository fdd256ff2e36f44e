//! Waking the next waiter, by the fastest way that reaches it.
//!
//! A waiter of this process is woken directly. A waiter elsewhere is sent a message. If the entry
//! of the waiter does not state that it is proven reachable, the target is reserved for it as well,
//! so that the waiter finds the reservation when it polls.

use std::time::Duration;

use super::entries::Entry;

use super::local::LocalWaiters;
use crate::mutation::{self, Mutation};
use crate::notify::{Successors, WakeMessage};
use crate::target::Target;
use crate::wait_id::WaitId;

/// The longest time a releaser takes to write the queue, except in an outage.
const WRITTEN: Duration = Duration::from_millis(50);
/// How many releases, and how long, a waiter without an address is passed over before the lock is
/// reserved for it. The waiter polls, and its death cannot be detected: reserving the lock for a
/// dead waiter costs more than some short holds.
const MOST_PASSES: u32 = 10;
const PATIENCE: Duration = Duration::from_millis(300);
/// The limit where nothing can be reserved. After that the entry is removed; the waiter notices
/// this, and joins in front.
const MOST_PASSES_SHARED: u32 = 20;

/// The result of waking a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The waiter was woken, or the target is reserved for it: its entry can be removed.
    Sent,
    /// The waiter is dead, or cannot be woken at all.
    Gone,
    /// Another client holds the target: the entry stays, and the next release deals with it.
    Unavailable,
}

/// How the queue wakes waiters.
pub(crate) trait Wake {
    /// Wakes a waiter.
    fn wake(&self, entry: &Entry<'_>, message: WakeMessage) -> Delivery;
    /// Deletes the reservation for one of these waiters, which have had their turn by now.
    fn withdraw(&self, ids: &[WaitId]);
    /// Whether earlier releasers may not have written the queue yet.
    fn is_early(&self) -> bool;
    /// Whether a waiter that may not receive the wake-up is passed over and stays in the queue.
    fn passes(&self, entry: &Entry<'_>) -> bool;
    /// The waiter that was woken ahead of the release.
    fn woken(&self) -> Option<WaitId>;
    /// Whether a wake-up is certain to reach this waiter.
    fn is_heard_by(&self, entry: &Entry<'_>) -> bool;
}

/// Reserves the target, which is free, for one waiter.
pub(crate) trait Reserve {
    /// Reserves the target for the waiter with this id. False when another client holds the target,
    /// or the server does not answer.
    fn reserve(&self, id: WaitId) -> bool;
    /// Deletes the reservation if it is for one of these waiters, which no longer wait.
    fn withdraw(&self, ids: &[WaitId]);
}

/// Wakes the waiters of an item.
pub(crate) struct Waker<'a, A, G> {
    pub(crate) target: &'a Target,
    pub(crate) local: &'a LocalWaiters<A, G>,
    /// The delay after which woken waiters try.
    pub(crate) after: Duration,
    /// How many of the following waiters a wake-up lists.
    pub(crate) named: usize,
    /// How long the target was held.
    pub(crate) held: Duration,
    /// The waiter that was woken ahead of the release.
    pub(crate) woken_ahead: Option<WaitId>,
    pub(crate) reserver: Option<Box<dyn Reserve + 'a>>,
}

impl<'a, A, G> Waker<'a, A, G> {
    /// A waker whose wake-ups have no delay and list up to [`Successors::MOST`] following waiters,
    /// and that cannot reserve the target.
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
            // A firewall may refuse messages, too, for example that of a host at the far end of a
            // tunnel. A refusal therefore proves a waiter dead only if it was reachable before.
            (Some(false), _) if entry.proven => Delivery::Gone,
            (Some(true), _) if entry.proven => Delivery::Sent,
            // The message was sent first: a waiter that sees the reservation and has not received
            // the message knows that the message was lost.
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
