use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use super::*;

/// What a callback and its test tell each other.
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
unsafe extern "C" fn forks(_: c_int, _: i64, arg: *mut c_void) {
    // SAFETY: what the test gave, which outlives the thread of the callback.
    let it = unsafe { &*arg.cast::<Forks>() };
    it.is_inside.store(true, Ordering::SeqCst);
    let _ = eventually(|| it.is_locked.load(Ordering::SeqCst));
    // SAFETY: the child continues in this thread alone, and ends by `_exit`.
    it.child.store(unsafe { libc::fork() }, Ordering::SeqCst);
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot fork")]
fn a_child_of_a_callback_does_not_wait_for_a_thread_that_gives_the_handle_back() {
    let it = Forks {
        is_inside: AtomicBool::new(false),
        is_locked: AtomicBool::new(false),
        child: AtomicI32::new(-1),
    };
    let told = Told::new(forks, (&raw const it).cast_mut().cast());
    told.begin();
    thread::scope(|scope| {
        scope.spawn(|| {
            told.tell(Notice::Lost(Loss::Expired));
            if it.child.load(Ordering::SeqCst) == 0 {
                // SAFETY: ends the child without running the test harness's destructors.
                unsafe { libc::_exit(7) }
            }
        });
        let is_inside = eventually(|| it.is_inside.load(Ordering::SeqCst));
        // As `Told::end` does for a moment.
        let course = told.course();
        it.is_locked.store(true, Ordering::SeqCst);
        let has_forked = eventually(|| it.child.load(Ordering::SeqCst) > 0);
        drop(course);
        assert!(is_inside && has_forked);
        let (child, mut status) = (it.child.load(Ordering::SeqCst), 0);
        let mut has_ended = || {
            // SAFETY: waits for the child that was made above.
            unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) == child }
        };
        let began = Instant::now();
        while !has_ended() {
            if began.elapsed() > Duration::from_secs(20) {
                // SAFETY: it is a child of ours that has not been waited for yet.
                unsafe { libc::kill(child, libc::SIGKILL) };
                panic!("the child waits for a thread of its parent");
            }
            thread::sleep(Duration::from_millis(1));
        }
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
    });
}
