//! What every entry point goes through.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use memlock_core::{Answer, Error, ErrorKind, Report, Result, Wait};

use crate::cancellation;

/* The answers. Above zero: an ordinary "no". Below zero: a failure, of which memlock_last_error() tells more.
 * The numbers are fixed; the number of an answer that is withdrawn is not given to another. */

/// Done.
pub const MEMLOCK_OK: c_int = 0;
/// Another holder has it, and the call was told not to wait.
pub const MEMLOCK_BUSY: c_int = 1;
/// The limit of the wait passed.
pub const MEMLOCK_TIMED_OUT: c_int = 2;
/// The key was in the list already.
pub const MEMLOCK_DUPLICATE: c_int = 3;
/// The session or semaphore was set up already, and the caller is in it: carry on.
pub const MEMLOCK_EXISTS: c_int = 4;
/// This process holds no such lock or permit.
pub const MEMLOCK_NOT_HELD: c_int = 5;
/// It was ours, and was no longer when we got there: the lease ran out, or the server lost the
/// item.
pub const MEMLOCK_LOST: c_int = 6;
/// No such session or semaphore: never set up, expired or torn down.
pub const MEMLOCK_NOT_FOUND: c_int = 7;
/// The wait was cancelled.
pub const MEMLOCK_INTERRUPTED: c_int = 8;
/// NULL, an empty or over-long name, a duration below 1 s or too large.
pub const MEMLOCK_INVALID: c_int = -1;
/// No server could be reached; nothing was changed.
pub const MEMLOCK_UNREACHABLE: c_int = -2;
/// Sent, no answer came, and reading back failed too.
pub const MEMLOCK_UNKNOWN: c_int = -3;
/// The server is too old, runs without cas, refused the request or answered nonsense.
pub const MEMLOCK_PROTOCOL: c_int = -4;
/// A bad URL or setting.
pub const MEMLOCK_CONFIG: c_int = -5;
/// This thread already holds that bare mutex.
pub const MEMLOCK_DEADLOCK: c_int = -6;
/// A bug in memlock was caught; please report it.
pub const MEMLOCK_INTERNAL: c_int = -7;

/// The longest sentence that is kept, its NUL included.
const SENTENCE_SIZE: usize = 1024;

thread_local! {
    /// A fixed place, so that the pointer that C has stays good: `printf("%d %s", mutex_lock(…),
    /// memlock_last_error())` may ask for the sentence first. Without a destructor, so that it is
    /// there in a thread's last moments too.
    static LAST_ERROR: Cell<[u8; SENTENCE_SIZE]> = const { Cell::new([0; SENTENCE_SIZE]) };
}

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };

/// One or more sentences about what the last call of this thread answered: which lock, which
/// server, what happened and, where that was read, who holds it. Empty after MEMLOCK_OK.
///
/// Every call that answers a number sets it: to a sentence, or to nothing after MEMLOCK_OK. So it
/// is never of an earlier call; copy it before the next one. Calls that give back no answer leave
/// it as it is: those that close a handle, memlock_lock_is_held(), memlock_permit_is_held(),
/// memlock_version(), memlock_describe() and this one.
///
/// The pointer is valid until the thread ends, and the same each time. Never NULL. At most 1023
/// bytes, in UTF-8.
#[unsafe(no_mangle)]
pub extern "C" fn memlock_last_error() -> *const c_char {
    LAST_ERROR.with(|last| last.as_ptr().cast_const().cast())
}

/// The version of the library, such as "0.1.0". Never NULL; valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn memlock_version() -> *const c_char {
    VERSION.as_ptr()
}

/// An answer in one plain English sentence. Never NULL; valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn memlock_describe(answer: c_int) -> *const c_char {
    Answer::from_code(answer).map_or(c"That is no answer of memlock.", Answer::describe).as_ptr()
}

/// Runs an entry point's body: turns what it answers into a number and the last error's sentence,
/// and stops a panic, which must not unwind into C. A cancellation of the thread acts when
/// everything is done.
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
            let text = format!("A bug in memlock was caught: {}.", said(panic.as_ref()));
            Report::new(Answer::Internal, text)
        }
    };
    // What a callback did meanwhile has left its own sentence.
    LAST_ERROR.with(|last| {
        let room: &Cell<[u8]> = last;
        let sentence = if report == Answer::Ok { "".into() } else { report.sentence() };
        store(&sentence, room.as_slice_of_cells());
    });
    report.answer().code()
}

/// Writes a sentence as C has it: without NULs, cut to fit at a character's boundary, and ended by
/// one NUL.
fn store(sentence: &str, room: &[Cell<u8>]) {
    if sentence.contains('\0') {
        return store(&sentence.replace('\0', ""), room);
    }
    let mut end = sentence.len().min(SENTENCE_SIZE - 1);
    while !sentence.is_char_boundary(end) {
        end -= 1;
    }
    room.iter().zip(&sentence.as_bytes()[..end]).for_each(|(place, &byte)| place.set(byte));
    room[end].set(0);
}

/// For entry points that answer nothing: as [`enter`], and leaves the last error as it is.
#[inline(always)]
pub(crate) fn quietly(body: impl FnOnce()) {
    let before = cancellation::disable();
    contained(body);
    cancellation::restore(before);
}

/// Stops a panic.
pub(crate) fn contained(body: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(body));
}

fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "a panic without words",
    }
}

/// A NUL-terminated string that C lends us.
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

/// An URL that C lends us.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn url<'a>(pointer: *const c_char) -> Result<&'a str> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { text(pointer, "url") }?;
    std::str::from_utf8(bytes).map_err(|_| Error::new(ErrorKind::Config, "The URL is not UTF-8."))
}

/// Bytes that C lends us.
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

/// A handle that C lends us.
///
/// # Safety
/// `pointer` is NULL or came from [`give`] and was not taken back.
pub(crate) unsafe fn lent<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what))
}

/// A handle that C lends us for ourselves alone.
///
/// # Safety
/// As [`lent`], and nobody else uses it during the call.
pub(crate) unsafe fn lent_mut<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(what))
}

/// A place for an answer, which may hold anything before.
///
/// # Safety
/// `pointer` is NULL or writable.
pub(crate) unsafe fn put<T>(pointer: *mut T, value: T, what: &str) -> Result<()> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: not NULL, and writable by the caller's promise. What was there before is not read.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Makes a handle that C owns from now on.
pub(crate) fn give<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// Takes a handle back from C; `None` for NULL.
///
/// # Safety
/// `pointer` is NULL or came from [`give`] and was not taken back before.
pub(crate) unsafe fn take_back<T>(pointer: *mut T) -> Option<Box<T>> {
    // SAFETY: not NULL here, and the rest is the caller's promise.
    (!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer) })
}

/// A lease or duration in milliseconds; what is too short or too long is found out further down.
pub(crate) fn millis(millis: i64) -> Result<Duration> {
    u64::try_from(millis)
        .map(Duration::from_millis)
        .map_err(|_| invalid(format!("The duration of {millis} ms is negative.")))
}

/// Burton's durations: seconds.
pub(crate) fn seconds(seconds: libc::time_t) -> Result<Duration> {
    u64::try_from(seconds)
        .map(Duration::from_secs)
        .map_err(|_| invalid(format!("The duration of {seconds} s is negative.")))
}

/// How long to wait, as C says it.
pub(crate) fn limit<'a>(wait_ms: i64) -> Result<Wait<'a>> {
    match u64::try_from(wait_ms) {
        Ok(limit) => Ok(Wait::at_most(Duration::from_millis(limit))),
        Err(_) if wait_ms == -1 => Ok(Wait::FOREVER),
        Err(_) => {
            Err(invalid(format!("wait_ms is {wait_ms}: give 0, -1 or a time in milliseconds.")))
        }
    }
}

/// For how long to wait where nothing but time ends it; `None`: for ever.
pub(crate) fn span(wait_ms: i64) -> Result<Option<Duration>> {
    match wait_ms {
        -1 => Ok(None),
        0.. => millis(wait_ms).map(Some),
        _ => Err(invalid(format!("wait_ms is {wait_ms}: give 0, -1 or a time in milliseconds."))),
    }
}

/// A time as C gets it.
pub(crate) fn to_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Text in a fixed room, cut to fit and always ended by NUL.
pub(crate) fn fixed<const SIZE: usize>(text: &str) -> [c_char; SIZE] {
    let mut room = [0; SIZE];
    for (place, byte) in room.iter_mut().zip(text.bytes().take(SIZE - 1)) {
        *place = byte as c_char;
    }
    room
}

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

fn null(what: &str) -> Error {
    invalid(format!("The argument \"{what}\" is NULL."))
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
            let mut room = [1; SENTENCE_SIZE];
            store(sentence, Cell::from_mut(&mut room[..]).as_slice_of_cells());
            let text = CStr::from_bytes_until_nul(&room).unwrap().to_str().unwrap();
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
