//! SQLite through `fork`.
//!
//! SQLite keeps state of its own in a process: locks of its own, and which files are open, by
//! device and inode, with the locks that the process has on each. A child inherits that state, but
//! none of the locks on files: it would take its parent's locks for its own. And where another
//! thread was inside of SQLite at the fork, a lock stays taken for ever. So
//!
//! - all of memlock's calls into SQLite pass a gate, one at a time in a process, and a fork waits
//!   until nobody is inside;
//! - in a child, files have other inode numbers for SQLite than in its parent. What the child opens
//!   is new to SQLite; what it inherited is never met again, and never closed: closing a file would
//!   drop the locks that the child has on it.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::ffi;

use crate::fork;

static CALLS: Mutex<()> = Mutex::new(());

/// The gate, closed by the thread that forks.
static HELD_BY_FORK: HeldByFork = HeldByFork(UnsafeCell::new(None));

struct HeldByFork(UnsafeCell<Option<MutexGuard<'static, ()>>>);

// SAFETY: it is touched by the thread alone that has the gate.
unsafe impl Sync for HeldByFork {}

thread_local! {
    /// How often this thread has closed the gate for a fork: the handlers may be installed twice.
    static FORKS: Cell<usize> = const { Cell::new(0) };
    /// Whether this thread is inside: a signal handler of its own may fork.
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
}

/// A thread's stay inside.
pub(super) struct ActiveCall {
    _guard: MutexGuard<'static, ()>,
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        ACTIVE.set(false);
    }
}

/// Waits until no other thread is inside.
pub(super) fn enter() -> ActiveCall {
    let guard = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    ACTIVE.set(true);
    ActiveCall { _guard: guard }
}

/// Sees to forks from now on.
pub(super) fn install() {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    // Its handler comes first in a child, before the gate is open again.
    fork::generation();
    if INSTALLED.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: the handlers do nothing but lock and unlock, and touch what belongs to the thread
    // that has the gate.
    let failed =
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
    let _call = enter();
    number_inodes();
    if failed == 0 {
        INSTALLED.store(true, Ordering::Release);
    } else {
        log::warn!("memlock cannot watch for forks (out of memory): do not fork this process.");
    }
}

extern "C" fn before_fork() {
    if ACTIVE.get() {
        return;
    }
    let forks = FORKS.get();
    FORKS.set(forks + 1);
    if forks == 0 {
        let guard = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: this thread has the gate.
        unsafe { *HELD_BY_FORK.0.get() = Some(guard) };
    }
}

extern "C" fn after_fork() {
    if ACTIVE.get() {
        return;
    }
    let forks = FORKS.get().saturating_sub(1);
    FORKS.set(forks);
    if forks == 0 {
        // SAFETY: this thread, or the one of which it is the copy, has the gate.
        drop(unsafe { (*HELD_BY_FORK.0.get()).take() });
    }
}

/// From now on SQLite sees inode numbers that differ from process to process of a family. In a
/// process that was not forked they are the file system's.
fn number_inodes() {
    type Call = unsafe extern "C" fn();
    type Fstat = unsafe extern "C" fn(libc::c_int, *mut libc::stat) -> libc::c_int;
    type Stat = unsafe extern "C" fn(*const libc::c_char, *mut libc::stat) -> libc::c_int;
    // SAFETY: the default VFS is there for as long as the process; its table of system calls takes
    // functions of these names and types; ours are called as `fstat` and `stat` are.
    unsafe {
        let vfs = ffi::sqlite3_vfs_find(std::ptr::null());
        let Some(set) = vfs.as_ref().and_then(|vfs| vfs.xSetSystemCall) else { return };
        set(vfs, c"fstat".as_ptr(), Some(std::mem::transmute::<Fstat, Call>(fstat)));
        set(vfs, c"stat".as_ptr(), Some(std::mem::transmute::<Stat, Call>(stat)));
    }
}

fn mark(stat: *mut libc::stat) {
    // Odd, so that no two generations have the same product.
    let mark = fork::generation().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // SAFETY: the caller gives the place that it was given, which was just filled in.
    unsafe { (*stat).st_ino ^= mark as libc::ino_t };
}

unsafe extern "C" fn fstat(file: libc::c_int, stat: *mut libc::stat) -> libc::c_int {
    // SAFETY: as the caller promises.
    let result = unsafe { libc::fstat(file, stat) };
    if result == 0 {
        mark(stat);
    }
    result
}

unsafe extern "C" fn stat(path: *const libc::c_char, stat: *mut libc::stat) -> libc::c_int {
    // SAFETY: as the caller promises.
    let result = unsafe { libc::stat(path, stat) };
    if result == 0 {
        mark(stat);
    }
    result
}
