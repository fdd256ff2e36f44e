//! SQLite across `fork`.
//!
//! SQLite keeps state per process: its own mutexes, and which files are open, by device and inode,
//! with the locks that the process has on each. A child inherits that state, but none of the locks
//! on files: it would treat its parent's locks as its own. And if another thread was inside SQLite
//! at the fork, a mutex stays locked forever. Therefore:
//!
//! - One thread of a process at a time makes calls into SQLite, and a fork waits until no other
//!   thread does. A signal handler of that thread may fork: so the lock says which thread has it,
//!   from the instant in which it is taken.
//! - In a child, SQLite sees other inode numbers for files than in the parent. Files that the child
//!   opens are new to SQLite. The inherited ones are never used again, and never closed: closing a
//!   file would drop the locks that the child has on it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rusqlite::ffi;

use crate::fork;

/// The thread that makes calls into SQLite, or forks; 0: none does.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// How many threads wait for it.
static WAITING: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread's number; 0: it has none yet.
    static THREAD: Cell<u32> = const { Cell::new(0) };
    /// How often this thread has locked for a fork: the handlers may be installed twice.
    static FORKS: Cell<usize> = const { Cell::new(0) };
}

/// The number of this thread, which the thread of a child that is its copy has, too.
fn this_thread() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    THREAD.with(|number| {
        while number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

fn lock() {
    let thread = this_thread();
    loop {
        match OWNER.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return,
            Err(owner) => {
                WAITING.fetch_add(1, Ordering::SeqCst);
                futex(libc::FUTEX_WAIT, owner);
                // 0 in a child that a signal handler has made meanwhile.
                let less = |waiting: u32| waiting.checked_sub(1);
                let _ = WAITING.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
            }
        }
    }
}

fn unlock() {
    OWNER.store(0, Ordering::SeqCst);
    if WAITING.load(Ordering::SeqCst) > 0 {
        futex(libc::FUTEX_WAKE, 1);
    }
}

/// Sleeps while the owner is this one; or wakes so many threads that sleep.
fn futex(operation: libc::c_int, number: u32) {
    let (word, operation) = (OWNER.as_ptr(), operation | libc::FUTEX_PRIVATE_FLAG);
    let forever = std::ptr::null::<libc::timespec>();
    // SAFETY: the word lives as long as the process, and there is no time limit. The result is not
    // needed: the caller checks the word again.
    unsafe { libc::syscall(libc::SYS_futex, word, operation, number, forever) };
}

/// A thread's calls into SQLite.
pub(super) struct ActiveCall(());

impl Drop for ActiveCall {
    fn drop(&mut self) {
        unlock();
    }
}

/// Waits until no other thread makes calls into SQLite.
pub(super) fn enter() -> ActiveCall {
    lock();
    ActiveCall(())
}

/// Installs the fork handlers.
pub(super) fn install() {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    // Installs the handler of `fork` first, so that it runs first in a child, before the gate is
    // open again.
    fork::generation();
    if INSTALLED.load(Ordering::Acquire) {
        return;
    }
    let (parent, child) = (Some(after_fork_in_parent as _), Some(after_fork_in_child as _));
    // SAFETY: the handlers only lock and unlock.
    let failed = unsafe { libc::pthread_atfork(Some(before_fork), parent, child) };
    let _call = enter();
    number_inodes();
    if failed == 0 {
        INSTALLED.store(true, Ordering::Release);
    } else {
        log::warn!("memlock cannot watch for forks (out of memory): do not fork this process.");
    }
}

/// Whether this thread makes calls into SQLite, and a signal handler of it forks.
fn is_inside() -> bool {
    FORKS.get() == 0 && OWNER.load(Ordering::Relaxed) == this_thread()
}

extern "C" fn before_fork() {
    if is_inside() {
        return;
    }
    if FORKS.get() == 0 {
        lock();
    }
    FORKS.set(FORKS.get() + 1);
}

extern "C" fn after_fork_in_parent() {
    after_fork();
}

extern "C" fn after_fork_in_child() {
    // No thread of this process waits.
    WAITING.store(0, Ordering::Relaxed);
    after_fork();
}

fn after_fork() {
    if is_inside() {
        return;
    }
    let forks = FORKS.get().saturating_sub(1);
    FORKS.set(forks);
    if forks == 0 {
        unlock();
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
    // The factor is odd, so no two generations have the same product.
    let mark = fork::generation().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // SAFETY: the caller passes on its own argument, which was just filled in.
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
