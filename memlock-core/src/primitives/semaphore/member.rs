//! One operation of a batch, and its planned outcome.

use std::sync::Arc;

use super::operation::{Acquisition, Doubt, Kind, Operation, OperationOutcome};
use super::permit::Permit;
use super::ticket::Ticket;
use crate::clock::Moment;
use crate::error::Error;
use crate::store::Version;
use crate::wait::local::HandingOff;

/// The planned outcome of an operation.
pub(super) enum Planned {
    /// Known without a write.
    Known(OperationOutcome),
    /// Granted once the record is written, with a lease that counts from this moment.
    Grants(Moment),
    /// Refused once the record is written: other operations of the batch take the permits.
    Refuses,
    /// Releases this many permits once the record is written.
    Releases(u32),
    /// Extended once the record is written, with a lease that counts from this moment, unless a
    /// reply is lost.
    Extends(Moment),
}

impl Planned {
    /// Whether the operation changes the record.
    pub(super) fn writes(&self) -> bool {
        !matches!(self, Planned::Known(_) | Planned::Refuses)
    }
}

/// The writer, as named for people, and the time.
pub(super) struct Writer<'a> {
    /// Percent-encoded.
    pub(super) host: &'a str,
    pub(super) pid: u32,
    pub(super) unix_seconds: u64,
    /// On the local clock, before the request is sent.
    pub(super) now: Moment,
}

/// A request under way.
#[derive(Clone, Copy)]
pub(super) struct Writing {
    /// When it was sent.
    pub(super) sent: Moment,
    /// Whether the server may have been stopped when it sent the time by which the request was
    /// computed.
    pub(super) slow: bool,
    /// The version that the request replaces.
    pub(super) version: Version,
}

/// Whose operation it is.
pub(super) enum Origin<'a> {
    /// The leader's own.
    Own,
    /// That of a thread that sleeps on its ticket.
    Thread(Arc<Ticket>),
    /// The leader's, for a waiter of this process that may be handed a permit.
    Waiter(HandingOff<'a, Acquisition, Permit>),
}

/// One operation of the batch.
pub(super) struct Member<'a> {
    pub(super) operation: Operation,
    pub(super) origin: Origin<'a>,
    /// The outcome of the operation by the record that is being written.
    pub(super) planned: Planned,
}

impl<'a> Member<'a> {
    pub(super) fn of(operation: Operation, origin: Origin<'a>) -> Member<'a> {
        Member { operation, origin, planned: Planned::Refuses }
    }

    pub(super) fn is_own(&self) -> bool {
        matches!(self.origin, Origin::Own)
    }

    pub(super) fn releases(&self) -> bool {
        matches!(self.operation.kind, Kind::Release(_))
    }

    pub(super) fn is_waiter(&self) -> bool {
        matches!(self.origin, Origin::Waiter(_))
    }

    /// Whether the operation can be dropped without resolving anything.
    pub(super) fn is_idle(&self) -> bool {
        self.operation.in_doubt.is_none() && matches!(self.operation.kind, Kind::Acquisition(_))
    }

    /// The outcome of an operation that this error prevents.
    pub(super) fn fails(&self, error: &Error) -> OperationOutcome {
        match self.operation.in_doubt {
            Some(_) => OperationOutcome::Unresolved(Some(error.clone())),
            None => OperationOutcome::Failed(error.clone()),
        }
    }

    /// Records that a request with this operation got no reply.
    pub(super) fn is_in_doubt(&mut self, Writing { sent, slow, version }: Writing) {
        let since = match self.planned {
            Planned::Grants(counted_from) | Planned::Extends(counted_from) => counted_from,
            Planned::Releases(_) => sent,
            Planned::Known(_) | Planned::Refuses => return,
        };
        let first = Doubt { since, until: sent, slow, version };
        let doubt = self.operation.in_doubt.get_or_insert(first);
        (doubt.until, doubt.slow, doubt.version) = (sent, doubt.slow || slow, version);
    }
}
