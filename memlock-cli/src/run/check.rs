//! Asks the server while the command runs whether it still has the lock.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::held::Held;
use super::signals;

/// How often the server is asked whether it still has the lock: it may have lost it. The lease is
/// checked as often, because the kernel's timers stop while the machine is suspended, and leases do
/// not.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Asks the server again and again, until it has lost the lock or the command has ended.
pub(super) fn until_lost(held: &Held, is_over: &Receiver<()>) {
    while is_over.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        if held.is_found_lost() {
            return signals::wake();
        }
    }
}
