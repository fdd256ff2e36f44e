//! Children that a test forks.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::launch::until;

/// A forked child. It ends without running anything of its parent's.
#[derive(Debug)]
pub struct Forked(libc::pid_t);

impl Forked {
    /// The child may fork as well. One that hangs is killed after so many seconds.
    pub fn start(seconds: u32, is_right: impl FnOnce() -> bool) -> Forked {
        // SAFETY: the child does what memlock promises that a child may do, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
        if child == 0 {
            // SAFETY: alarm has no preconditions.
            unsafe { libc::alarm(seconds) };
            let is_right = catch_unwind(AssertUnwindSafe(is_right)).unwrap_or(false);
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        Forked(child)
    }

    /// Waits for its end. Whether that was true in the child: a panic there, or a child that hangs,
    /// is no.
    pub fn was_right(self) -> bool {
        let mut status = 0;
        // SAFETY: the child is this process's own; `status` is a valid place for its status.
        let mut waited = || unsafe { libc::waitpid(self.0, &raw mut status, libc::WNOHANG) };
        until("the child has ended", || waited() == self.0);
        status == 0
    }
}

/// Whether this is true in a forked child.
pub fn in_a_child(is_right: impl FnOnce() -> bool) -> bool {
    Forked::start(50, is_right).was_right()
}
