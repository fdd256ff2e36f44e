//! The log callback.
//!
//! | a listener | what is true | what changes it |
//! | --- | --- | --- |
//! | current | threads that log a message enter it and call the callback | `memlock_log_set`, by replacing it |
//! | replaced | no thread enters it any more; some may still be inside | the threads inside, by leaving |
//! | left | it is not called, until it is set again | `memlock_log_set`, by setting it again |
//!
//! A thread that logs first enters the listener and then checks that the listener is still current.
//! `memlock_log_set` first replaces the listener and then checks whether a thread is inside. So
//! either the logging thread notices that the listener was replaced, or `memlock_log_set` notices
//! the logging thread. No lock is involved: a thread that logs never waits, and a fork leaves
//! nothing locked in the child.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;
use std::time::Duration;

use log::{Level, LevelFilter, Log, Metadata, Record};
use memlock_core::active_calls::ActiveCalls;
use memlock_core::{Answer, Error, ErrorKind, Result, logs};

use crate::boundary::{contained, enter, invalid};

/// For memlock_log_set(): no messages.
pub const MEMLOCK_LOG_OFF: c_int = 0;
/// A bug, in memlock or in a callback.
pub const MEMLOCK_LOG_ERROR: c_int = 1;
/// A lock or permit was lost or is at risk: a renewed one, or one that could not be released.
pub const MEMLOCK_LOG_WARNING: c_int = 2;
/// A server became unreachable or reachable, or an operation was postponed.
pub const MEMLOCK_LOG_INFO: c_int = 3;
/// For diagnosis: connections, and problems that were resolved at once.
pub const MEMLOCK_LOG_DEBUG: c_int = 4;
/// Everything. There are no messages of this level so far.
pub const MEMLOCK_LOG_TRACE: c_int = 5;

/// Called for each message. `level` is MEMLOCK_LOG_ERROR to MEMLOCK_LOG_TRACE; `part` is the part
/// of memlock that logs, such as "memlock.renewal"; `message` is one or more whole sentences in
/// UTF-8, of any length, without a newline at the end. Both strings are valid until the callback
/// returns. `arg` is the argument of memlock_log_set().
///
/// Runs in the thread that logs, which may be one of memlock's own, and in several threads at once.
/// That thread continues its work when the callback returns: therefore the callback should be
/// short, no C++ exception may leave it, and it must not leave by longjmp(). It may call every
/// function of memlock, including memlock_log_set(), but must not use the lock, permit, list or
/// iteration handle of the call that logs, nor wait for what that call holds or waits for. It
/// should not wait for permits either: other threads that use the same semaphore may have to wait
/// as long. Messages that the callback itself causes are dropped. A child that the callback forks
/// may only call async-signal-safe functions, exec or _exit.
pub type memlock_log_callback = Option<
    unsafe extern "C" fn(
        level: c_int,
        part: *const c_char,
        message: *const c_char,
        arg: *mut c_void,
    ),
>;

/// Sets the log callback: messages up to `max_level` are passed to `callback`, which replaces the
/// previous one. NULL or MEMLOCK_LOG_OFF turns logging off, which is the initial state.
///
/// When this returns, the previous callback is not running and is never called again, so its `arg`
/// may be freed. The function waits for that: do not call it while holding a lock for which the
/// previous callback waits. When called within a log callback it does not wait, and the previous
/// callback may still be running, in this thread and in others.
///
/// The setting applies to all clients of the process. A child made by fork() inherits it. Each
/// different set of arguments uses a few bytes, which are never freed.
///
/// In a Rust program that links this library as a crate and has a logger of the crate "log", that
/// logger receives the messages, and this function returns MEMLOCK_CONFIG. The shared library has
/// its own copy of "log", and does not affect the program's.
///
/// Returns MEMLOCK_OK, MEMLOCK_INVALID or MEMLOCK_CONFIG; changes nothing when it fails. No I/O.
/// Thread-safe.
///
/// # Safety
/// `callback` is NULL or a function that may be called with `arg` from any thread until it is
/// replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_log_set(
    max_level: c_int,
    callback: memlock_log_callback,
    arg: *mut c_void,
) -> c_int {
    enter(|| {
        let level = match max_level {
            MEMLOCK_LOG_OFF => LevelFilter::Off,
            MEMLOCK_LOG_ERROR => LevelFilter::Error,
            MEMLOCK_LOG_WARNING => LevelFilter::Warn,
            MEMLOCK_LOG_INFO => LevelFilter::Info,
            MEMLOCK_LOG_DEBUG => LevelFilter::Debug,
            MEMLOCK_LOG_TRACE => LevelFilter::Trace,
            _ => {
                return Err(invalid(format!(
                    "max_level is {max_level}: give one of MEMLOCK_LOG_OFF to _TRACE."
                )));
            }
        };
        install()?;
        let listener = match (callback, level) {
            (None, _) | (_, LevelFilter::Off) => std::ptr::null_mut(),
            (Some(function), level) => listener(function, arg, level),
        };
        replace(listener);
        Ok(Answer::Ok)
    })
}

/// A callback, its argument and its level. It is never freed, because a thread may be about to read
/// it.
struct Listener {
    function: unsafe extern "C" fn(c_int, *const c_char, *const c_char, *mut c_void),
    arg: *mut c_void,
    level: LevelFilter,
    active_calls: ActiveCalls,
    /// The listener that was made before this one.
    older: *mut Listener,
}

/// The listener in use, if there is one.
static CURRENT: AtomicPtr<Listener> = AtomicPtr::new(std::ptr::null_mut());
/// The listener that was made last: the head of the list of all listeners.
static NEWEST: AtomicPtr<Listener> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// This thread is in a callback.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

fn install() -> Result<()> {
    static LOGGER: ToCallback = ToCallback;
    let is_installed = || std::ptr::addr_eq(log::logger(), &raw const LOGGER);
    // Another thread may have set it just now.
    if is_installed() || log::set_logger(&LOGGER).is_ok() || is_installed() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Config,
        "This program has a logger of the Rust crate \"log\", which receives memlock's messages: \
         configure that logger instead.",
    ))
}

/// The listener with these arguments; makes one if there is none.
fn listener(
    function: unsafe extern "C" fn(c_int, *const c_char, *const c_char, *mut c_void),
    arg: *mut c_void,
    level: LevelFilter,
) -> *mut Listener {
    let newest = NEWEST.load(Ordering::Acquire);
    let mut known = newest;
    // SAFETY: a pointer that is not null was made below, and its target is never freed or changed.
    while let Some(listener) = unsafe { known.as_ref() } {
        if std::ptr::fn_addr_eq(listener.function, function)
            && listener.arg == arg
            && listener.level == level
        {
            return known;
        }
        known = listener.older;
    }
    let made = Box::into_raw(Box::new(Listener {
        function,
        arg,
        level,
        active_calls: ActiveCalls::new(),
        older: newest,
    }));
    let mut older = newest;
    while let Err(newer) = NEWEST.compare_exchange(older, made, Ordering::AcqRel, Ordering::Acquire)
    {
        older = newer;
        // SAFETY: made above and not published yet.
        unsafe { (*made).older = older };
    }
    made
}

/// Makes `listener`, or none, the current one, and waits until no thread is inside the previous
/// one.
fn replace(listener: *mut Listener) {
    let before = CURRENT.swap(listener, Ordering::SeqCst);
    loop {
        let level = current().map_or(LevelFilter::Off, |listener| listener.level);
        log::set_max_level(level);
        // Another thread may have replaced it meanwhile.
        if current().map_or(LevelFilter::Off, |listener| listener.level) == level {
            break;
        }
    }
    // SAFETY: as in `listener`.
    let Some(replaced) = (unsafe { before.as_ref() }) else { return };
    let is_replaced = || CURRENT.load(Ordering::SeqCst) != before;
    // Two callbacks that waited for each other to return would wait for ever.
    while !IN_CALLBACK.get() && replaced.active_calls.any() && is_replaced() {
        thread::sleep(Duration::from_millis(1));
    }
}

fn current() -> Option<&'static Listener> {
    // SAFETY: as in `listener`.
    unsafe { CURRENT.load(Ordering::SeqCst).as_ref() }
}

struct ToCallback;

impl Log for ToCallback {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        current().is_some_and(|listener| metadata.level() <= listener.level)
    }

    fn log(&self, record: &Record<'_>) {
        // Checked first, because what follows may log itself.
        if IN_CALLBACK.replace(true) {
            return;
        }
        contained(|| call(record));
        IN_CALLBACK.set(false);
    }

    fn flush(&self) {}
}

fn call(record: &Record<'_>) {
    let Some(part) = logs::name(record.target()) else { return };
    let (part, message) = (c_string(part), c_string(record.args().to_string()));
    while let Some(listener) = current() {
        let _active = listener.active_calls.enter();
        if !current().is_some_and(|current| std::ptr::eq(current, listener)) {
            continue;
        }
        if record.level() <= listener.level {
            // SAFETY: C passed this function for this call, and its argument is valid while a
            // thread is inside the listener.
            unsafe {
                (listener.function)(
                    number(record.level()),
                    part.as_ptr(),
                    message.as_ptr(),
                    listener.arg,
                )
            };
        }
        return;
    }
}

fn number(level: Level) -> c_int {
    match level {
        Level::Error => MEMLOCK_LOG_ERROR,
        Level::Warn => MEMLOCK_LOG_WARNING,
        Level::Info => MEMLOCK_LOG_INFO,
        Level::Debug => MEMLOCK_LOG_DEBUG,
        Level::Trace => MEMLOCK_LOG_TRACE,
    }
}

/// Text as a C string: an embedded NUL is written as `\0`, and does not end the string.
fn c_string(text: String) -> CString {
    CString::new(text).unwrap_or_else(|error| {
        let escaped = String::from_utf8_lossy(&error.into_vec()).replace('\0', "\\0");
        CString::new(escaped).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedded_nul_is_escaped_and_nothing_is_truncated() {
        assert_eq!(c_string("a\0b".repeat(5000)).to_str().unwrap(), "a\\0b".repeat(5000));
        assert_eq!(c_string(String::new()).as_c_str(), c"");
    }

    #[test]
    fn the_headers_numbers_are_the_levels_numbers() {
        for level in Level::iter() {
            assert_eq!(number(level), level as usize as c_int);
        }
        assert_eq!(LevelFilter::Off as usize as c_int, MEMLOCK_LOG_OFF);
    }
}
