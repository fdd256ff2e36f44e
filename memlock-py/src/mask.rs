//! Which signals a thread blocks. The programs that it starts block them, too.

use std::ptr::{null, null_mut};

/// The signals that a thread blocks.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

/// As long as this is there, its thread has another mask.
pub(crate) struct Lent {
    before: Mask,
}

impl Mask {
    pub(crate) fn of_this_thread() -> Mask {
        // SAFETY: plain memory, which is filled before it is read.
        unsafe {
            let mut mask = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, null(), &raw mut mask);
            Mask(mask)
        }
    }

    /// Gives it to this thread.
    pub(crate) fn lend(&self) -> Lent {
        let before = Mask::of_this_thread();
        self.set();
        Lent { before }
    }

    fn set(&self) {
        // SAFETY: it came from there.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, null_mut()) };
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.before.set();
    }
}
