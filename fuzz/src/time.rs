//! Time that only goes on when it is asked for.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memlock_core::clock::{Clock, Moment};
use memlock_core::notify::{Listener, Notifier, Reach, WakeAddress, WakeMessage};
use memlock_core::wait_id::WaitId;

/// Time goes on by a step at each reading, and by sleeping.
#[derive(Debug)]
pub struct Time {
    micros: AtomicU64,
    step: u64,
    drawn: AtomicU64,
}

impl Time {
    pub fn new(step: Duration) -> Arc<Time> {
        let began = 1_000_000_000;
        Arc::new(Time { micros: began.into(), step: step.as_micros() as u64, drawn: 1.into() })
    }

    pub fn pass(&self, duration: Duration) {
        self.micros.fetch_add(duration.as_micros().min(1 << 50) as u64, Ordering::Relaxed);
    }
}

impl Clock for Time {
    fn now(&self) -> Moment {
        Moment::from_boot(Duration::from_micros(
            self.micros.fetch_add(self.step, Ordering::Relaxed),
        ))
    }

    fn unix_seconds(&self) -> u64 {
        1_795_170_000 + self.micros.load(Ordering::Relaxed) / 1_000_000
    }

    fn sleep(&self, duration: Duration) {
        self.pass(duration);
    }

    fn random(&self, bytes: &mut [u8]) -> std::io::Result<()> {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        for (place, byte) in bytes.iter_mut().zip(drawn.to_le_bytes().into_iter().cycle()) {
            *place = byte;
        }
        Ok(())
    }
}

/// A notifier without messages: a waiter sleeps until its own time.
pub struct UnreachableNotifier(pub Arc<Time>);

impl fmt::Debug for UnreachableNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SilentNotifier")
    }
}

impl Notifier for UnreachableNotifier {
    fn take(&self) -> Arc<dyn Listener> {
        Arc::new(UnreachableListener(Arc::clone(&self.0)))
    }

    fn send(&self, address: WakeAddress, _id: WaitId, _message: WakeMessage) -> bool {
        address.socket().port().is_multiple_of(2)
    }

    fn reach(&self) -> Reach {
        Reach::Proven
    }

    fn missed(&self) {}

    fn may_have_missed(&self) {}

    fn interrupt_all(&self) {}
}

struct UnreachableListener(Arc<Time>);

impl Listener for UnreachableListener {
    fn address(&self, _near: Option<IpAddr>, _test: WaitId) -> Option<WakeAddress> {
        WakeAddress::udp(([127, 0, 0, 1], 4000).into())
    }

    fn sleep(&self, duration: Duration) {
        self.0.pass(duration);
    }

    fn heard(&self, _live: &[WaitId]) -> Option<WakeMessage> {
        None
    }

    fn interrupt(&self) {}
}
