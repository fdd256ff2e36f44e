//! The signals that a thread blocks, which programs that it starts inherit.

use std::ptr::{null, null_mut};

/// The signals that a thread blocks.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

/// Restores the previous mask of the thread on drop.
pub(crate) struct MaskGuard {
    previous: Mask,
}

impl Mask {
    pub(crate) fn of_this_thread() -> Mask {
        // SAFETY: plain data, which is filled before it is read.
        unsafe {
            let mut mask = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, null(), &raw mut mask);
            Mask(mask)
        }
    }

    /// Sets the mask of the calling thread.
    pub(crate) fn apply(&self) -> MaskGuard {
        let previous = Mask::of_this_thread();
        self.set();
        MaskGuard { previous }
    }

    fn set(&self) {
        // SAFETY: a mask that this function returned.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, null_mut()) };
    }
}

impl Drop for MaskGuard {
    fn drop(&mut self) {
        self.previous.set();
    }
}
