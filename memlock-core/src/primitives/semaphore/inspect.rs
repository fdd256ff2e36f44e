//! A semaphore for tools and operators: its status, its waiters, and release by force.

use std::time::Duration;

use super::handle::Semaphore;
use super::manage::{Holder, Status};
use super::record::Record;
use super::wake::{reap, wake_next};
use crate::clock::whole_seconds;
use crate::error::Result;
use crate::owner::Token;
use crate::waiters::{self, Waiter};

impl Status {
    /// Parses an item that was read without the library, and that the server stores for `remaining`
    /// more; `None` if it is not a semaphore's.
    pub fn read(value: &[u8], remaining: Duration) -> Option<Status> {
        let record = Record::parse(value)?;
        Some(Status::of(&record, record.expires.saturating_sub(whole_seconds(remaining))))
    }

    /// The status by the record when the server's clock shows `now`.
    pub(super) fn of(record: &Record, now: u64) -> Status {
        let holders = record.holdings.iter().filter(|holding| holding.until > now).map(|holding| {
            let (host, pid, since) = holding.who();
            let remaining = Duration::from_secs(holding.until - now);
            Holder { token: holding.token, permits: holding.permits, host, pid, since, remaining }
        });
        Status {
            permits: record.permits,
            available: record.available(now),
            holders: holders.collect(),
        }
    }
}

impl Semaphore {
    /// The waiters in the queue, the next one first: one for all threads of a process that wait for
    /// one permit, and one for each that requests several, or has a priority. The result is already
    /// outdated when it returns. One round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) or
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol), as for any read.
    pub fn waiters(&self) -> Result<Vec<Waiter>> {
        waiters::waiters(&self.target)
            .map_err(|error| self.said("Looking at the waiters for", error))
    }

    /// Takes the permits away from the holder that [`Holder::token`] identifies: for operators who
    /// know that the holder is dead. False if it holds none any more. The old holder finds its
    /// permits lost.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable),
    /// [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) or
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol).
    pub fn force_release(&self, token: Token) -> Result<bool> {
        let taken = reap(&self.target, token)
            .map_err(|error| self.said("Releasing by force permits of", error))?;
        if taken {
            wake_next(&self.target);
        }
        Ok(taken)
    }
}
