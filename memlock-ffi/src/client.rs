//! The client handle, and the choice of the default client.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU64, Ordering};

use memlock_core::{Answer, Client, bare};

use crate::boundary::{enter, give, lent, put, quietly, take_back, url};

/// The way to one set of locks. It may be used from any number of threads at once, and in forked
/// children.
pub struct memlock_client {
    pub(crate) core: Client,
    /// Tells it from every other client of this process, closed ones too.
    pub(crate) number: u64,
}

impl memlock_client {
    fn new(core: Client) -> memlock_client {
        static LAST: AtomicU64 = AtomicU64::new(0);
        memlock_client { core, number: LAST.fetch_add(1, Ordering::Relaxed) }
    }
}

/// Chooses the default client of the bare functions, once, before the first of them is called.
/// Nothing is dialled. Answers MEMLOCK_OK, MEMLOCK_INVALID, or MEMLOCK_CONFIG for a bad URL or when
/// there is a default client already.
///
/// # Safety
/// `url` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_init(url: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| bare::init(unsafe { self::url(url) }?).map(|()| Answer::Ok))
}

/// Opens a client:
/// memcached://host[:port][,host2...]?prefix=&connect_timeout=&io_timeout=&pool=&outage=&notify=, or
/// memory://name for locks within this process. Nothing is dialled until the first call that needs
/// a server.
///
/// `bell` is the address at which whoever unlocks, on another host too, wakes the next waiter of
/// this process with one UDP datagram: notify=address, notify=address:port or notify=address:first-last,
/// with [...] around an IPv6 address. Give as many ports as there are locks for which this process
/// waits at one time. Without `bell` it is our end of the connection to the server, and any free
/// port. With notify=off nobody can wake us: then waiters ask the server: the next one 10 to 250
/// milliseconds after its last question, others up to every 0.7 seconds.
///
/// Answers MEMLOCK_OK, MEMLOCK_INVALID, or MEMLOCK_CONFIG with the known schemes or parameters in
/// the last error. On failure *client is NULL.
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

/// Closes a client. Locks, semaphores, permits and lists made from it go on working. NULL is
/// allowed.
///
/// # Safety
/// `client` is NULL or came from memlock_client_open() and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_client_close(client: *mut memlock_client) {
    // SAFETY: the caller's promise.
    quietly(|| drop(unsafe { take_back(client) }));
}

/// Ends every wait that is going on in this client, in whichever thread: each is woken at once,
/// answers MEMLOCK_INTERRUPTED, and leaves neither a lock or permit nor a place in the queue
/// behind. Waits that begin later are not touched; memlock_wait_cancel() ends one wait alone,
/// whether it has begun or not. NULL means the default client.
///
/// Answers MEMLOCK_OK; for NULL also MEMLOCK_CONFIG, when the default client cannot be made. No
/// I/O. May be called from any thread and, for a client of memlock_client_open(), from a signal
/// handler.
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
