//! A step that only the owner of a lock may take: releasing it, extending its lease, handing it
//! off, checking that it is there, or reading how long the server keeps it. A machine without I/O:
//! it says what to send, and is given the replies. A caller's thread drives it (`resolve`), and so
//! does the renewal thread (`renew`).
//!
//! | state | what is sent | reply | next |
//! | --- | --- | --- | --- |
//! | `Act` | the change, by the version that is known | carried out | done; after a slow extension `Verify` |
//! | | | version mismatch | `ReadAndAct` |
//! | | | missing | lost |
//! | `ReadAndAct`: the version, or the outcome of an earlier request, is not known | a read, and the change | carried out | as above |
//! | | | the record is ours | `ReadAndAct`, by its version |
//! | | | the record is ours, and proves nothing | `Remove` |
//! | | | the record is the successor's | handed off |
//! | | | the record is ours; a hand-off on a server that recovers | still held |
//! | | | no record and a mismatch, and the lock may be put back; of a release, in another life that recovers | released |
//! | | | the same, of another change | `PutBack` |
//! | | | no record and a mismatch, else | `ReadAndAct`; together with `PutBack` twice at most |
//! | | | else | lost; or released, by an earlier request |
//! | `PutBack`: the server may have forgotten the lock, there is a guard, the lease runs, and no release is in doubt | the record, to be added | stored in time | extended; of a hand-off, still held; of a check, there |
//! | | | stored too late | `Remove` |
//! | | | exists | `ReadAndAct`, or `Look` |
//! | | | not admitted | the same, and the last time |
//! | `Remove`: a record of ours that counts for nothing | its removal | removed, or missing | lost |
//! | | | a mismatch: a waiter has marked it | `ReadAndAct`, or `Look` |
//! | `Verify`: the server may have been stopped | a read | what remains of the lease | done; after a slow reply once more; nothing is left: the error |
//! | | | the record of an extension is not there, and its lease runs | `PutBack`, if it is missing and may be put back; else lost |
//! | `Refused`: a change; some servers remove an item that they have no memory to replace | a read | the record is ours | the error |
//! | | | else | lost |
//! | `Look` | a read | the record is ours | it is there |
//! | | | missing, and the lock may be put back | `PutBack` |
//! | | | else | it is not there |
//!
//! A change without a reply is followed by `ReadAndAct` (of a check, by `Look`), and a read by the same
//! read; after three requests without a reply the outcome is unknown. A request that was not sent ends
//! the step with an error, unless an earlier change had no reply. After ten versions that others have
//! changed the outcome is unknown as well. The tests take the rows one by one (`step/tests.rs`).

mod doubt;
mod reclaim;
mod replies;
#[cfg(test)]
mod tests;

use super::lock::{Confirmation, Lock};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::guard::confirmed::Confirmed;
use crate::guard::lease_guard::{LATEST_ARRIVAL, Outcome};
use crate::lease::Lease;
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::owner::Token;
use crate::store::{Admission, Expiry, Item, Op, Order, Returns, Version};
use crate::target::Target;

/// How often a step is repeated because the lock's version has changed.
pub(super) const ROUNDS: usize = 10;

/// How often an item that was found missing, and changed a moment later, is read again or put back.
const LOOKS: usize = 2;

/// What the owner wants.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Release,
    Extend(Lease),
    /// To a waiting thread of this process.
    HandOff(Successor),
    /// Whether the server has the lock.
    Check,
    /// Caps the deadline by the time for which the server keeps the lock.
    Verify,
}

/// The next holder.
#[derive(Clone, Debug)]
pub(super) struct Successor {
    pub(super) token: Token,
    pub(super) value: Vec<u8>,
    pub(super) lease: Lease,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Act,
    ReadAndAct,
    PutBack {
        expiry: Expiry,
    },
    Remove(Version),
    /// `first`: when an earlier read was sent whose reply was slow, too.
    Verify {
        first: Option<Moment>,
    },
    Refused,
    Look,
}

/// A step in progress, and what its owner knows of the lock.
pub(super) struct OwnerStep {
    pub(super) target: Target,
    action: Action,
    state: State,
    token: Token,
    value: Vec<u8>,
    version: Version,
    notifies: bool,
    /// The queue, if it is read with the next change.
    queue: Option<Key>,
    lease: Lease,
    deadline: Moment,
    /// The lease and the deadline before the step.
    before: (Lease, Moment),
    orphan: Option<Moment>,
    release_in_doubt: bool,
    extension_in_doubt: bool,
    /// Where the lock was last confirmed, as all threads note it; `None` without a guard.
    confirmed: Option<Confirmed<Confirmation>>,
    /// When the first request was sent.
    began: Option<Moment>,
    rounds: usize,
    /// How often the item was missing, though the version may be of another life.
    looks: usize,
    /// How many requests had no reply, and the last error.
    failures: usize,
    error: Option<Error>,
}

/// The result of a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OwnerOutcome {
    /// The step was taken. A release also returns the queue, if there may be one.
    Taken(Option<Item>),
    /// The successor holds the lock, with this version and fence, by a request that was sent then.
    HandedOff { version: Version, fence: u64, sent: Moment },
    /// The lock was not handed off: the server gives no new grants yet. It is still held.
    Recovering,
    /// The lock was lost before. Returns the queue if the mutex has no holder.
    Lost(Option<Item>),
}

impl From<OwnerOutcome> for Outcome<Item> {
    fn from(outcome: OwnerOutcome) -> Outcome<Item> {
        match outcome {
            OwnerOutcome::Taken(queue) => Outcome::Taken(queue),
            OwnerOutcome::HandedOff { .. } | OwnerOutcome::Recovering => Outcome::Taken(None),
            OwnerOutcome::Lost(queue) => Outcome::Lost(queue),
        }
    }
}

/// The result of the step once it has ended; until then, there is another request to send.
pub(super) type Ended = Option<Result<OwnerOutcome>>;

impl OwnerStep {
    pub(super) fn new(lock: &Lock, action: Action) -> OwnerStep {
        OwnerStep::with_value(lock, lock.kind.value.clone(), action)
    }

    /// With the value of the guard, which [`OwnerStep::apply`] gives back.
    pub(super) fn with_value(lock: &Lock, value: Vec<u8>, action: Action) -> OwnerStep {
        let state = match action {
            Action::Check => State::Look,
            Action::Verify => State::Verify { first: None },
            _ if lock.release_in_doubt => State::ReadAndAct,
            _ => State::Act,
        };
        let kind = &lock.kind;
        let mut step = OwnerStep {
            target: kind.target.clone(),
            action,
            state,
            token: lock.token,
            value,
            version: kind.version,
            notifies: kind.notifies,
            queue: None,
            lease: lock.lease,
            deadline: lock.deadline,
            before: (lock.lease, lock.deadline),
            orphan: kind.orphan,
            release_in_doubt: lock.release_in_doubt,
            extension_in_doubt: lock.extension_in_doubt,
            confirmed: kind.confirmed.clone(),
            began: None,
            rounds: 0,
            looks: 0,
            failures: 0,
            error: None,
        };
        step.choose_queue();
        step
    }

    /// Begins with a read: the outcome of an earlier extension is not known.
    pub(super) fn in_doubt(self) -> OwnerStep {
        OwnerStep { state: State::ReadAndAct, ..self }
    }

    /// Whether the next waiter may be woken while the request is on its way: a release that was not
    /// repeated yet.
    pub(super) fn wakes_ahead(&self) -> bool {
        let order = self.target.context.guarantees().order;
        let releases = matches!(self.action, Action::Release) && self.changes();
        releases && order != Order::Open && self.failures == 0
    }

    /// Whether the next request may change what the holder can rely on, should its reply be lost.
    pub(super) fn changes(&self) -> bool {
        matches!(self.state, State::Act | State::ReadAndAct | State::PutBack { .. })
    }

    /// Whether the next request only removes a record that counts for nothing.
    pub(super) fn only_removes(&self) -> bool {
        matches!(self.state, State::Remove(_))
    }

    /// The operations to send.
    pub(super) fn ops(&self) -> Vec<Op<'_>> {
        let key = &self.target.key;
        let read = Op::Get { key, fence: matches!(self.action, Action::HandOff(_)) };
        match self.state {
            State::Act | State::ReadAndAct => {
                let read = Some(read).filter(|_| self.state == State::ReadAndAct);
                let queue = self.queue.as_ref().map(Op::get);
                read.into_iter().chain(self.change()).chain(queue).collect()
            }
            State::PutBack { expiry } => {
                let (value, returns) = (&self.value, Returns::Version);
                let admission = Admission::Reclaim(self.life());
                vec![Op::Add { key, value, expiry, returns, admission }]
            }
            State::Remove(version) => vec![Op::Delete { key, version }],
            State::Verify { .. } | State::Refused | State::Look => vec![Op::get(key)],
        }
    }

    fn change(&self) -> Option<Op<'_>> {
        let (key, version) = (&self.target.key, self.version);
        let set = |value, lease: Lease, returns| {
            let expiry = lease.into();
            Op::CompareAndSet { key, version, value, expiry, returns }
        };
        Some(match &self.action {
            Action::Extend(lease)
                if mutation::has(Mutation::KeepPutsBack) && version.number() == 0 =>
            {
                Op::add(key, &self.value, (*lease).into(), Returns::Version)
            }
            Action::Extend(lease) => set(&self.value, *lease, Returns::Version),
            Action::HandOff(next) => set(&next.value, next.lease, Returns::Fence),
            Action::Release => Op::Delete { key, version },
            Action::Check | Action::Verify => return None,
        })
    }

    /// Notes in the guard for how long the next request may keep the lock on the server, and what it
    /// may leave there if it arrives after a release. To be called before each request.
    pub(super) fn announce(&self, lock: &mut Lock) {
        if matches!(self.action, Action::Extend(_)) {
            lock.server_until = lock.server_until.max(self.may_last_until());
        }
        if matches!(self.state, State::PutBack { .. }) {
            lock.may_come_back(self.may_last_until());
        }
    }

    /// Until when the lock may be on the server by a request that is sent now, which may arrive at
    /// any time until its reply is given up.
    fn may_last_until(&self) -> Moment {
        let lease = match self.action {
            Action::Extend(lease) => lease,
            _ => self.lease,
        };
        self.target.gone(lease) + LATEST_ARRIVAL
    }

    /// Gives the guard what the step has found out.
    pub(super) fn apply(self, lock: &mut Lock) {
        (lock.lease, lock.deadline) = (self.lease, self.deadline);
        lock.release_in_doubt = self.release_in_doubt;
        lock.extension_in_doubt = self.extension_in_doubt;
        let kind = &mut lock.kind;
        (kind.version, kind.value, kind.notifies) = (self.version, self.value, self.notifies);
        kind.orphan = self.orphan;
    }

    /// Gives the guard a new lease; it keeps a longer one, of a concurrent step of the owner.
    pub(super) fn apply_renewal(&self, lock: &mut Lock) {
        lock.deadline = lock.deadline.max(self.deadline);
        let kind = &mut lock.kind;
        kind.version = self.version;
        kind.notifies |= self.notifies;
        kind.value.clone_from(&self.value);
    }
}
