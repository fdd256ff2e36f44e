//! How late the end of a holder's line may be.

use crate::time::{MILLI, Nanos, SECOND};

/// How long after the end of the lease, counted from when the write was sent, a line may end by a
/// clock that is never late, apart from the time that the read before it took.
///
/// A read that was sent at `l` and took `t` saw a server's clock that showed `n`, which it shows no
/// sooner than in its second `n`: so `n <= l + t`. A write that is sent at `w` sets the end to `n +
/// 2 + ceil(w - l + lease)`, and a little more for drift, because the lease must last even if the
/// clock was read at `l` and was two seconds behind. That is less than `l + t + 3 + w - l + lease =
/// w + lease + 3 + t`. A remembered read can be a minute old: the drift of two clocks in a minute,
/// 0.5 ms a second, is 30 ms. The server's clock shows the end up to a second and some milliseconds
/// later: so a dead holder's permits come back within the lease + 4.1 s + `t`.
pub(super) const AFTER_THE_LEASE: Nanos = 3 * SECOND + 30 * MILLI;

/// A slower read is not remembered.
pub(super) const REMEMBERED_READ: Nanos = 50 * MILLI;

/// A slower read is repeated before a write is based on it, also by the slowest clock.
pub(super) const SLOW_READ: Nanos = SECOND + SECOND / 5000;
