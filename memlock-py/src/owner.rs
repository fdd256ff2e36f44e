//! `memlock.Owner`: the holder of a mutex, as read from the server.

use pyo3::prelude::*;

/// The holder of a mutex, as read from the server. If the holder does not use memlock,
/// only `value`, `token` and `remaining` are known. Two are equal if they are the same acquisition,
/// whenever they were seen.
#[pyclass(frozen, eq, get_all, module = "memlock")]
pub(crate) struct Owner {
    /// The holder's host name.
    host: Option<String>,
    /// The holder's process id on that host.
    pid: Option<u32>,
    /// The time of the acquisition in Unix seconds, by the holder's clock.
    since: Option<u64>,
    /// Identifies this acquisition, for Mutex.force_unlock().
    token: String,
    /// The value of the lock's item on the server: bytes.
    value: Vec<u8>,
    /// The time until the mutex expires on the server, in seconds, accurate to one second; None:
    /// never.
    remaining: Option<f64>,
}

impl PartialEq for Owner {
    fn eq(&self, other: &Owner) -> bool {
        self.token == other.token
    }
}

impl From<memlock_core::mutex::Owner> for Owner {
    fn from(owner: memlock_core::mutex::Owner) -> Owner {
        let token = owner.token();
        let remaining = owner.remaining.map(|remaining| remaining.as_secs_f64());
        let (host, pid, since) = match owner.record {
            Some(record) => (Some(record.host), Some(record.pid), Some(record.since)),
            None => (None, None, None),
        };
        Owner { host, pid, since, token, value: owner.value, remaining }
    }
}

#[pymethods]
impl Owner {
    fn __repr__(&self) -> String {
        match (&self.host, self.pid, self.since) {
            (Some(host), Some(pid), Some(since)) => {
                let token = &self.token;
                format!("<memlock.Owner host={host:?} pid={pid} since={since} token={token:?}>")
            }
            _ => format!("<memlock.Owner of another kind, token={:?}>", self.token),
        }
    }
}
