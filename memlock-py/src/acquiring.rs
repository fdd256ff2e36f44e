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

use std::time::Duration;

use memlock_core::active_calls::{ActiveCall, ActiveCalls};

static ACTIVE: ActiveCalls = ActiveCalls::new();

/// How long an exit waits at most until all acquisitions have ended: they do when a server has
/// answered, and one that does not answer delays the exit by this.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// How long a thread that the exit has interrupted leaves the GIL alone. By then the exit has lost
/// its patience, the interpreter is usually finalizing, and the thread ends in silence, as daemon
/// threads do. If not, some exit handler may be waiting for this thread: so the call returns after
/// all, with an exception.
pub(crate) const SILENCE: Duration = PATIENCE.saturating_mul(2);

/// Whether any thread is acquiring.
pub(crate) fn any() -> bool {
    ACTIVE.any()
}

/// The thread counts as acquiring until it drops this: unless the interpreter exits, with the GIL.
pub(crate) fn enter() -> ActiveCall<'static> {
    ACTIVE.enter()
}
