//! What an event loop watches: a descriptor, and the calls that have ended.

use std::ffi::c_int;

use super::call::memlock_pending;
use crate::boundary::{enter_value, lent, quietly};
use crate::client::memlock_client;

/// A descriptor for an event loop (poll, epoll, libevent, libuv, GLib). It is readable while calls
/// that were started with this client, or with its semaphores, locks and permits, have ended and
/// were not handed out yet by memlock_client_next_ended(); and now and then though there are none:
/// call that function all the same, which ends it. Watch the descriptor for reading,
/// level-triggered; neither read nor close it. It stays the same, and is valid until
/// memlock_client_close().
///
/// A child made by fork must not watch the descriptor of its parent: this function returns another
/// one there, which concerns the child's calls only.
///
/// **Returns a descriptor, not an answer**: 0 or above; or -1 for NULL, and when no descriptor can
/// be opened: memlock_last_error() then says why. No I/O. Thread-safe.
///
/// # Safety
/// `client` is NULL or an open client.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_client_event_fd(client: *const memlock_client) -> c_int {
    // SAFETY: the caller's promise.
    enter_value(-1, || unsafe { lent(client, "client") }?.calls.descriptor())
}

/// Hands out the next call that has ended, each call once, in the order of their ends; NULL when
/// there is none, and for NULL. The descriptor of memlock_client_event_fd() is readable until the
/// last one was handed out. The call must still be closed, by memlock_pending_close(). Never
/// blocks. Thread-safe, but a thread must not close a call that is being handed out to another one:
/// let one thread hand out and close the calls of a client, and cancel them from the others.
///
/// # Safety
/// `client` is NULL or an open client.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_client_next_ended(
    client: *const memlock_client,
) -> *mut memlock_pending {
    let mut ended = std::ptr::null_mut();
    quietly(|| {
        // SAFETY: the caller's promise.
        let client = unsafe { client.as_ref() };
        ended =
            client.and_then(|client| client.calls.next_ended()).map_or(ended, |call| call.cast());
    });
    ended
}
