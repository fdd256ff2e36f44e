//! `memlock.Holder`: who was seen to hold permits of a semaphore.

use pyo3::prelude::*;

/// Who was seen to hold permits of a semaphore.
#[pyclass(frozen, eq, get_all, module = "memlock")]
#[derive(PartialEq)]
pub(crate) struct Holder {
    /// Names this acquisition, as Permit.token does.
    token: String,
    /// The holder's host name, cut at 32 characters.
    host: String,
    /// The holder's process id on that host.
    pid: u32,
    /// When it acquired them, in Unix seconds of its own clock.
    since: u64,
    /// How many permits it holds.
    permits: u32,
    /// For how many seconds the server keeps them for it yet, at most.
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
