//! One operation of a batch, and what becomes of it.

use std::sync::Arc;

use super::operation::{Doubt, Kind, Operation, OperationOutcome};
use super::ticket::Ticket;
use crate::clock::Moment;
use crate::error::Error;
use crate::store::Version;

/// What is to become of an operation.
pub(super) enum Planned {
    /// Known without writing anything.
    Known(OperationOutcome),
    /// Granted once it is written, counting the lease from then.
    Grants(Moment),
    /// Others of the batch take what it wanted: refused once it is written.
    Refuses,
    /// So many permits are given back once it is written.
    Releases(u32),
    /// Extended once it is written; so long as no reply is lost it counts from then.
    Extends(Moment),
}

impl Planned {
    /// Whether the operation changes the record.
    pub(super) fn writes(&self) -> bool {
        !matches!(self, Planned::Known(_) | Planned::Refuses)
    }
}

/// A request that is under way.
#[derive(Clone, Copy)]
pub(super) struct Writing {
    /// When it left.
    pub(super) sent: Moment,
    /// The server may have stood still when it sent the time by which the request was reckoned.
    pub(super) slow: bool,
    /// The version that it replaces.
    pub(super) version: Version,
}

/// One operation of the batch.
pub(super) struct Member {
    pub(super) operation: Operation,
    /// `None`: our own.
    pub(super) ticket: Option<Arc<Ticket>>,
    /// It waits for what this process gives back, and for nothing else.
    pub(super) is_parked: bool,
    /// What becomes of it by the record that is being written.
    pub(super) planned: Planned,
}

impl Member {
    pub(super) fn of(operation: Operation, ticket: Option<Arc<Ticket>>, is_parked: bool) -> Member {
        Member { operation, ticket, is_parked, planned: Planned::Refuses }
    }

    /// Whether it can be dropped without finding anything out.
    pub(super) fn is_idle(&self) -> bool {
        self.operation.in_doubt.is_none() && matches!(self.operation.kind, Kind::Acquisition(_))
    }

    /// Its outcome when it cannot be carried out because of this. A parked one finds out for itself
    /// in the queue.
    pub(super) fn fails(&self, error: &Error) -> OperationOutcome {
        match self.operation.in_doubt {
            Some(_) => OperationOutcome::Unresolved(Some(error.clone())),
            None if self.is_parked => OperationOutcome::NoRoom { refusal: None },
            None => OperationOutcome::Failed(error.clone()),
        }
    }

    /// A request that had it in its batch got no reply.
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
