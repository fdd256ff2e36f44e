//! Being stopped together with the command, and going on with it.
//!
//! A shell stops and continues the whole process group. A program that stops the command alone, and
//! continues it alone, would leave this process stopped for ever: the lock would not be renewed,
//! nor the end of the command be seen. So another process watches meanwhile.

use std::ffi::CString;
use std::fs;
use std::path::Path;
use std::ptr;
use std::time::Duration;

use libc::{c_int, pid_t};

use super::signals::{self, Signals};

/// How often it looks.
const LOOK: Duration = Duration::from_millis(50);
/// The state is behind the name, which has no more than 15 bytes.
const ENOUGH: usize = 128;

/// Stops this process by `signal`, until it is continued, or `command` is not stopped any more.
pub(super) fn stop_with(command: pid_t, signal: c_int, signals: &Signals) {
    let (stopped, state) = (signals::own_pid(), format!("/proc/{command}/stat"));
    let can_be_watched = knows(stopped) && fs::metadata(&state).is_ok();
    let watcher = match CString::new(state) {
        // SAFETY: the child makes async-signal-safe calls only, and ends by `_exit` or SIGKILL.
        Ok(state) if can_be_watched => match unsafe { libc::fork() } {
            0 => watch(&state, stopped),
            watcher => watcher,
        },
        _ => -1,
    };
    signals.suffer(signal);
    if watcher > 0 {
        signals::send(watcher, libc::SIGKILL);
        // SAFETY: it is our child, which was not waited for yet.
        unsafe { libc::waitpid(watcher, ptr::null_mut(), 0) };
    }
}

/// Whether there is a /proc in which processes have the numbers by which we know them.
fn knows(own_pid: pid_t) -> bool {
    fs::read_link("/proc/self").is_ok_and(|own| own == Path::new(&own_pid.to_string()))
}

/// Continues `stopped`, again and again, as soon as the process whose state this is is not stopped.
fn watch(state: &CString, stopped: pid_t) -> ! {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos() as _ };
    // SAFETY: plain numbers and valid places; all these calls are async-signal-safe.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        while libc::getppid() == stopped {
            if !is_stopped(state) {
                libc::kill(stopped, libc::SIGCONT);
            }
            libc::nanosleep(&raw const pause, ptr::null_mut());
        }
        libc::_exit(0)
    }
}

/// Whether it is stopped, or cannot be looked at.
fn is_stopped(state: &CString) -> bool {
    let mut text = [0_u8; ENOUGH];
    // SAFETY: the path is a string, and the buffer as long as said; all these calls are
    // async-signal-safe.
    let length = unsafe {
        let file = libc::open(state.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return *libc::__errno_location() != libc::ENOENT;
        }
        let length = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        usize::try_from(length).unwrap_or(0)
    };
    // `PID (NAME) STATE …`; a name may have parentheses, too.
    let text = text.get(..length).unwrap_or_default();
    let state = text.iter().rposition(|&byte| byte == b')').and_then(|end| text.get(end + 2));
    matches!(state, None | Some(b'T' | b't'))
}
