//! Partitions: between which hosts and servers nothing gets through.

use std::collections::BTreeMap;

use crate::scenario::Direction;
use crate::time::Nanos;

/// Until when what is sent between a host and a server is dropped.
#[derive(Clone, Copy, Debug, Default)]
struct Cut {
    requests: Nanos,
    replies: Nanos,
}

#[derive(Debug, Default)]
pub(crate) struct Partitions(BTreeMap<(usize, usize), Cut>);

impl Partitions {
    pub(super) fn begin(&mut self, host: usize, site: usize, direction: Direction, until: Nanos) {
        let cut = self.0.entry((host, site)).or_default();
        if direction != Direction::Back {
            cut.requests = cut.requests.max(until);
        }
        if direction != Direction::Out {
            cut.replies = cut.replies.max(until);
        }
    }

    /// Until when requests of the host do not reach the server.
    pub(super) fn requests(&self, host: usize, site: usize) -> Nanos {
        self.0.get(&(host, site)).map_or(0, |cut| cut.requests)
    }

    /// Until when replies of the server do not reach the host.
    pub(super) fn replies(&self, host: usize, site: usize) -> Nanos {
        self.0.get(&(host, site)).map_or(0, |cut| cut.replies)
    }
}
