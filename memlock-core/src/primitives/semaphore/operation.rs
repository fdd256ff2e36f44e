//! What a caller wants done to a semaphore's record, and the outcome: plain data, so that any
//! thread of the process can do it.

use super::snapshot::Refusal;
use crate::clock::Moment;
use crate::error::Error;
use crate::guard::renewal::renewable::Wanted;
use crate::lease::Lease;
use crate::owner::Token;
use crate::store::{Item, Version};
use crate::wait_id::WaitId;

/// One caller's part of a batch.
pub(super) struct Operation {
    pub(super) kind: Kind,
    /// When its caller's wait ends; `None`: never, or at once.
    pub(super) until: Option<Moment>,
    /// Set when a request that had it in its batch got no reply, as long as that may have been
    /// carried out.
    pub(super) in_doubt: Option<Doubt>,
    /// Why the last such request failed.
    pub(super) error: Option<Error>,
    /// How many requests have failed.
    pub(super) failures: usize,
    /// In how many batches it was that another process was faster to write.
    pub(super) refused: usize,
}

pub(super) enum Kind {
    Acquisition(Acquisition),
    Release(Release),
    Extend(Extend),
}

pub(super) struct Acquisition {
    pub(super) token: Token,
    pub(super) permits: u32,
    pub(super) priority: i64,
    /// It was woken, or is the first in the queue: it may take what is reserved for the first.
    pub(super) called: bool,
    pub(super) lease: Lease,
    /// How many permits the semaphore has to have; `None`: any number.
    pub(super) expected: Option<u32>,
    /// With how many permits to set it up if there is none; `None`: not at all.
    pub(super) set_up_with: Option<u32>,
}

pub(super) struct Release {
    pub(super) token: Token,
    /// The ids of its owner's entries in the queue, which may still be there.
    pub(super) stood: Vec<WaitId>,
}

pub(super) struct Extend {
    pub(super) renewing: Vec<Renewing>,
    pub(super) wanted: Option<Wanted>,
    /// Those that were not there any more.
    pub(super) gone: Vec<Token>,
}

/// One holder's part of an extension.
#[derive(Clone, Copy)]
pub(crate) struct Renewing {
    pub(crate) token: Token,
    pub(super) lease: Lease,
    /// Until when the old lease lasts: no request leaves after that.
    pub(crate) old_deadline: Moment,
    /// Until when the new one does, once it is written.
    pub(crate) deadline: Moment,
}

/// Of requests whose replies were lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    /// From when the first of them counts its lease.
    pub(super) since: Moment,
    /// When the last of them left.
    pub(super) until: Moment,
    /// One of them was reckoned from a clock that may have stood still.
    pub(super) slow: bool,
    /// Which record the last of them replaces, if it is carried out.
    pub(super) version: Version,
}

/// The outcome of an operation.
pub(super) enum OperationOutcome {
    Granted {
        /// The token of the semaphore.
        of: Token,
        permits: u32,
        /// From when the lease counts.
        counted_from: Moment,
        clock: ServerClock,
        /// How many permits the semaphore has.
        number: u32,
    },
    /// Not enough permits are available, or the wait has ended. `refusal`: how it was then, if it
    /// was read.
    NoRoom { refusal: Option<Refusal> },
    /// The semaphore has so many permits, which are not as many as expected, or fewer than are
    /// wanted at once.
    Unfit { number: u32 },
    /// There is no such semaphore, and this caller cannot set it up.
    Missing,
    /// The permits were given back. One caller of a batch is to wake the waiters for all of them.
    Released { wakes: Option<Wakes> },
    /// All that are left in [`Extend::renewing`] were extended. `asks`: the server may have stood
    /// still when it sent its time, so each holder has to ask until when its permits are stored.
    Extended { asks: bool },
    /// The permits were not there: the token of the semaphore that is, and how many are available.
    Gone { instead: Option<(Token, u32)> },
    /// Nothing was sent for it, or it is certain that nothing was changed.
    Failed(Error),
    /// It may have been carried out.
    Unresolved(Option<Error>),
}

/// Whether the server may have stood still when it sent the time by which a lease was granted.
#[derive(Clone, Copy)]
pub(super) enum ServerClock {
    Runs,
    /// It may have; the holder counts on no more than until then.
    KeepsUntil(Moment),
    /// It may have, and the holder is to ask until when it keeps the permits.
    MayStand,
}

/// What is needed to wake waiters after a batch that gave permits back.
pub(crate) struct Wakes {
    /// The queue as it was afterwards, if there is one.
    pub(super) queue: Option<Item>,
    /// How many permits are available.
    pub(super) capacity: u32,
    /// How many of them the batch gave back.
    pub(super) freed: u32,
    /// The ids of the releasers' entries in the queue.
    pub(super) stood: Vec<WaitId>,
}

impl Kind {
    /// A token of this process, if it has one.
    pub(super) fn token(&self) -> Option<Token> {
        match self {
            Kind::Acquisition(Acquisition { token, .. }) | Kind::Release(Release { token, .. }) => {
                Some(*token)
            }
            Kind::Extend(extend) => extend.renewing.first().map(|renewing| renewing.token),
        }
    }
}

impl Operation {
    pub(super) fn new(kind: Kind, in_doubt: Option<Doubt>) -> Operation {
        Operation { kind, until: None, in_doubt, error: None, failures: 0, refused: 0 }
    }

    /// What it may be granted.
    pub(super) fn acquires(&self) -> Option<(Token, Lease)> {
        match &self.kind {
            Kind::Acquisition(Acquisition { token, lease, .. }) => Some((*token, *lease)),
            _ => None,
        }
    }
}
