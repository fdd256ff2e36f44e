//! Signals, taken one by one: all that concern us are blocked from the start, in every thread, and
//! waited for.
//!
//! Nothing is interrupted by them, and no handler runs. The command gets back the mask and the
//! dispositions that we were started with. A signal that is ignored, as under `nohup`, stays
//! ignored.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libc::{c_int, sigset_t};

/// What is passed on to the command.
const PASSED_ON: [c_int; 7] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
];
/// By which job control stops programs.
pub(super) const STOPPING: [c_int; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
/// Those among the first that end a wait for the lock.
const ENDING: [c_int; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// Those among the first that only tell something, to a command that is there.
const MESSAGES: [c_int; 3] = [libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH];

/// Those whose dispositions are changed: SIGCHLD by [`Signals::block`], SIGPIPE by Rust's runtime before
/// `main`, and by its `Command` in the child.
const CHANGED: [c_int; 2] = [libc::SIGCHLD, libc::SIGPIPE];

/// Whether SIGPIPE was ignored when this program was started.
static IGNORES_SIGPIPE: AtomicBool = AtomicBool::new(false);

/// The loader calls it before Rust's runtime begins.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = note_sigpipe;

extern "C" fn note_sigpipe() {
    IGNORES_SIGPIPE.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
}

/// What the kernel says of signals that it sent itself, such as those of the terminal's keys.
const SI_KERNEL: c_int = 0x80;

/// The signals that are blocked, and what was before.
#[derive(Clone, Copy)]
pub(super) struct Signals {
    ours: sigset_t,
    ending: sigset_t,
    before: sigset_t,
    /// Which of those that are changed were ignored.
    ignored: sigset_t,
}

/// A signal that was received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Came {
    pub(super) signal: c_int,
    /// The terminal's.
    pub(super) from_kernel: bool,
}

impl Came {
    /// Whether it comes from the terminal, for the whole group in the foreground. That the terminal
    /// itself is gone is sent to the leader of its session alone.
    pub(super) fn went_to_our_group(&self) -> bool {
        // SAFETY: the call takes a plain number.
        let leads = unsafe { libc::getsid(0) } == own_pid();
        self.from_kernel && !(leads && self.signal == libc::SIGHUP)
    }
}

impl Signals {
    /// Blocks them. To be called while there is one thread.
    pub(super) fn block() -> io::Result<Signals> {
        let ignored = set(CHANGED.into_iter().filter(|&signal| match signal {
            libc::SIGPIPE => IGNORES_SIGPIPE.load(Ordering::Relaxed),
            signal => is_ignored(signal),
        }));
        // A process that ignores SIGCHLD does not learn how its children ended. SAFETY: the
        // disposition is the default, and no handler.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        let heeded = |signals: &[c_int]| {
            signals.iter().copied().filter(|&signal| !is_ignored(signal)).collect()
        };
        let ending: Vec<c_int> = heeded(&ENDING);
        let mut ours: Vec<c_int> = heeded(&PASSED_ON);
        ours.extend::<Vec<c_int>>(heeded(&STOPPING));
        let ours = set(ours.iter().copied().chain([libc::SIGCHLD, libc::SIGCONT]));
        let mut before = set([]);
        // SAFETY: both sets are valid.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &ours, &mut before) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        Ok(Signals { ours, ending: set(ending), before, ignored })
    }

    /// Gives the mask and the dispositions back that were there before. For a child between fork and
    /// exec.
    pub(super) fn restore(&self) -> io::Result<()> {
        for signal in CHANGED {
            let disposition =
                if has(&self.ignored, signal) { libc::SIG_IGN } else { libc::SIG_DFL };
            // SAFETY: the disposition is no handler; the call is async-signal-safe.
            unsafe { libc::signal(signal, disposition) };
        }
        // SAFETY: the set is valid; the call is async-signal-safe.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) } {
            0 => Ok(()),
            failed => Err(io::Error::from_raw_os_error(failed)),
        }
    }

    /// Whether one came that is to end us, and was not taken yet.
    pub(super) fn is_to_end(&self) -> bool {
        let pending = pending();
        ENDING.iter().any(|&signal| has(&self.ending, signal) && has(&pending, signal))
    }

    /// Stops us if job control says so, until we are continued. For when there is no command yet
    /// that would stop.
    pub(super) fn stop_if_told(&self) {
        let pending = pending();
        for signal in STOPPING {
            if has(&self.ours, signal) && has(&pending, signal) {
                self.suffer(signal);
            }
        }
    }

    /// The next one, if one comes in time.
    pub(super) fn next(&self, limit: Duration) -> Option<Came> {
        self.take(&self.ours, limit)
    }

    /// Whether the terminal's interrupt key was pressed, and that was not taken yet.
    pub(super) fn has_key_been_pressed(&self, limit: Duration) -> bool {
        let key = set([libc::SIGINT].into_iter().filter(|&signal| has(&self.ours, signal)));
        self.take(&key, limit).is_some_and(|came| came.from_kernel)
    }

    /// A signal that is to end us.
    pub(super) fn next_ending(&self) -> Option<Came> {
        self.take(&self.ending, Duration::ZERO)
    }

    /// Drops what was to be passed on before there was a command to act on it: it would end a
    /// command that has just begun.
    pub(super) fn forget_messages(&self) {
        let messages = set(MESSAGES.into_iter().filter(|&signal| has(&self.ours, signal)));
        while self.take(&messages, Duration::ZERO).is_some() {}
    }

    fn take(&self, which: &sigset_t, limit: Duration) -> Option<Came> {
        let limit = libc::timespec {
            tv_sec: limit.as_secs().min(3600) as libc::time_t,
            tv_nsec: limit.subsec_nanos() as _,
        };
        // SAFETY: an all-zero siginfo_t is a valid place for the answer; the other arguments are
        // valid.
        let (signal, code) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let signal = libc::sigtimedwait(which, &mut info, &limit);
            (signal, info.si_code)
        };
        (signal > 0).then_some(Came { signal, from_kernel: code == SI_KERNEL })
    }

    /// Does what the signal does where it is not blocked: ends us, or stops us until we are
    /// continued.
    pub(super) fn suffer(&self, signal: c_int) {
        let only = set([signal]);
        // SAFETY: the sets are valid; the disposition is the default, and no handler.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &only, ptr::null_mut());
            libc::pthread_sigmask(libc::SIG_BLOCK, &only, ptr::null_mut());
        }
    }
}

/// Wakes the thread in [`Signals::next`]: it reads what there is.
pub(super) fn wake() {
    send(own_pid(), libc::SIGCHLD);
}

/// Sends a signal; a process that is gone does not get it. False if it is there and may not get it.
pub(super) fn send(pid: libc::pid_t, signal: c_int) -> bool {
    // SAFETY: the call has no preconditions.
    let sent = unsafe { libc::kill(pid, signal) };
    sent == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EPERM)
}

/// Our own process id.
pub(super) fn own_pid() -> libc::pid_t {
    // SAFETY: the call cannot fail.
    unsafe { libc::getpid() }
}

fn is_ignored(signal: c_int) -> bool {
    // SAFETY: an all-zero sigaction is a valid place for the answer, and nothing is changed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

fn set(signals: impl IntoIterator<Item = c_int>) -> sigset_t {
    // SAFETY: an all-zero set is emptied first, and the signals are known ones.
    unsafe {
        let mut set: sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// What was received and not taken yet.
fn pending() -> sigset_t {
    let mut pending = set([]);
    // SAFETY: the set is a valid place for the answer.
    unsafe { libc::sigpending(&mut pending) };
    pending
}

fn has(set: &sigset_t, signal: c_int) -> bool {
    // SAFETY: the set is valid, and the signal a known one.
    unsafe { libc::sigismember(set, signal) == 1 }
}
