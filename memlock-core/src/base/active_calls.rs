//! Counts active calls, so that shutdown can wait for them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fork;

/// Counts the active calls of this process. It uses no mutex, so that a fork never inherits a
/// locked one. A child begins with no active calls, however many its parent had.
#[derive(Debug, Default)]
pub struct ActiveCalls {
    /// The count in the lower half, and above it the generation of the process that it belongs to.
    seen: AtomicU64,
}

const COUNT: u64 = 0xffff_ffff;

/// An active call, until it is dropped.
#[derive(Debug)]
pub struct ActiveCall<'a> {
    active_calls: &'a ActiveCalls,
}

impl ActiveCalls {
    /// No active calls.
    pub const fn new() -> ActiveCalls {
        ActiveCalls { seen: AtomicU64::new(0) }
    }

    /// Begins a call.
    pub fn enter(&self) -> ActiveCall<'_> {
        let process = stamp();
        let add = |seen| Some(if seen & !COUNT == process { seen + 1 } else { process + 1 });
        // This never fails.
        let _ = self.seen.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        ActiveCall { active_calls: self }
    }

    /// Whether any call is active.
    pub fn any(&self) -> bool {
        let seen = self.seen.load(Ordering::SeqCst);
        seen & !COUNT == stamp() && seen & COUNT != 0
    }
}

impl Drop for ActiveCall<'_> {
    fn drop(&mut self) {
        self.active_calls.seen.fetch_sub(1, Ordering::SeqCst);
    }
}

fn stamp() -> u64 {
    fork::generation() << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_left_is_not_inside() {
        let active_calls = ActiveCalls::new();
        assert!(!active_calls.any());
        let (one, two) = (active_calls.enter(), active_calls.enter());
        drop(one);
        assert!(active_calls.any());
        drop(two);
        assert!(!active_calls.any());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot fork")]
    fn in_a_child_no_thread_is_inside() {
        let active_calls = ActiveCalls::new();
        let entered = active_calls.enter();
        assert!(fork::in_a_child(|| {
            let before = active_calls.any();
            let childs = active_calls.enter();
            let meanwhile = active_calls.any();
            drop(childs);
            !before && meanwhile && !active_calls.any()
        }));
        assert!(active_calls.any());
        drop(entered);
        assert!(!active_calls.any());
    }
}
