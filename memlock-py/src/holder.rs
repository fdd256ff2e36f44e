//! `memlock.Holder`: a holder of permits of a semaphore, as read from the server.

use pyo3::prelude::*;

/// A holder of permits of a semaphore, as read from the server.
#[pyclass(frozen, eq, get_all, module = "memlock")]
#[derive(PartialEq)]
pub(crate) struct Holder {
    /// Identifies this acquisition, as Permit.token does.
    token: String,
    /// The holder's host name, truncated to 32 characters.
    host: String,
    /// The holder's process id on that host.
    pid: u32,
    /// The time of the acquisition in Unix seconds, by the holder's clock.
    since: u64,
    /// The number of permits that it holds.
    permits: u32,
    /// The time until the lease expires on the server, in seconds, at most.
    remaining: f64,
}

impl From<memlock_core::semaphore::Holder> for Holder {
    fn from(holder: memlock_core::semaphore::Holder) -> Holder {
        let token = holder.token.to_string();
        let remaining = holder.remaining.as_secs_f64();
        let memlock_core::semaphore::Holder { host, pid, since, permits, .. } = holder;
        Holder { token, host, pid, since, permits, remaining }
    }
}

#[pymethods]
impl Holder {
    fn __repr__(&self) -> String {
        let Holder { token, host, pid, since, permits, .. } = self;
        format!(
            "<memlock.Holder host={host:?} pid={pid} since={since} permits={permits} token={token:?}>"
        )
    }
}
