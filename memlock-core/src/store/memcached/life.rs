//! One life of a memcached server: its versions, and the fences made of them.
//!
//! A fence is `boot time in µs + cas`. It rises from holder to holder and across restarts, as long
//! as the server stores fewer than a million items a second on average and its clock is not set
//! back. Servers from 1.6.24 on draw the cas of a store before they lock the item, so that a later
//! store may get a lower one. For these servers a *stamp* follows the requests that need a fence,
//! in the same packet: a number that is incremented by 0, whose cas is drawn under a lock.

use std::time::Duration;

use crate::mutation::{self, Mutation};
use crate::store::{Epoch, Op, Reply, Version};

/// Identifies one life of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Life {
    /// When the server started, in Unix seconds of its own clock.
    pub boot: u64,
    /// The server's process id, which distinguishes two lives that began in the same second.
    pub pid: u64,
}

impl Life {
    /// The epoch of all versions that the server gives in this life.
    pub fn epoch(self) -> Epoch {
        Epoch::new(self.boot, self.pid)
    }

    /// How old a server is at least that tells this uptime in seconds. The uptime begins at 2, and
    /// counts the whole seconds of the host's clock that have begun since: a server that was started
    /// at the end of a second tells almost a second too much (0.99 s, measured on 1.6.18).
    pub fn age(uptime: u64) -> Duration {
        let ahead = if mutation::has(Mutation::BelieveTheUptime) { 2 } else { 3 };
        Duration::from_secs(uptime.saturating_sub(ahead))
    }

    /// The version with this cas id.
    pub fn version(self, cas: u64) -> Version {
        Version::new(self.epoch(), cas)
    }

    /// The fence for a cas id.
    pub fn fence(self, cas: u64) -> u64 {
        if mutation::has(Mutation::FenceWithoutBoot) {
            return cas;
        }
        self.boot.saturating_mul(1_000_000).saturating_add(cas)
    }

    /// Writes the fences into the replies whose operations requested one: the fence of the stamp
    /// that followed them, if there was one.
    pub fn fill_in_fences(self, ops: &[Op<'_>], replies: &mut [Reply], stamp: Option<u64>) {
        let stamp = stamp.filter(|_| !mutation::has(Mutation::FenceWithoutStamp));
        for (op, reply) in ops.iter().zip(replies) {
            let (version, fence) = match reply {
                Reply::Stored(stored) => (stored.version, &mut stored.fence),
                Reply::Value(item) => (item.version, &mut item.fence),
                _ => continue,
            };
            if op.wants_fence() {
                *fence = self.fence(stamp.unwrap_or(version.number()));
            }
        }
    }
}
