//! A semaphore at the time of a read: the content of its item, and what the server's clock showed.

use std::time::Duration;

use super::record::{MOST_HOLDERS, Record};
use crate::clock::{Moment, whole_seconds};
use crate::error::{Error, Result};
use crate::lease::{DRIFT, Lease};
use crate::mutation::{self, Mutation};
use crate::owner::Token;
use crate::report::ObservedHolder;
use crate::store::{Epoch, Guarantees, Item, Version};
use crate::target::Target;

/// A record that was read this long ago, or less, is recent: a lease may be counted from then.
const RECENT: Duration = Duration::from_millis(50);

/// A record that was read longer ago is not replaced without another read.
const STALE: Duration = Duration::from_secs(60);

/// The state of a semaphore at a refusal.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    /// The number of permits, and how many of them were available.
    pub(super) permits: u32,
    pub(super) available: u32,
    pub(super) holder: ObservedHolder,
    /// Whether the number of holders is at its maximum.
    pub(super) is_full: bool,
    /// Whether the server gave no new permits yet.
    pub(super) recovers: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) record: Record,
    pub(crate) version: Version,
    /// What the server's clock showed.
    pub(crate) now: u64,
    /// When the request was sent.
    pub(crate) sent: Moment,
    /// How long the reply took.
    pub(crate) took: Duration,
    /// When an earlier read was sent that was slow, and because of which this one was sent.
    pub(crate) first: Option<Moment>,
    pub(crate) guarantees: Guarantees,
    /// Until when the server recovers in the life that has the record: no permits are granted.
    pub(crate) recovers_until: Moment,
}

/// The semaphore of held permits, as it was when they were last confirmed there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Confirmation {
    /// The token of the semaphore.
    pub(super) of: Token,
    /// The life of the server.
    pub(super) life: Epoch,
    /// How many permits the semaphore has: if it is forgotten, it is set up with as many.
    pub(super) number: u32,
}

impl Snapshot {
    /// That the permits in this record are held.
    pub(super) fn confirmation(&self) -> Confirmation {
        let Snapshot { record, version, .. } = self;
        Confirmation { of: record.token, life: version.epoch(), number: record.permits }
    }

    /// Parses an item that was requested at `sent` and received at `came`.
    pub(super) fn read(
        target: &Target,
        item: &Item,
        sent: Moment,
        came: Moment,
    ) -> Result<Snapshot> {
        let record = Record::parse(&item.value);
        let (Some(record), Some(remaining)) = (record, item.remaining) else {
            return Err(Error::protocol(format!(
                "The item {} is not one that memlock set up: another program uses that name.",
                target.key
            )));
        };
        Ok(Snapshot::of(target, record, item.version, remaining, (sent, came)))
    }

    /// The snapshot of a record that was just written, and read back.
    pub(super) fn again(
        target: &Target,
        record: Record,
        item: &Item,
        sent: Moment,
        came: Moment,
    ) -> Option<Snapshot> {
        Some(Snapshot::of(target, record, item.version, item.remaining?, (sent, came)))
    }

    fn of(
        target: &Target,
        record: Record,
        version: Version,
        remaining: Duration,
        (sent, came): (Moment, Moment),
    ) -> Snapshot {
        // The item expires when the server's clock shows `expires`.
        let now = record.expires.saturating_sub(whole_seconds(remaining));
        let guarantees = *target.context.guarantees();
        let recovers_until = match target.context.recovers_for(target.route, version.epoch()) {
            // Also at moments that were read before this one.
            Duration::ZERO => Moment::from_boot(Duration::ZERO),
            left => target.now() + left,
        };
        Snapshot {
            record,
            version,
            now,
            sent,
            took: came.since(sent),
            first: None,
            guarantees,
            recovers_until,
        }
    }

    /// Whether the server grants nothing new yet at this moment.
    pub(super) fn recovers(&self, at: Moment) -> bool {
        at < self.recovers_until
    }

    /// How many permits can be acquired.
    pub(super) fn available(&self, at: Moment) -> u32 {
        if self.recovers(at) { 0 } else { self.record.available(self.now) }
    }

    /// How many permits a waiter can acquire.
    pub(super) fn capacity(&self, at: Moment) -> u32 {
        if self.recovers(at) { 0 } else { self.record.capacity(self.now) }
    }

    /// How long it takes at most until so many permits are available.
    pub(super) fn available_in(&self, wanted: u32, at: Moment) -> Option<Duration> {
        let recovery = self.recovers_until.since(at);
        if !recovery.is_zero() && self.record.available(self.now) >= wanted {
            return Some(recovery);
        }
        let end = self.record.available_at(wanted, self.now)?;
        Some(Duration::from_secs(end - self.now).max(recovery))
    }

    /// What a refused acquisition reports.
    pub(super) fn refusal(&self, at: Moment) -> Refusal {
        let Snapshot { record, now, .. } = self;
        let (available, is_full) = (self.available(at), !record.has_room(*now));
        let mut live = record.holdings.iter().filter(|holding| holding.until > *now);
        let holder = match live.next() {
            _ if self.recovers(at) => ObservedHolder::Recovering(self.recovers_until.since(at)),
            _ if is_full && available > 0 => ObservedHolder::TooMany(MOST_HOLDERS),
            Some(first) => {
                let (host, pid, _) = first.who();
                ObservedHolder::Memlock { host, pid, others: live.count() }
            }
            None => ObservedHolder::Unknown,
        };
        let recovers = self.recovers(at);
        Refusal { permits: record.permits, available, holder, is_full, recovers }
    }

    /// Whether the reply took so long that the server may have been stopped, and its clock with it.
    pub(super) fn is_slow(&self) -> bool {
        self.guarantees.is_suspicious(self.took)
    }

    /// Whether the record may be replaced without another read.
    pub(super) fn is_usable(&self, now: Moment) -> bool {
        now.since(self.sent) <= STALE && !self.is_slow()
    }

    /// Until when the server is guaranteed to keep the permits of this token.
    pub(super) fn keeps_until(&self, token: Token) -> Moment {
        let until = self.record.held_by(token).map_or(0, |holding| holding.until);
        let left = Duration::from_secs(until.saturating_sub(self.now));
        let came = self.sent + self.took;
        self.guarantees.kept_until(left, self.sent, came, self.first).unwrap_or(self.sent)
    }

    /// The second of the server's clock until which a lease lasts that is requested now, and from
    /// when its holder has to count it.
    ///
    /// The server's clock may be almost two seconds behind when it is read, and is never ahead. A
    /// lease that ends when the clock shows `now + ceil(lease) + 2` therefore lasts longer than the
    /// requested lease. See `lease` for the seconds and for drift.
    pub(super) fn lease(&self, lease: Lease, now: Moment) -> (u64, Moment) {
        let passed = now.since(self.sent);
        if passed <= RECENT {
            let kept = if mutation::has(Mutation::PermitOfTheLease) {
                lease.duration().as_secs()
            } else {
                self.guarantees.covering_seconds(lease.duration())
            };
            return (self.now.saturating_add(kept), self.sent);
        }
        let passed =
            if mutation::has(Mutation::PermitFromOldTime) { Duration::ZERO } else { passed };
        let kept = passed + passed / DRIFT as u32 + lease.duration();
        (self.now.saturating_add(self.guarantees.covering_seconds(kept)), now)
    }
}
