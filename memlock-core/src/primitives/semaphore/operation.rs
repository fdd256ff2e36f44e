//! An operation on a semaphore's record, and its outcome: plain data, so that any thread of the
//! process can perform it.

use super::snapshot::{Confirmation, Refusal};
use crate::clock::Moment;
use crate::error::Error;
use crate::guard::confirmed::Confirmed;
use crate::guard::renewal::renewable::Wanted;
use crate::lease::Lease;
use crate::mutation::{self, Mutation};
use crate::owner::Token;
use crate::store::{Epoch, Item, Version};
use crate::wait_id::WaitId;

/// One caller's part of a batch.
pub(super) struct Operation {
    pub(super) kind: Kind,
    /// When the caller's wait ends; `None`: never, or the caller tries once.
    pub(super) until: Option<Moment>,
    /// Set when a request with this operation got no reply, as long as that request may have been
    /// executed.
    pub(super) in_doubt: Option<Doubt>,
    /// Why the last request failed.
    pub(super) error: Option<Error>,
    /// How many requests have failed.
    pub(super) failures: usize,
    /// In how many batches another process was faster to write.
    pub(super) refused: usize,
}

pub(super) enum Kind {
    Acquisition(Acquisition),
    Release(Release),
    Extend(Extend),
}

#[derive(Clone, Copy)]
pub(crate) struct Acquisition {
    pub(super) token: Token,
    pub(super) permits: u32,
    pub(super) priority: i64,
    /// Whether the caller was woken, or is the first in the queue: it may take permits that are
    /// reserved for the first waiter.
    pub(super) called: bool,
    pub(super) lease: Lease,
    /// How many permits the semaphore has to have; `None`: any number.
    pub(super) expected: Option<u32>,
    /// With how many permits to set the semaphore up if there is none; `None`: not at all.
    pub(super) set_up_with: Option<u32>,
}

pub(super) struct Release {
    pub(super) token: Token,
    /// The ids of the holder's entries that may still be in the queue.
    pub(super) entry_ids: Vec<WaitId>,
    /// What is released if the server has forgotten it: nobody else had it until now.
    pub(super) reclaimable: Option<Reclaimable>,
}

pub(super) struct Extend {
    pub(super) renewing: Vec<Renewing>,
    pub(super) wanted: Option<Wanted>,
    /// The tokens whose permits were not in the record any more.
    pub(super) gone: Vec<Token>,
    /// The ends are moved later only.
    pub(super) keeps: bool,
}

impl Extend {
    /// Whether this holder still wants its permits, and its old lease still runs.
    pub(super) fn includes(&self, it: &Renewing, now: Moment) -> bool {
        now < it.old_deadline && self.wanted.as_ref().is_none_or(|wanted| wanted(it.token))
    }
}

/// What a holder may put back.
#[derive(Clone, Debug)]
pub(crate) struct Reclaimable {
    /// When they were last confirmed before this step: what another thread has put back since is not
    /// missing.
    pub(super) known: Confirmation,
    /// The same, as all threads note it.
    pub(super) confirmed: Confirmed<Confirmation>,
    pub(super) permits: u32,
    /// The end of the lease.
    pub(super) until: Moment,
}

impl Reclaimable {
    /// They were confirmed.
    pub(super) fn confirm(&mut self, there: Confirmation) {
        self.known = there;
        self.confirmed.set(there);
    }

    /// Whether the permits may be put back in this life of the server.
    pub(super) fn fits(&self, life: Epoch, now: Moment) -> bool {
        self.known.life != life && (now < self.until || mutation::has(Mutation::ReclaimLate))
    }
}

/// One holder's part of an extension.
#[derive(Clone)]
pub(crate) struct Renewing {
    pub(crate) token: Token,
    pub(super) lease: Lease,
    /// The end of the old lease: no request is sent after it.
    pub(crate) old_deadline: Moment,
    /// The end of the new lease, once it is written.
    pub(crate) deadline: Moment,
    /// What may be put back if the server has forgotten it.
    pub(super) reclaimable: Option<Reclaimable>,
}

/// The doubt about requests whose replies were lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    /// From when the first of them counts its lease.
    pub(super) since: Moment,
    /// When the last of them was sent.
    pub(super) until: Moment,
    /// Whether one of them was computed by a clock that may have been stopped.
    pub(super) slow: bool,
    /// The version that the last of them replaces, if it is executed.
    pub(super) version: Version,
}

/// The outcome of an operation.
pub(super) enum OperationOutcome {
    Granted {
        confirmed: Confirmation,
        permits: u32,
        /// From when the lease counts.
        counted_from: Moment,
        clock: ServerClock,
    },
    /// Not enough permits are available, or the wait has ended. `refusal`: the semaphore's state
    /// then, if it was read.
    NoRoom { refusal: Option<Refusal> },
    /// The semaphore has `number` permits, which is not the expected number, or less than are
    /// requested at once. `is_first`: the handle did not know the number when it was requested.
    Unfit { number: u32, is_first: bool },
    /// There is no such semaphore, and this caller cannot set it up.
    Missing,
    /// The permits were released. One caller of a batch has to wake the waiters for all of them.
    Released { wakes: Option<Wakes> },
    /// All permits that remain in [`Extend::renewing`] were extended. `asks`: the server may have
    /// been stopped when it sent its time, so each holder has to read until when its permits are
    /// stored.
    Extended { asks: bool },
    /// The permits were not in the record. `instead`: the token of the existing semaphore, and how
    /// many of its permits are available.
    Gone { instead: Option<(Token, u32)> },
    /// Nothing was sent for the operation, or it certainly changed nothing.
    Failed(Error),
    /// The operation may have been executed.
    Unresolved(Option<Error>),
}

/// Whether the server may have been stopped when it sent the time by which a lease was granted.
#[derive(Clone, Copy)]
pub(super) enum ServerClock {
    Runs,
    /// The server may have been stopped; the holder relies on the permits until this moment at
    /// most.
    KeepsUntil(Moment),
    /// The server may have been stopped; the holder has to read until when it keeps the permits.
    MayStand,
}

/// What is needed to wake waiters after a batch that released permits.
pub(crate) struct Wakes {
    /// The queue afterwards, if there is one.
    pub(super) queue: Option<Item>,
    /// How many permits are available.
    pub(super) capacity: u32,
    /// How many of them the batch released.
    pub(super) freed: u32,
    /// The ids of the releasers' entries in the queue.
    pub(super) entry_ids: Vec<WaitId>,
}

impl Operation {
    pub(super) fn new(kind: Kind, in_doubt: Option<Doubt>) -> Operation {
        Operation { kind, until: None, in_doubt, error: None, failures: 0, refused: 0 }
    }

    /// The token and the lease that may be granted.
    pub(super) fn acquires(&self) -> Option<(Token, Lease)> {
        match &self.kind {
            Kind::Acquisition(Acquisition { token, lease, .. }) => Some((*token, *lease)),
            _ => None,
        }
    }
}
