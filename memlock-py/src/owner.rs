//! `memlock.Owner`: who was seen to hold a mutex.

use pyo3::prelude::*;

/// Who was seen to hold a mutex. Of a plain memcached client only `value` and `token` are known. Two
/// are equal if they are the same acquisition, whenever they were seen.
#[pyclass(frozen, eq, get_all, module = "memlock")]
pub(crate) struct Owner {
    /// The holder's host name.
    host: Option<String>,
    /// The holder's process id on that host.
    pid: Option<u32>,
    /// When it acquired the lock, in Unix seconds of its own clock.
    since: Option<u64>,
    /// Names this acquisition, for Mutex.force_unlock().
    token: String,
    /// The lock's item as it is on the server: bytes.
    value: Vec<u8>,
    /// For how many seconds the server keeps it yet, give or take one; None: for ever.
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
