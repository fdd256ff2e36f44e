//! Children that a test forks.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::launch::until;

/// Whether this is true in a forked child: a panic there, or a child that hangs, is no. The child may
/// fork as well. It ends without running anything of its parent's.
pub fn in_a_child(is_right: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child does what memlock promises that a child may do, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: alarm has no preconditions. It kills a child that hangs.
        unsafe { libc::alarm(50) };
        let is_right = catch_unwind(AssertUnwindSafe(is_right)).unwrap_or(false);
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's own; `status` is a valid place for its status.
    let mut waited = || unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
    until("the child has ended", || waited() == child);
    status == 0
}
