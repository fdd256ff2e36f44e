//! One listener for many waiters, all of which one thread drives.
//!
//! A waiter that sleeps in a thread of its own has its own socket. A thread that drives thousands of
//! waiters has one for all: what arrives is sorted by the ids of the waiters.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::{HubId, Listener, WakeAddress, WakeMessage};
use crate::sync::{Mutex, MutexGuard};
use crate::wait_id::WaitId;

/// The listener of all waiters of one thread.
pub(crate) struct Hub {
    id: HubId,
    listener: Arc<dyn Listener>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Which waiter has an id.
    waiters: HashMap<WaitId, u64>,
    /// What has arrived, and was not read yet.
    messages: HashMap<WaitId, WakeMessage>,
    /// Waiters that are to take a turn.
    ready: Vec<u64>,
}

impl Hub {
    pub(crate) fn new(listener: Arc<dyn Listener>) -> Arc<Hub> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let id = HubId(LAST.fetch_add(1, Ordering::Relaxed));
        Arc::new(Hub { id, listener, state: Mutex::default() })
    }

    /// The listener of the waiter with this number.
    pub(crate) fn of_waiter(self: &Arc<Hub>, number: u64) -> Arc<dyn Listener> {
        Arc::new(OfWaiter { hub: Arc::clone(self), number })
    }

    /// Notes the ids of a waiter, in place of those that it had `before`.
    pub(crate) fn register(&self, number: u64, before: &[WaitId], ids: &[WaitId]) {
        let mut state = self.state();
        for id in before.iter().filter(|id| !ids.contains(id)) {
            // Another waiter may have taken it over.
            if state.waiters.get(id) == Some(&number) {
                state.waiters.remove(id);
                state.messages.remove(id);
            }
        }
        for &id in ids {
            state.waiters.insert(id, number);
        }
    }

    /// Sleeps for this long, or until a message arrives, a waiter is to take a turn, or
    /// [`Hub::interrupt`].
    pub(crate) fn sleep(&self, duration: Duration) {
        self.listener.sleep(duration);
    }

    /// Wakes the thread, or prevents its next sleep.
    pub(crate) fn interrupt(&self) {
        self.listener.interrupt();
    }

    /// Lets a waiter take a turn.
    pub(crate) fn wake(&self, number: u64) {
        self.state().ready.push(number);
        self.interrupt();
    }

    /// Reads what has arrived. Returns the waiters that are to take a turn.
    pub(crate) fn ready(&self) -> Vec<u64> {
        let mut state = self.state();
        let State { waiters, messages, ready } = &mut *state;
        while let Some((id, message)) = self.listener.receive(&|id| waiters.contains_key(&id)) {
            messages.insert(id, message);
            ready.extend(waiters.get(&id));
        }
        std::mem::take(ready)
    }

    fn heard(&self, live: &[WaitId]) -> Option<WakeMessage> {
        let mut state = self.state();
        let State { waiters, messages, ready } = &mut *state;
        if let Some(message) = live.iter().find_map(|id| messages.remove(id)) {
            return Some(message);
        }
        let is_known = |id| live.contains(&id) || waiters.contains_key(&id);
        while let Some((id, message)) = self.listener.receive(&is_known) {
            if live.contains(&id) {
                return Some(message);
            }
            messages.insert(id, message);
            ready.extend(waiters.get(&id));
        }
        None
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct OfWaiter {
    hub: Arc<Hub>,
    number: u64,
}

impl Listener for OfWaiter {
    fn address(&self, test: WaitId) -> Option<WakeAddress> {
        self.hub.listener.address(test)
    }

    fn sleep(&self, duration: Duration) {
        self.hub.sleep(duration);
    }

    fn receive(&self, is_live: &dyn Fn(WaitId) -> bool) -> Option<(WaitId, WakeMessage)> {
        self.hub.listener.receive(is_live)
    }

    fn heard(&self, live: &[WaitId]) -> Option<WakeMessage> {
        self.hub.heard(live)
    }

    fn interrupt(&self) {
        self.hub.wake(self.number);
    }

    fn shared(&self) -> Option<HubId> {
        Some(self.hub.id)
    }
}
