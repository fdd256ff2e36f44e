//! What the operations on a quorum share.

use std::sync::Arc;
use std::time::Duration;

use super::ballot::Ballot;
use super::members::Members;
use super::votes::Table;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind};
use crate::fork::ForkLocal;
use crate::lease::TICK_LATENESS;
use crate::name::Key;
use crate::store::{Epoch, Failure, Guarantees, Store, Version};

/// Versions of a quorum are valid as long as the client is: see [`Ballot::number`].
pub(super) const EPOCH: Epoch = Epoch::new(0, 0);

/// Versions of votes that are too few for a lock. Who takes them away by that version has done so
/// even if it was a single one.
pub(super) const OF_NO_LOCK: Epoch = Epoch::new(0, 1);

/// The shortest guard. The servers' clocks must not differ by a part of it, and show whole seconds.
pub(super) const SHORTEST_GUARD: Duration = Duration::from_secs(4);

/// The servers, and what this process knows of its votes there.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) members: Members,
    pub(super) clock: Arc<dyn Clock>,
    guarantees: Guarantees,
    table: ForkLocal<Table>,
}

impl Inner {
    pub(super) fn new(members: Vec<Arc<dyn Store>>, clock: Arc<dyn Clock>) -> Inner {
        let of_one = members.first().map(|member| member.guarantees());
        let of_one = of_one.unwrap_or(crate::store::memory::GUARANTEES);
        let guarantees = Guarantees { quorum: Some(members.len()), ..of_one };
        let members = Members::new(members, &clock);
        Inner { members, clock, guarantees, table: ForkLocal::new() }
    }

    pub(super) fn guarantees(&self) -> Guarantees {
        self.guarantees
    }

    /// The longest lease that clients may ask for.
    pub(super) fn longest_lease(&self) -> Duration {
        self.guarantees().guard.map_or(SHORTEST_GUARD, |guard| guard.longest_lease())
    }

    /// How many members decide.
    pub(super) fn majority(&self) -> usize {
        self.members.majority()
    }

    /// What this process knows.
    pub(super) fn table(&self) -> &Table {
        self.table.get()
    }

    /// A vote on this member has to be removed, or may arrive there yet.
    pub(super) fn leave(&self, member: usize, key: &Key, ballot: &Ballot) {
        let covering = self.guarantees().covering(self.longest_lease());
        self.table().leave(member, key, ballot, self.clock.now(), covering);
    }
}

/// Until when a client relies on a vote for this long, by a request that was sent then.
pub(super) fn deadline(lease: Duration, sent: Moment) -> Moment {
    sent + lease.saturating_sub(TICK_LATENESS)
}

/// The version of everything that this ballot has stored.
pub(super) fn version(ballot: &Ballot) -> Version {
    Version::new(EPOCH, ballot.number())
}

/// The failure of an operation of which a part was carried out, or may have been.
pub(super) fn after_change(failure: Failure) -> Failure {
    let error = match failure.error.kind() {
        ErrorKind::Unreachable => Error::new(ErrorKind::Unknown, failure.error.to_string()),
        _ => failure.error,
    };
    Failure { error, sent: true }
}

/// The error of an operation after which the lease was over.
pub(super) fn too_late(quorum: &Inner, kind: ErrorKind) -> Error {
    let text = format!(
        "{} took longer to answer than the lease lasts; nothing is held. Ask for a longer lease.",
        quorum.members.title()
    );
    Error::new(kind, text)
}

/// The failure of an operation for which too few members answered, with what each of them said.
pub(super) fn too_few(failures: &[&Failure], quorum: &Inner, sent: bool) -> Failure {
    let config = failures.iter().find(|failure| failure.error.kind() == ErrorKind::Config);
    if let Some(failure) = config {
        return Failure { error: failure.error.clone(), sent };
    }
    let said: Vec<String> = failures.iter().map(|failure| failure.error.to_string()).collect();
    let protocol = failures.iter().any(|failure| failure.error.kind() == ErrorKind::Protocol);
    let kind = match (protocol, sent) {
        (true, _) => ErrorKind::Protocol,
        (_, true) => ErrorKind::Unknown,
        (_, false) => ErrorKind::Unreachable,
    };
    let text = format!(
        "Of {}, {} are needed, and {} could not be used. {}",
        quorum.members.title(),
        quorum.majority(),
        failures.len(),
        said.join(" ")
    );
    Failure { error: Error::new(kind, text), sent }
}
