//! Whether SIGPIPE would end a program that does not ignore it, as Rust's and Python's do.

use std::mem::zeroed;
use std::ptr::null_mut;

use memlock_core::{Extension, Release};

use crate::client::{LEASE, connect};
use crate::relay::{End, Relay};

/// Runs something in this thread, which must not raise SIGPIPE.
///
/// # Panics
/// If it did. A signal that is blocked stays pending, although the process ignores it.
#[track_caller]
pub fn is_not_raised<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: sets of signals are plain data; the mask of this thread is put back.
    unsafe {
        let (mut sigpipe, mut mask, mut pending): (libc::sigset_t, _, _) =
            (zeroed(), zeroed(), zeroed());
        libc::sigemptyset(&raw mut sigpipe);
        libc::sigaddset(&raw mut sigpipe, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const sigpipe, &raw mut mask);
        let done = work();
        libc::sigpending(&raw mut pending);
        let was_raised = libc::sigismember(&raw const pending, libc::SIGPIPE) == 1;
        if was_raised {
            libc::sigwaitinfo(&raw const sigpipe, null_mut());
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, null_mut());
        assert!(!was_raised, "SIGPIPE was raised");
        done
    }
}

/// Locks through a relay before the server, which resets the connection before each call. `url_at`: the URL
/// of the server at another address.
///
/// # Panics
/// If SIGPIPE is raised, or a call fails that changes nothing.
pub fn is_not_raised_by_resets(server: &str, url_at: impl Fn(&str) -> String) {
    for end in [End::Reset, End::ClosedAndReset] {
        let relay = Relay::start(server);
        let client = connect(&url_at(&relay.address()));
        let mutex = client.mutex("reset", LEASE).expect("a good name");
        let mut lock = mutex.try_lock().expect("the server answers").expect("it is free");
        relay.reset(end);
        assert!(is_not_raised(|| lock.check()).expect("the server answers"));
        relay.reset(end);
        let extended = is_not_raised(|| lock.extend(LEASE));
        assert!(extended.is_ok_and(|extension| extension == Extension::Extended));
        relay.reset(end);
        let released = is_not_raised(|| lock.unlock());
        assert!(released.is_ok_and(|release| release == Release::Released));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn a_signal_that_is_ignored_is_noticed() {
        let (_, mut closed) = std::io::pipe().unwrap();
        let fd = closed.as_raw_fd();
        for _ in 0..2 {
            let written = catch_unwind(|| {
                // SAFETY: one byte is given.
                is_not_raised(|| unsafe { libc::write(fd, b"x".as_ptr().cast(), 1) })
            });
            written.unwrap_err();
            is_not_raised(|| ());
        }
        closed.write_all(b"x").unwrap_err();
    }
}
