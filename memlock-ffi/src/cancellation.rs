//! Thread cancellation: `pthread_cancel` acts after a call of memlock, never inside it.
//!
//! A cancelled thread is unwound, and Rust frames must not be: the unwinding would hit the panic
//! boundary, which aborts the process, and a lock that was already granted would never be released.
//! Therefore every entry point disables cancellation while it runs. A cancellation that arrives
//! meanwhile stays pending, and acts at the caller's next cancellation point, when the caller has
//! the answer and the handle.
//!
//! This holds for the deferred cancel type. With the asynchronous type a thread is unwound at any
//! instruction, including the first and the last ones of an entry point, where cancellation is not
//! disabled. POSIX allows such a thread to call almost no function (XSH 2.9.5.4), and memlock does
//! not support it either.
//!
//! A wait cannot be woken for a pending cancellation: glibc reports it to the thread only at a
//! cancellation point, and a cancellation that acts there cannot be stopped. A program that cancels
//! threads ends their waits by `memlock_wait_cancel`.

use std::ffi::c_int;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` on Linux, with glibc and with musl.
const DISABLE: c_int = 1;

/// Makes a cancellation of this thread stay pending. Returns the previous state, for [`restore`].
#[inline(always)]
pub(crate) fn disable() -> c_int {
    let mut before = DISABLE;
    // Miri does not support this function.
    if !cfg!(miri) {
        // SAFETY: a valid state, and a valid pointer for the previous one.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    }
    before
}

/// Restores the state before [`disable`].
#[inline(always)]
pub(crate) fn restore(before: c_int) {
    if before != DISABLE {
        // SAFETY: a state that this function returned; the function is not a cancellation point.
        unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    }
}
