//! Thread cancellation: `pthread_cancel` does not act inside of a call, but after it.
//!
//! A cancelled thread is unwound, and Rust's frames must not be: there is a panic boundary in the
//! way, which ends the process, and a lock may have been granted that nobody would give back. So
//! every entry point disables cancellation for as long as it runs. A cancellation that comes
//! meanwhile stays pending:
//!
//! | cancel type of the thread | when it acts | why that is safe |
//! | --- | --- | --- |
//! | deferred | at the caller's next cancellation point | the caller has the answer, and the handle |
//! | asynchronous | in [`restore`], which is the entry point's last step | nothing of Rust's is left on the stack: all that the call had is dropped, and its results are written |
//!
//! Nothing can wake a wait for a cancellation that is only pending: glibc tells the thread of it at
//! a cancellation point and in no other way, and what acts there cannot be stopped. A program that cancels
//! threads ends their waits by `memlock_wait_cancel`.

use std::ffi::c_int;

unsafe extern "C-unwind" {
    // Not as the crate `libc` would declare it: a thread of asynchronous cancel type is unwound
    // from within.
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

/// Back to how it was before [`disable`]. The caller, and whatever calls that from C, must have
/// nothing left to drop.
#[inline(always)]
pub(crate) fn restore(before: c_int) {
    if before != DISABLE {
        // SAFETY: it was the thread's state before. If the thread is unwound here, only frames
        // without anything to drop are left between this and C.
        unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    }
}
