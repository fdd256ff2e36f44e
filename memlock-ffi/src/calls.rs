//! The calls that were started with one client, and which of them have ended.

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use memlock_core::fork::ForkLocal;
use memlock_core::{Client, Completions, Result};

/// The calls that were started with one client, in each process its own.
pub(crate) struct Calls {
    client: Client,
    local: ForkLocal<Local>,
}

struct Local {
    completions: Arc<Completions>,
    open: Mutex<Open>,
}

/// The calls whose handles were not closed.
#[derive(Default)]
struct Open {
    handles: HashMap<u64, Handle>,
    last_number: u64,
}

/// The handle of a call, as C has it, and how the call is cancelled by it.
#[derive(Clone, Copy)]
pub(crate) struct Handle {
    pub(crate) pointer: *mut c_void,
    pub(crate) cancel: unsafe fn(*mut c_void),
}

// SAFETY: the header documents which threads may use a handle; any may cancel it.
unsafe impl Send for Handle {}

impl Calls {
    pub(crate) fn new(client: Client) -> Calls {
        Calls { client, local: ForkLocal::new() }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// # Errors
    /// If no descriptor can be opened.
    fn local(&self) -> Result<&Local> {
        self.local.get_or_try_init(|| {
            Ok(Local { completions: Completions::new()?, open: Mutex::default() })
        })
    }

    /// Makes what the other functions need.
    ///
    /// # Errors
    /// If no descriptor can be opened.
    pub(crate) fn prepare(&self) -> Result<()> {
        self.local().map(|_| ())
    }

    /// Adds a call. `make` is given its number, and what is to be woken when it has ended. The call
    /// is not handed out before `make` has returned.
    ///
    /// # Errors
    /// If no descriptor can be opened.
    pub(crate) fn add(&self, make: impl FnOnce(u64, Waker) -> Handle) -> Result<()> {
        let local = self.local()?;
        let mut open = local.open();
        open.last_number += 1;
        let number = open.last_number;
        let handle = make(number, local.completions.waker(number));
        open.handles.insert(number, handle);
        Ok(())
    }

    /// Removes a call before its handle is freed: it is not handed out any more.
    pub(crate) fn remove(&self, number: u64) {
        if let Some(local) = self.local.existing() {
            local.open().handles.remove(&number);
            local.completions.forget(number);
        }
    }

    /// Cancels all of them.
    pub(crate) fn cancel_all(&self) {
        let Some(local) = self.local.existing() else { return };
        for handle in local.open().handles.values() {
            // SAFETY: a handle is removed, for which the lock that is held here is needed, before it is
            // freed.
            unsafe { (handle.cancel)(handle.pointer) };
        }
    }

    /// Readable while there is a call that has ended and was not handed out.
    ///
    /// # Errors
    /// If no descriptor can be opened.
    pub(crate) fn descriptor(&self) -> Result<RawFd> {
        Ok(self.local()?.completions.descriptor())
    }

    /// The next call that has ended and was not handed out.
    pub(crate) fn next_ended(&self) -> Option<*mut c_void> {
        let local = self.local.existing()?;
        let open = local.open();
        // One that has ended while it was closed is not there any more.
        while let Some(number) = local.completions.take_next() {
            if let Some(handle) = open.handles.get(&number) {
                return Some(handle.pointer);
            }
        }
        None
    }
}

impl Local {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
