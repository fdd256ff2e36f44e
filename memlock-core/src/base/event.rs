//! An event: a descriptor that is readable once it was signalled, until it is reset.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An `eventfd`.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    pub(crate) fn open() -> io::Result<Event> {
        // SAFETY: eventfd returns a descriptor that nothing else owns, or -1.
        unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if fd >= 0 {
                Ok(Event(OwnedFd::from_raw_fd(fd)))
            } else {
                Err(io::Error::last_os_error())
            }
        }
    }

    /// To be polled for reading, and for nothing else.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// May be called from a signal handler.
    pub(crate) fn signal(&self) {
        let one = 1_u64;
        // SAFETY: eight readable bytes are given for eight bytes; errno is restored, as a signal
        // handler must.
        unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            libc::write(self.descriptor(), (&raw const one).cast(), size_of::<u64>());
            *errno = before;
        }
    }

    pub(crate) fn reset(&self) {
        let mut count = 0_u64;
        // SAFETY: eight writable bytes are given for eight bytes.
        unsafe { libc::read(self.descriptor(), (&raw mut count).cast(), size_of::<u64>()) };
    }
}
