//! The client handle, and the configuration of the default client.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU64, Ordering};

use memlock_core::{Answer, Client, bare};

use crate::boundary::{enter, give, lent, put, quietly, take_back, url};

/// A client of one memcached server, a group of servers, or a file. All functions may use it from
/// any number of threads at once, and in forked children.
pub struct memlock_client {
    pub(crate) core: Client,
    /// Distinguishes it from every other client of this process, including closed ones.
    pub(crate) number: u64,
}

impl memlock_client {
    fn new(core: Client) -> memlock_client {
        static LAST: AtomicU64 = AtomicU64::new(0);
        memlock_client { core, number: LAST.fetch_add(1, Ordering::Relaxed) }
    }
}

/// Sets the URL of the default client, which the bare functions use. Call it once, before the first
/// of them. Opens no connection. Returns MEMLOCK_OK, MEMLOCK_INVALID, or MEMLOCK_CONFIG for an
/// invalid URL or when there is already a default client. Thread-safe.
///
/// # Safety
/// `url` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_init(url: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| bare::init(unsafe { self::url(url) }?).map(|()| Answer::Ok))
}

/// Opens a client:
/// memcached://host[:port][,host2...]?prefix=&connect_timeout=&io_timeout=&pool=&outage=&notify=,
/// sqlite:///path or sqlite:path for locks in a file, among the programs of one host and without a
/// server; or memory://name for locks within this process. No connection is opened before the first
/// call that needs a server.
///
/// `notify` is the address at which other processes, also on other hosts, wake the next waiter of
/// this process when they unlock. A wake-up is one UDP datagram. Write notify=address,
/// notify=address:port or notify=address:first-last, with [...] around an IPv6 address. Provide
/// twice as many ports as there are locks and semaphores for which this process waits at the same
/// time. The default is the local address of the connection to the server, and any free port. With
/// notify=off no wake-ups are received, and waiters poll the server instead: the first waiter at
/// intervals that grow from 10 to 250 milliseconds, the others at intervals of up to 0.7 seconds.
/// `bell` is an alias of `notify`.
///
/// Returns MEMLOCK_OK, MEMLOCK_INVALID, or MEMLOCK_CONFIG; the last error then lists the known
/// schemes or parameters. On failure *client is NULL. Thread-safe.
///
/// # Safety
/// `url` is NULL or a NUL-terminated string; `client` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_client_open(
    url: *const c_char,
    client: *mut *mut memlock_client,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { put(client, std::ptr::null_mut(), "client") }?;
        // SAFETY: the caller's promise.
        let opened = Client::connect(unsafe { self::url(url) }?)?;
        // SAFETY: the caller's promise.
        unsafe { put(client, give(memlock_client::new(opened)), "client") }?;
        Ok(Answer::Ok)
    })
}

/// Closes a client. Locks, semaphores, permits and lists that were made from the client stay
/// usable. NULL is allowed.
///
/// # Safety
/// `client` is NULL or came from memlock_client_open(), and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_client_close(client: *mut memlock_client) {
    // SAFETY: the caller's promise.
    quietly(|| drop(unsafe { take_back(client) }));
}

/// Ends all waits of this client that are in progress, in all threads. Each waiter is woken at
/// once, returns MEMLOCK_INTERRUPTED, and leaves no lock, no permit and no queue entry behind.
/// Waits that begin later are not affected. memlock_wait_cancel() ends a single wait, whether it
/// has begun or not. NULL means the default client.
///
/// Returns MEMLOCK_OK; for NULL also MEMLOCK_CONFIG, when the default client cannot be made. No
/// I/O. Thread-safe and, for a client of memlock_client_open(), async-signal-safe.
///
/// # Safety
/// `client` is NULL or an open client.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_client_cancel_waits(
    client: *const memlock_client,
) -> c_int {
    enter(|| {
        if client.is_null() {
            bare::default_client()?.cancel_waits();
        } else {
            // SAFETY: the caller's promise.
            unsafe { lent(client, "client") }?.core.cancel_waits();
        }
        Ok(Answer::Ok)
    })
}
