//! SQLite across `fork`.
//!
//! SQLite keeps state per process: its own mutexes, and which files are open, by device and inode,
//! with the locks that the process has on each. A child inherits that state, but none of the locks
//! on files: it would treat its parent's locks as its own. And if another thread was inside SQLite
//! at the fork, a mutex stays locked forever. Therefore:
//!
//! - One thread of a process at a time makes calls into SQLite, with its signals blocked, so that
//!   no signal handler forks in the middle of one; and a fork of another thread waits until it is
//!   done.
//! - In a child, SQLite sees other inode numbers for files than in the parent. Files that the child
//!   opens are new to SQLite. The inherited ones are never used again, and never closed: closing a
//!   file would drop the locks that the child has on it. The same holds for a file of which a
//!   connection was [abandoned].

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::ffi;

use super::abandoned;
use super::file::FileId;
use crate::fork;
use crate::thread::BlockedSignals;

static CALLS: Mutex<()> = Mutex::new(());

/// The mutex, held by the thread that forks.
static HELD_BY_FORK: HeldByFork = HeldByFork(UnsafeCell::new(None));

struct HeldByFork(UnsafeCell<Option<MutexGuard<'static, ()>>>);

// SAFETY: only the thread that holds the mutex accesses it.
unsafe impl Sync for HeldByFork {}

thread_local! {
    /// How often this thread has locked for a fork: the handlers may be installed twice.
    static FORKS: Cell<usize> = const { Cell::new(0) };
}

/// A thread's calls into SQLite.
pub(super) struct ActiveCall {
    // Dropped in this order.
    _guard: MutexGuard<'static, ()>,
    _signals: BlockedSignals,
}

/// Waits until no other thread makes calls into SQLite.
pub(super) fn enter() -> ActiveCall {
    let signals = BlockedSignals::new();
    let guard = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    ActiveCall { _guard: guard, _signals: signals }
}

/// Installs the fork handlers.
pub(super) fn install() {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    // Installs the handler of `fork` first, so that it runs first in a child, before the mutex is
    // unlocked.
    fork::generation();
    if INSTALLED.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: the handlers only lock and unlock, and access what belongs to the thread that holds
    // the mutex.
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
    let forks = FORKS.get();
    FORKS.set(forks + 1);
    if forks == 0 {
        let guard = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: this thread holds the mutex.
        unsafe { *HELD_BY_FORK.0.get() = Some(guard) };
    }
}

extern "C" fn after_fork() {
    let forks = FORKS.get().saturating_sub(1);
    FORKS.set(forks);
    if forks == 0 {
        // SAFETY: this thread, or the parent's thread of which it is the copy, holds the mutex.
        drop(unsafe { (*HELD_BY_FORK.0.get()).take() });
    }
}

/// From now on SQLite sees inode numbers that differ between the processes of a family. In a
/// process that was not forked they are those of the file system.
fn number_inodes() {
    type Call = unsafe extern "C" fn();
    type Fstat = unsafe extern "C" fn(libc::c_int, *mut libc::stat) -> libc::c_int;
    type Stat = unsafe extern "C" fn(*const libc::c_char, *mut libc::stat) -> libc::c_int;
    // SAFETY: the default VFS exists for as long as the process; its table of system calls accepts
    // functions of these names and types; the replacements are called as `fstat` and `stat` are.
    unsafe {
        let vfs = ffi::sqlite3_vfs_find(std::ptr::null());
        let Some(set) = vfs.as_ref().and_then(|vfs| vfs.xSetSystemCall) else { return };
        set(vfs, c"fstat".as_ptr(), Some(std::mem::transmute::<Fstat, Call>(fstat)));
        set(vfs, c"stat".as_ptr(), Some(std::mem::transmute::<Stat, Call>(stat)));
    }
}

fn mark(stat: *mut libc::stat) {
    // SAFETY: the caller passes on its own argument, which was just filled in.
    let stat = unsafe { &mut *stat };
    let abandoned = abandoned::count(FileId::from(&*stat));
    // The factors are odd, so no two generations have the same product.
    let mark = fork::generation().wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ abandoned.wrapping_mul(0xd1b5_4a32_d192_ed03);
    stat.st_ino ^= mark as libc::ino_t;
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
