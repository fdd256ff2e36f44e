//! The numbers of the answers in a history: those of [`memlock_core::Answer`].

use memlock_core::{Release, Waited};

/// Done.
pub const OK: i32 = 0;
/// Another client has it, and the call was to try once.
pub const BUSY: i32 = 1;
/// The limit of the wait passed.
pub const TIMED_OUT: i32 = 2;
/// The key was in the list already.
pub const DUPLICATE: i32 = 3;
/// The session was set up already.
pub const EXISTS: i32 = 4;
/// Nothing was held.
pub const NOT_HELD: i32 = 5;
/// It was held, and was lost.
pub const LOST: i32 = 6;
/// There is no such session.
pub const NOT_FOUND: i32 = 7;
/// The wait was cancelled.
pub const INTERRUPTED: i32 = 8;
/// The server gives no new grants yet.
pub const RECOVERING: i32 = 9;
/// The server was not reached, and nothing was changed.
pub const UNREACHABLE: i32 = -2;
/// Whether anything was changed is not known.
pub const UNKNOWN: i32 = -3;
/// The server refused the request, or its reply made no sense.
pub const PROTOCOL: i32 = -4;

/// The number of a wait that brought nothing.
#[must_use]
pub fn refusal<T>(waited: &Waited<T>) -> i32 {
    match waited {
        Waited::Done(_) => OK,
        Waited::Busy => BUSY,
        Waited::TimedOut => TIMED_OUT,
        Waited::Interrupted => INTERRUPTED,
        Waited::Recovering => RECOVERING,
    }
}

/// The number of a release.
#[must_use]
pub fn release(released: Release) -> i32 {
    match released {
        Release::Released => OK,
        Release::Lost => LOST,
        Release::NotHeld => NOT_HELD,
    }
}
