//! A server, and what befalls it.

use crate::server::Server;
use crate::time::Nanos;

#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) server: Server,
    /// The server is unreachable until then, because it restarts.
    pub(crate) down_until: Nanos,
    pub(crate) stalled_until: Nanos,
    /// From then on the server's clock is right again.
    pub(crate) clock_back: Nanos,
}

impl Site {
    pub(crate) fn new(server: Server) -> Site {
        Site { server, down_until: 0, stalled_until: 0, clock_back: 0 }
    }

    /// Whether the server runs.
    pub(crate) fn is_up(&self, now: Nanos) -> bool {
        self.down_until.max(self.stalled_until) <= now
    }
}
