//! Descriptors that the program may close.
//!
//! A daemon closes all descriptors that it did not open itself, those of memlock among them, and
//! their numbers are soon those of its own files. What a number refers to is therefore compared with
//! what was opened, before a descriptor is used again after a pause, and before it is closed. The
//! comparison is one system call, and changes nothing.

use std::io::{Error, Result};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Deref;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Identifies a file, a pipe or a socket for as long as it exists. All descriptors without an inode
/// of their own (`eventfd`, `epoll`, timers) have the same one, so memlock keeps none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) device: u64,
    pub(crate) number: u64,
}

impl Inode {
    /// What the descriptor refers to; an error if it is closed.
    ///
    /// `fstat` is safe in signal handlers.
    pub(crate) fn of(descriptor: RawFd) -> Result<Inode> {
        if cfg!(miri) {
            // Miri knows the inodes of files only.
            return Ok(Inode { device: 0, number: descriptor as u64 });
        }
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `stat` is writable, and filled in if the call succeeds.
        let stat = unsafe {
            if libc::fstat(descriptor, stat.as_mut_ptr()) != 0 {
                return Err(Error::last_os_error());
            }
            stat.assume_init()
        };
        Ok(Inode::from(&stat))
    }
}

impl From<&libc::stat> for Inode {
    #[allow(clippy::unnecessary_cast, reason = "some machines have narrower numbers")]
    fn from(found: &libc::stat) -> Inode {
        Inode { device: found.st_dev as u64, number: found.st_ino as u64 }
    }
}

/// Owns a descriptor, unless the program has closed it.
#[derive(Debug)]
pub(crate) struct Descriptor<T: AsRawFd> {
    opened: ManuallyDrop<T>,
    inode: Inode,
    /// Whether memlock has closed it.
    is_closed: AtomicBool,
}

/// Opens `/dev/null` as each standard stream that the program has closed: what is opened next would be in
/// its place, and what other threads print would be written into it, or sent.
pub(crate) fn occupy_standard_streams() {
    if cfg!(miri) {
        return;
    }
    loop {
        // SAFETY: the path ends with a NUL; the descriptor is this function's.
        let opened = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
        if !(0..=2).contains(&opened) {
            // SAFETY: as above.
            unsafe { libc::close(opened) };
            return;
        }
    }
}

impl<T: AsRawFd> Descriptor<T> {
    /// Takes what was just opened, after [`occupy_standard_streams`].
    pub(crate) fn new(opened: T) -> Result<Descriptor<T>> {
        let inode = Inode::of(opened.as_raw_fd())?;
        let (opened, is_closed) = (ManuallyDrop::new(opened), AtomicBool::new(false));
        Ok(Descriptor { opened, inode, is_closed })
    }

    /// Whether it is open: neither memlock nor the program has closed it, and the program has opened
    /// nothing else with its number.
    pub(crate) fn is_ours(&self) -> bool {
        !self.is_closed.load(Ordering::SeqCst)
            && Inode::of(self.as_raw_fd()).is_ok_and(|inode| inode == self.inode)
    }

    /// Closes it while others may still refer to it, but do not use it at this moment: later they find
    /// that it is not [`ours`](Descriptor::is_ours).
    pub(crate) fn close(&self) {
        if self.is_ours() && !self.is_closed.swap(true, Ordering::SeqCst) {
            // SAFETY: it is open, and owned by this value, which never closes it again.
            unsafe { libc::close(self.as_raw_fd()) };
        }
    }
}

impl<T: AsRawFd> Deref for Descriptor<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.opened
    }
}

/// Closes it if it is still open. The number may be that of a file of the program, and closing a
/// number that is closed would abort programs that are built with a debug build of `std`.
impl<T: AsRawFd> Drop for Descriptor<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: it is dropped only here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.opened) };
        }
    }
}
