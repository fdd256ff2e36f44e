//! Thread cancellation: `pthread_cancel` does not act inside of a call, but after it.
//!
//! A cancelled thread is unwound, and Rust's frames must not be: there is a panic boundary in the
//! way, which ends the process, and a lock may have been granted that nobody would give back. So
//! every entry point disables cancellation for as long as it runs. A cancellation that comes
//! meanwhile stays pending, and acts at the caller's next cancellation point, when the caller has
//! the answer and the handle.
//!
//! That is so with the deferred cancel type. With the asynchronous one a thread is unwound at any
//! instruction, also at the first and the last ones of an entry point, where cancellation is not
//! disabled: POSIX allows such a thread next to no calls (XSH 2.9.5.4), and neither does memlock.
//!
//! Nothing can wake a wait for a cancellation that is only pending: glibc tells the thread of it at
//! a cancellation point and in no other way, and what acts there cannot be stopped. A program that
//! cancels threads ends their waits by `memlock_wait_cancel`.

use std::ffi::c_int;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of Linux, with glibc and with musl.
const DISABLE: c_int = 1;

/// From now on a cancellation of this thread stays pending. Gives what [`restore`] needs.
#[inline(always)]
pub(crate) fn disable() -> c_int {
    let mut before = DISABLE;
    // Miri does not know it.
    if !cfg!(miri) {
        // SAFETY: a state that there is, and a place for the one before.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    }
    before
}

/// Back to how it was before [`disable`].
#[inline(always)]
pub(crate) fn restore(before: c_int) {
    if before != DISABLE {
        // SAFETY: it was the thread's state before; this is no cancellation point.
        unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    }
}
