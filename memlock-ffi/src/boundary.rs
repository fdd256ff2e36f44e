//! Common code of all entry points.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use memlock_core::{Answer, Error, ErrorKind, Report, Result, Wait};

use crate::cancellation;

/* The answers. Above zero: an expected negative result. Below zero: a failure; memlock_last_error()
 * describes it. The numbers are fixed; the number of a withdrawn answer is never reused. */

/// Success.
pub const MEMLOCK_OK: c_int = 0;
/// Another holder has the lock or the permits, and the call did not wait (timeout 0).
pub const MEMLOCK_BUSY: c_int = 1;
/// The timeout expired before the lock or the permits were available.
pub const MEMLOCK_TIMED_OUT: c_int = 2;
/// The key is already in the list.
pub const MEMLOCK_DUPLICATE: c_int = 3;
/// The session or semaphore was already set up, and the caller has joined it. Not a failure.
pub const MEMLOCK_EXISTS: c_int = 4;
/// This process does not hold the lock or permit.
pub const MEMLOCK_NOT_HELD: c_int = 5;
/// This process held the lock or permit and has lost it: the lease expired, or the server lost the
/// item. From memlock_lock_check(), memlock_lock_lost() and their like it means that the holder
/// must not rely on the lock or permit any more. From a release or an extension it means that the
/// server does not have it for this holder any more, so another holder may have had it meanwhile.
///
/// A server may keep a lock or permit for some seconds longer than its lease. A release or an
/// extension in that time may return MEMLOCK_OK, except for a lease that is renewed automatically.
/// Then no other holder has had the lock or permit in between.
pub const MEMLOCK_LOST: c_int = 6;
/// There is no such session or semaphore: it was never set up, has expired or was torn down.
pub const MEMLOCK_NOT_FOUND: c_int = 7;
/// The wait was cancelled; nothing is held.
pub const MEMLOCK_INTERRUPTED: c_int = 8;
/// The server was started a short while ago and has forgotten what was held, which its holders put
/// back: it gives no new locks or permits yet, and the call was not to wait. memlock_last_error()
/// tells how long that takes. Only with `guard=` in the URL.
pub const MEMLOCK_RECOVERING: c_int = 9;
/// An invalid argument: NULL, an empty or over-long name, a duration below 1 s or too long.
pub const MEMLOCK_INVALID: c_int = -1;
/// No server could be reached. Nothing was changed.
pub const MEMLOCK_UNREACHABLE: c_int = -2;
/// The request was sent, no reply arrived, and reading the item back failed too: the outcome is
/// unknown.
pub const MEMLOCK_UNKNOWN: c_int = -3;
/// The server is too old, runs without cas, refused the request or sent an invalid reply.
pub const MEMLOCK_PROTOCOL: c_int = -4;
/// An invalid URL or setting.
pub const MEMLOCK_CONFIG: c_int = -5;
/// The caller already holds what it asks for, and would wait for itself: a bare mutex, or what it
/// has bound by memlock_lock_bind() or memlock_permit_bind().
pub const MEMLOCK_DEADLOCK: c_int = -6;
/// A bug in memlock was caught. Please report it.
pub const MEMLOCK_INTERNAL: c_int = -7;

/// The maximum size of an error message, including the NUL.
const SENTENCE_SIZE: usize = 1024;

thread_local! {
    /// A fixed location, so that C's pointer stays valid: `printf("%d %s", mutex_lock(…),
    /// memlock_last_error())` may evaluate the second call first. It has no destructor, so that it
    /// is available while the thread exits.
    static LAST_ERROR: Cell<[u8; SENTENCE_SIZE]> = const { Cell::new([0; SENTENCE_SIZE]) };
}

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };

/// One or more sentences about the result of this thread's last call: what happened and, if known,
/// the lock, the server and the holder. Empty after MEMLOCK_OK.
///
/// Every call that returns an answer sets this message, and clears it on MEMLOCK_OK, so it never
/// belongs to an earlier call. Copy the message before the next call. Functions that return no
/// answer do not change it: those that close a handle, memlock_lock_is_held(),
/// memlock_permit_is_held(), memlock_version(), memlock_describe() and memlock_last_error() itself.
///
/// The pointer is never NULL, is the same for every call of a thread, and is valid until the thread
/// ends. The message is UTF-8, at most 1023 bytes. Thread-safe: each thread has its own message.
#[unsafe(no_mangle)]
pub extern "C" fn memlock_last_error() -> *const c_char {
    LAST_ERROR.with(|last| last.as_ptr().cast_const().cast())
}

/// The version of the library, such as "0.1.0". Never NULL; the pointer is always valid.
#[unsafe(no_mangle)]
pub extern "C" fn memlock_version() -> *const c_char {
    VERSION.as_ptr()
}

/// Describes an answer in one sentence, without naming a lock or a server. Never NULL; the pointer
/// is always valid.
#[unsafe(no_mangle)]
pub extern "C" fn memlock_describe(answer: c_int) -> *const c_char {
    Answer::from_code(answer).map_or(c"Not an answer of memlock.", Answer::describe).as_ptr()
}

/// Runs the body of an entry point. Converts the result into an answer number and the last error's
/// message, and stops panics, which must not unwind into C. A pending cancellation of the thread
/// acts after the body has completed.
#[inline(always)]
pub(crate) fn enter<R: Into<Report>>(body: impl FnOnce() -> Result<R>) -> c_int {
    let before = cancellation::disable();
    let answer = answer(body);
    cancellation::restore(before);
    answer
}

fn answer<R: Into<Report>>(body: impl FnOnce() -> Result<R>) -> c_int {
    let report = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(answer)) => answer.into(),
        Ok(Err(error)) => error.into(),
        Err(panic) => {
            let text = format!("A bug in memlock was caught: {}.", panic_message(panic.as_ref()));
            Report::new(Answer::Internal, text)
        }
    };
    // Set last, because a callback during the body may have set its own message.
    LAST_ERROR.with(|last| {
        let buffer: &Cell<[u8]> = last;
        let sentence = if report == Answer::Ok { "".into() } else { report.sentence() };
        store(&sentence, buffer.as_slice_of_cells());
    });
    report.answer().code()
}

/// Writes a message as a C string: without embedded NULs, truncated at a character boundary, and
/// terminated by one NUL.
fn store(sentence: &str, buffer: &[Cell<u8>]) {
    if sentence.contains('\0') {
        return store(&sentence.replace('\0', ""), buffer);
    }
    let mut end = sentence.len().min(SENTENCE_SIZE - 1);
    while !sentence.is_char_boundary(end) {
        end -= 1;
    }
    buffer.iter().zip(&sentence.as_bytes()[..end]).for_each(|(cell, &byte)| cell.set(byte));
    buffer[end].set(0);
}

/// For entry points that return no answer: like [`enter`], but leaves the last error unchanged.
#[inline(always)]
pub(crate) fn quietly(body: impl FnOnce()) {
    let before = cancellation::disable();
    contained(body);
    cancellation::restore(before);
}

/// Runs `body` and stops a panic.
pub(crate) fn contained(body: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(body));
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "a panic without a message",
    }
}

/// A NUL-terminated string, borrowed from C.
///
/// # Safety
/// `pointer` is NULL or a NUL-terminated string that lives as long as `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a [u8]> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: not NULL, and the rest is the caller's promise.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// A URL, borrowed from C.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn url<'a>(pointer: *const c_char) -> Result<&'a str> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { text(pointer, "url") }?;
    std::str::from_utf8(bytes)
        .map_err(|_| Error::new(ErrorKind::Config, "The URL is not valid UTF-8."))
}

/// Bytes, borrowed from C.
///
/// # Safety
/// `data` is NULL or points to `len` readable bytes that live as long as `'a`.
pub(crate) unsafe fn bytes<'a>(data: *const c_char, len: usize, what: &str) -> Result<&'a [u8]> {
    if data.is_null() {
        return Err(null(what));
    }
    if isize::try_from(len).is_err() {
        return Err(invalid(format!("The length of {what} is not possible: {len}.")));
    }
    // SAFETY: not NULL, a possible length, and the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

/// A handle, borrowed from C.
///
/// # Safety
/// `pointer` is NULL or came from [`give`] and was not taken back.
pub(crate) unsafe fn lent<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what))
}

/// A handle, borrowed exclusively from C.
///
/// # Safety
/// As [`lent`], and no other thread uses it during the call.
pub(crate) unsafe fn lent_mut<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(what))
}

/// Writes a result to an out parameter, which may be uninitialised before.
///
/// # Safety
/// `pointer` is NULL or writable.
pub(crate) unsafe fn put<T>(pointer: *mut T, value: T, what: &str) -> Result<()> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: not NULL, and writable by the caller's promise. The previous value is not read.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Makes a handle that is owned by C.
pub(crate) fn give<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// Takes ownership of a handle back from C; `None` for NULL.
///
/// # Safety
/// `pointer` is NULL or came from [`give`] and was not taken back before.
pub(crate) unsafe fn take_back<T>(pointer: *mut T) -> Option<Box<T>> {
    // SAFETY: checked against NULL, and the rest is the caller's promise.
    (!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer) })
}

/// A lease or duration in milliseconds. The core checks the range.
pub(crate) fn millis(millis: i64) -> Result<Duration> {
    u64::try_from(millis).map(Duration::from_millis).map_err(|_| {
        invalid(format!("The duration of {millis} ms is negative: give a positive one."))
    })
}

/// A duration of the bare functions, in seconds.
#[cfg(feature = "bare-names")]
pub(crate) fn seconds(seconds: libc::time_t) -> Result<Duration> {
    u64::try_from(seconds).map(Duration::from_secs).map_err(|_| {
        invalid(format!("The duration of {seconds} s is negative: give a positive one."))
    })
}

/// The timeout of a call, as C passes it.
pub(crate) fn limit<'a>(timeout_ms: i64) -> Result<Wait<'a>> {
    match u64::try_from(timeout_ms) {
        Ok(limit) => Ok(Wait::at_most(Duration::from_millis(limit))),
        Err(_) if timeout_ms == -1 => Ok(Wait::FOREVER),
        Err(_) => Err(invalid(format!(
            "timeout_ms is {timeout_ms}: give 0, -1 or a time in milliseconds."
        ))),
    }
}

/// The timeout of a wait that cannot be cancelled; `None`: no timeout.
pub(crate) fn span(timeout_ms: i64) -> Result<Option<Duration>> {
    match timeout_ms {
        -1 => Ok(None),
        0.. => millis(timeout_ms).map(Some),
        _ => Err(invalid(format!(
            "timeout_ms is {timeout_ms}: give 0, -1 or a time in milliseconds."
        ))),
    }
}

/// A duration as C receives it.
pub(crate) fn to_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Text in a fixed-size array, truncated if necessary and always terminated by NUL.
pub(crate) fn fixed<const SIZE: usize>(text: &str) -> [c_char; SIZE] {
    let mut buffer = [0; SIZE];
    for (slot, byte) in buffer.iter_mut().zip(text.bytes().take(SIZE - 1)) {
        *slot = byte as c_char;
    }
    buffer
}

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

fn null(what: &str) -> Error {
    invalid(format!("The argument \"{what}\" is NULL: pass a valid pointer."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_numbers_are_the_answers_numbers() {
        let named = [
            MEMLOCK_OK,
            MEMLOCK_BUSY,
            MEMLOCK_TIMED_OUT,
            MEMLOCK_DUPLICATE,
            MEMLOCK_EXISTS,
            MEMLOCK_NOT_HELD,
            MEMLOCK_LOST,
            MEMLOCK_NOT_FOUND,
            MEMLOCK_INTERRUPTED,
            MEMLOCK_RECOVERING,
            MEMLOCK_INVALID,
            MEMLOCK_UNREACHABLE,
            MEMLOCK_UNKNOWN,
            MEMLOCK_PROTOCOL,
            MEMLOCK_CONFIG,
            MEMLOCK_DEADLOCK,
            MEMLOCK_INTERNAL,
        ];
        assert_eq!(named, Answer::ALL.map(Answer::code));
    }

    #[test]
    fn a_sentence_always_fits_and_ends() {
        for sentence in ["", "a\0b", &"x".repeat(5000), &"ü".repeat(600)] {
            let mut buffer = [1; SENTENCE_SIZE];
            store(sentence, Cell::from_mut(&mut buffer[..]).as_slice_of_cells());
            let text = CStr::from_bytes_until_nul(&buffer).unwrap().to_str().unwrap();
            assert!(sentence.replace('\0', "").starts_with(text));
        }
    }

    #[test]
    fn a_panic_stops_at_the_boundary() {
        assert_eq!(enter(|| -> Result<Answer> { panic!("oh {}", "no") }), MEMLOCK_INTERNAL);
        // SAFETY: the last error is a string of this thread.
        let sentence = unsafe { CStr::from_ptr(memlock_last_error()) };
        assert!(sentence.to_string_lossy().contains("oh no"));
    }
}
