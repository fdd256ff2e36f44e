//! Acquisitions, and the interpreter's exit.
//!
//! A thread that gets a lock while the interpreter exits cannot take the GIL again: it stays blocked
//! until the process ends, and the lock stays held for its lease. So from the moment at which the
//! exit begins, such a thread acquires nothing:
//!
//! | the exit begins | what the thread does |
//! | --- | --- |
//! | before the call | sends nothing |
//! | during the wait | ends the wait, and removes its entry from the queue |
//! | while the grant is on its way | releases what it was granted |
//! | afterwards, before the thread has the GIL | takes the GIL: the exit waits until no acquisition is in progress |

use std::thread;
use std::time::Duration;

use memlock_core::active_calls::{ActiveCall, ActiveCalls};

use crate::shutdown;

static ACTIVE: ActiveCalls = ActiveCalls::new();

/// How long an exit waits at most until all acquisitions have ended: they do when a server has
/// answered, and one that does not answer delays the exit by this.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// How long a thread that the exit has interrupted leaves the GIL alone. By then the exit has lost
/// its patience, the interpreter is usually finalizing, and the thread ends in silence, as daemon
/// threads do. If not, some exit handler may be waiting for this thread: so the call returns after
/// all, with an exception.
const SILENCE: Duration = PATIENCE.saturating_mul(2);

/// Whether any thread is acquiring.
pub(crate) fn any() -> bool {
    ACTIVE.any()
}

/// Runs an acquisition, without the GIL. Returns `None` when the interpreter exits: what was
/// acquired is dropped, which must release it. Otherwise the thread counts as acquiring until it
/// drops the second value, with the GIL.
pub(crate) fn unless_exiting<T>(body: impl FnOnce() -> T) -> Option<(T, ActiveCall<'static>)> {
    // Either the exit sees that this call is active, or this call sees that the exit has begun.
    let active = ACTIVE.enter();
    if !shutdown::abandons_this_thread() {
        let acquired = body();
        if !shutdown::abandons_this_thread() {
            return Some((acquired, active));
        }
        drop(acquired);
    }
    drop(active);
    thread::sleep(SILENCE);
    None
}
