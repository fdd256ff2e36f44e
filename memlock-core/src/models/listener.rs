//! A listener without a clock.

use std::time::Duration;

use shuttle::sync::{Condvar, Mutex};

use crate::notify::{Listener, WakeAddress, WakeMessage};
use crate::wait_id::WaitId;

/// A listener that sleeps until it is interrupted or woken.
pub(super) struct FakeListener {
    number: u16,
    heard: Mutex<Heard>,
    wake: Condvar,
}

#[derive(Default)]
struct Heard {
    interrupt: bool,
    wakes: Vec<WaitId>,
}

impl FakeListener {
    pub(super) fn new(number: u16) -> FakeListener {
        FakeListener { number, heard: Mutex::default(), wake: Condvar::new() }
    }

    /// A wake-up from outside the process, as by a datagram.
    pub(super) fn wake(&self, id: WaitId) {
        self.heard.lock().unwrap().wakes.push(id);
        self.wake.notify_one();
    }
}

impl Listener for FakeListener {
    fn address(&self, _test: WaitId) -> Option<WakeAddress> {
        // No port is 0.
        WakeAddress::udp(([127, 0, 0, 1], 1 + self.number).into())
    }

    fn sleep(&self, _duration: Duration) {
        let mut heard = self.heard.lock().unwrap();
        while heard.wakes.is_empty() && !std::mem::take(&mut heard.interrupt) {
            heard = self.wake.wait(heard).unwrap();
        }
    }

    fn receive(&self, is_live: &dyn Fn(WaitId) -> bool) -> Option<(WaitId, WakeMessage)> {
        let woken = self.heard.lock().unwrap().wakes.drain(..).find(|&id| is_live(id));
        woken.map(|id| (id, WakeMessage::default()))
    }

    fn interrupt(&self) {
        self.heard.lock().unwrap().interrupt = true;
        self.wake.notify_one();
    }
}
