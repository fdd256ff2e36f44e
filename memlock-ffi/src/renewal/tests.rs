use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use super::*;

/// State that a callback and its test share.
struct Forks {
    is_inside: AtomicBool,
    is_locked: AtomicBool,
    child: AtomicI32,
}

fn eventually(is_true: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !is_true() {
        if began.elapsed() > Duration::from_secs(20) {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Forks once another thread has locked the mutex of the callback.
unsafe extern "C" fn fork_when_locked(_: c_int, _: i64, arg: *mut c_void) {
    // SAFETY: the argument that the test passed; it outlives the thread of the callback.
    let forks = unsafe { &*arg.cast::<Forks>() };
    forks.is_inside.store(true, Ordering::SeqCst);
    let _ = eventually(|| forks.is_locked.load(Ordering::SeqCst));
    // SAFETY: the child continues in this thread alone, and ends by `_exit`.
    forks.child.store(unsafe { libc::fork() }, Ordering::SeqCst);
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot fork")]
fn a_child_of_a_callback_does_not_wait_for_a_thread_that_frees_the_handle() {
    let forks = Forks {
        is_inside: AtomicBool::new(false),
        is_locked: AtomicBool::new(false),
        child: AtomicI32::new(-1),
    };
    let callback = RenewalCallback::new(fork_when_locked, (&raw const forks).cast_mut().cast());
    callback.enable();
    thread::scope(|scope| {
        scope.spawn(|| {
            callback.call(Notice::Lost(Loss::Expired));
            if forks.child.load(Ordering::SeqCst) == 0 {
                // SAFETY: ends the child without running the destructors of the test harness.
                unsafe { libc::_exit(7) }
            }
        });
        let is_inside = eventually(|| forks.is_inside.load(Ordering::SeqCst));
        // As `RenewalCallback::disable` does for a moment.
        let state = callback.state();
        forks.is_locked.store(true, Ordering::SeqCst);
        let has_forked = eventually(|| forks.child.load(Ordering::SeqCst) > 0);
        drop(state);
        assert!(is_inside && has_forked);
        let (child, mut status) = (forks.child.load(Ordering::SeqCst), 0);
        let mut has_ended = || {
            // SAFETY: waits for the child that was made above.
            unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) == child }
        };
        let began = Instant::now();
        while !has_ended() {
            if began.elapsed() > Duration::from_secs(20) {
                // SAFETY: a child of this process that has not been waited for yet.
                unsafe { libc::kill(child, libc::SIGKILL) };
                panic!("the child waits for a thread of its parent");
            }
            thread::sleep(Duration::from_millis(1));
        }
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
    });
}
