//! What a process knows of a server.

use std::time::Duration;

use memlock_core::clock::Moment;
use memlock_core::store::memcached::Life;
use memlock_core::store::recovery::Observed;

use crate::time::Nanos;

/// What a process knows of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Link {
    /// The life of the server that it is connected to.
    pub(crate) connected: Option<Life>,
    /// What it has seen of the server's recovery.
    pub(crate) observed: Observed,
    /// The server's clock in Unix seconds when the last connection was opened, and when that was.
    pub(crate) shown: Option<(u64, Moment)>,
    /// The last request timed out: until then the server counts as silent, unless it answers a
    /// probe.
    pub(crate) silent_until: Option<Moment>,
    pub(super) probe: Option<Probe>,
}

impl Link {
    /// The server's time, rather too late than too early; as stale as the connection.
    pub(crate) fn time(&self, now: Moment) -> Option<Duration> {
        let (shown, at) = self.shown?;
        let passed = now.since(at).as_secs();
        Some(Duration::from_secs(shown + passed + passed / 5000 + 2))
    }

    pub(crate) fn is_silent(&self, now: Moment) -> bool {
        self.silent_until.is_some_and(|until| now < until)
    }
}

/// A request whose reply nobody waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    pub(super) began: Moment,
    /// When the reply is there; `None`: the server accepted no connection, or the request was lost.
    pub(super) answered: Option<Nanos>,
}
