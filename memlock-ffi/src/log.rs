//! What memlock logs, told to a function of C's.
//!
//! | a listener | what is true | who may move it on |
//! | --- | --- | --- |
//! | current | threads with something to say go inside, and call it | `memlock_log_set`, by putting another in its place |
//! | replaced | nobody goes inside any more; some may be there yet | whoever is inside, by leaving |
//! | left | it is not called, until it is set again | `memlock_log_set`, by setting it again |
//!
//! A thread goes inside first and then looks whether the listener is still the current one; whoever
//! replaces it does so first and then looks who is inside. So either the one sees that it comes too
//! late, or the other sees it. Nothing here is a lock: whoever logs waits for nobody, and a fork
//! catches nobody.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;
use std::time::Duration;

use log::{Level, LevelFilter, Log, Metadata, Record};
use memlock_core::active_calls::ActiveCalls;
use memlock_core::{Answer, Error, ErrorKind, Result, logs};

use crate::boundary::{contained, enter, invalid};

/// For memlock_log_set(): nothing is told.
pub const MEMLOCK_LOG_OFF: c_int = 0;
/// A message that tells of a bug, of memlock or of a callback.
pub const MEMLOCK_LOG_ERROR: c_int = 1;
/// A message that something is lost or about to be: a lock that was kept, a lock that could not be
/// released.
pub const MEMLOCK_LOG_WARNING: c_int = 2;
/// A message that a server is out of reach, or back again, or that something was left to be done
/// later.
pub const MEMLOCK_LOG_INFO: c_int = 3;
/// A message for whoever looks for the cause of something: connections, and troubles that were
/// mended at once.
pub const MEMLOCK_LOG_DEBUG: c_int = 4;
/// Everything. Nothing is told at this level so far.
pub const MEMLOCK_LOG_TRACE: c_int = 5;

/// What is called for each message: its level, from MEMLOCK_LOG_ERROR to MEMLOCK_LOG_TRACE; the
/// part of memlock that it comes from, such as "memlock.renewal"; and one or more whole sentences in
/// UTF-8, of any length, without a line's end. Both strings are valid until it returns. `arg` is
/// what memlock_log_set() was given.
///
/// It is called by whichever thread has something to say, one of memlock's own included, and by
/// several at once. What that thread was doing goes on when it returns: so it should be brief, no
/// C++ exception may leave it, and it must not longjmp() out. It may call every function of
/// memlock, memlock_log_set() too, but must not use the lock, permit, list or walk that was given
/// to the call that logs, nor wait for what that call holds or waits for. Nor should it wait for
/// permits: other threads that use the same semaphore may have to wait as long. What memlock would
/// log of what the callback does is not told. If it forks, and the child returns from it, the call
/// answers MEMLOCK_INTERRUPTED there, or as if nothing were held.
pub type memlock_log_told = Option<
    unsafe extern "C" fn(
        level: c_int,
        part: *const c_char,
        message: *const c_char,
        arg: *mut c_void,
    ),
>;

/// Has messages up to `max_level` told to `callback`, in place of whatever was set before. With
/// NULL or MEMLOCK_LOG_OFF nothing is told any more, as from the beginning.
///
/// When this returns, the callback that was set before is not running, and is called no more: what
/// its `arg` points to may be freed. It waits for that, so do not call it with a lock in hand for
/// which the callback waits. Within a callback for messages it does not wait, and the one before
/// may be running yet, in this thread and in others.
///
/// It holds for all clients of the process. A child made by fork() begins with what its parent had.
/// Each different set of arguments takes a few bytes, which are kept for good.
///
/// A Rust program that has this library among its crates, and a logger of the crate "log", gets
/// memlock's messages there, and is answered MEMLOCK_CONFIG here. The shared library has a "log" of
/// its own, and does not touch that of the program.
///
/// Answers MEMLOCK_OK, MEMLOCK_INVALID or MEMLOCK_CONFIG, and changes nothing when it fails. No
/// I/O. Thread-safe.
///
/// # Safety
/// `callback` is NULL or a function that may be called with `arg` from any thread until another
/// takes its place.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_log_set(
    max_level: c_int,
    callback: memlock_log_told,
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

/// Who is told. It is never freed: somebody may be about to look at it.
struct Listener {
    function: unsafe extern "C" fn(c_int, *const c_char, *const c_char, *mut c_void),
    arg: *mut c_void,
    level: LevelFilter,
    active_calls: ActiveCalls,
    /// The one that was made before.
    older: *mut Listener,
}

/// Who is told now, if anybody is.
static CURRENT: AtomicPtr<Listener> = AtomicPtr::new(std::ptr::null_mut());
/// The one that was made last. All that were ever made hang together.
static NEWEST: AtomicPtr<Listener> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// This thread is in a callback.
    static TELLING: Cell<bool> = const { Cell::new(false) };
}

fn install() -> Result<()> {
    static LOGGER: ToCallback = ToCallback;
    let ours = || std::ptr::addr_eq(log::logger(), &raw const LOGGER);
    // Another thread may be faster by a moment.
    if ours() || log::set_logger(&LOGGER).is_ok() || ours() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Config,
        "This program has a logger of Rust's, which gets memlock's messages.",
    ))
}

/// The listener that is like this, made if there is none.
fn listener(
    function: unsafe extern "C" fn(c_int, *const c_char, *const c_char, *mut c_void),
    arg: *mut c_void,
    level: LevelFilter,
) -> *mut Listener {
    let newest = NEWEST.load(Ordering::Acquire);
    let mut known = newest;
    // SAFETY: a pointer that is not null came from below, and what it points to is never freed or
    // changed.
    while let Some(seen) = unsafe { known.as_ref() } {
        if std::ptr::fn_addr_eq(seen.function, function) && seen.arg == arg && seen.level == level {
            return known;
        }
        known = seen.older;
    }
    let made = Box::into_raw(Box::new(Listener {
        function,
        arg,
        level,
        active_calls: ActiveCalls::new(),
        older: newest,
    }));
    let mut older = newest;
    while let Err(seen) = NEWEST.compare_exchange(older, made, Ordering::AcqRel, Ordering::Acquire)
    {
        older = seen;
        // SAFETY: it was made above and has been shown to nobody.
        unsafe { (*made).older = older };
    }
    made
}

/// Puts a listener, or none, in the place of the one before, and waits until nobody is inside of
/// that.
fn replace(listener: *mut Listener) {
    let before = CURRENT.swap(listener, Ordering::SeqCst);
    loop {
        let level = current().map_or(LevelFilter::Off, |listener| listener.level);
        log::set_max_level(level);
        // Another thread may have set another one meanwhile.
        if current().map_or(LevelFilter::Off, |listener| listener.level) == level {
            break;
        }
    }
    // SAFETY: as in `listener`.
    let Some(left) = (unsafe { before.as_ref() }) else { return };
    let is_replaced = || CURRENT.load(Ordering::SeqCst) != before;
    // Two callbacks that waited for each other's end would wait for ever.
    while !TELLING.get() && left.active_calls.any() && is_replaced() {
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
        // First of all: what follows may have something to say itself.
        if TELLING.replace(true) {
            return;
        }
        contained(|| tell(record));
        TELLING.set(false);
    }

    fn flush(&self) {}
}

fn tell(record: &Record<'_>) {
    let Some(part) = logs::name(record.target()) else { return };
    let (part, message) = (c_string(part), c_string(record.args().to_string()));
    while let Some(listener) = current() {
        let _inside = listener.active_calls.enter();
        if !current().is_some_and(|current| std::ptr::eq(current, listener)) {
            continue;
        }
        if record.level() <= listener.level {
            // SAFETY: a function that C gave us for this, and its argument is good as long as
            // somebody is inside.
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

/// Text as C has it: a NUL within is shown, and does not end it.
fn c_string(text: String) -> CString {
    CString::new(text).unwrap_or_else(|error| {
        let shown = String::from_utf8_lossy(&error.into_vec()).replace('\0', "\\0");
        CString::new(shown).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nul_is_shown_and_nothing_is_cut() {
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
