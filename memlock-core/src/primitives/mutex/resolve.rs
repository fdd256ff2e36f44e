//! Releasing, extending and handing off: steps of the owner, and the resolution of their outcomes.

use std::time::Duration;

use super::lock::Lock;
use super::reclaim::Reclaimed;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::lease_guard::{LATEST_ARRIVAL, Outcome};
use crate::lease::Lease;
use crate::mutation::{self, Mutation};
use crate::owner::{NOTIFIES, OwnerRecord, Token, is_ours};
use crate::store::{Item, Op, Order, Reply, Returns, Stored, Version};
use crate::target::{ATTEMPTS, Target};

/// How often a step is repeated because the lock's version has changed.
pub(super) const ROUNDS: usize = 10;
/// How often an item that was found missing, and changed a moment later, is read again; and how
/// often a lock is put back within one step.
const LOOKS: usize = 2;

impl Lock {
    /// Performs a step that only the owner may take.
    pub(super) fn resolve(&mut self, step: OwnerStep<'_>) -> Result<OwnerOutcome> {
        let guarantees = *self.kind.target.context.guarantees();
        let mut error = None;
        let (mut failures, mut unclear, mut reclaims) = (0, 0, 0);
        let wakes_ahead = matches!(step, OwnerStep::Release) && guarantees.order != Order::Open;
        let mut read_first = self.release_in_doubt;
        let mut first_sent = None;
        for _ in 0..ROUNDS {
            let now = self.kind.target.now();
            let sent = *first_sent.get_or_insert(now);
            if let OwnerStep::Extend(lease) = step {
                // The request may reach the server at any time until its reply is given up.
                self.server_until =
                    self.server_until.max(guarantees.gone(lease, now) + LATEST_ARRIVAL);
            }
            // A queue that cannot be read must not prevent the release.
            let wakes = self.kind.notifies && failures == 0 && matches!(step, OwnerStep::Release);
            let queue_key = wakes.then(|| self.kind.target.key.waiters());
            let (key, version) = (&self.kind.target.key, self.kind.version);
            let hands_off = matches!(step, OwnerStep::HandOff(_));
            let read = Op::Get { key, fence: hands_off };
            let op = match step {
                OwnerStep::Release => Op::Delete { key, version },
                OwnerStep::Extend(lease) => Op::CompareAndSet {
                    key,
                    version,
                    value: &self.kind.value,
                    expiry: lease.into(),
                    returns: Returns::Version,
                },
                OwnerStep::HandOff(successor) => Op::CompareAndSet {
                    key,
                    version,
                    value: successor.value,
                    expiry: successor.lease.into(),
                    returns: Returns::Fence,
                },
            };
            let last = queue_key.as_ref().map(Op::get);
            let ops = [read, op, last.unwrap_or(read)];
            let ops = &ops[usize::from(!read_first)..2 + usize::from(last.is_some())];
            let pending = self.kind.target.send(ops);
            if wakes_ahead && failures == 0 && pending.was_sent() {
                self.kind.woken_ahead = self.wake_ahead();
            }
            let replies = match pending.receive() {
                Ok(replies) => replies,
                Err(failure) if !failure.sent && error.is_none() => {
                    // A memcached that has no memory for a `CompareAndSet` refuses it and removes
                    // the item.
                    if failure.error.kind() == ErrorKind::Protocol
                        && let Ok(item) = self.kind.target.get()
                        && !item.is_some_and(|item| is_ours(&item.value, self.token))
                    {
                        return Ok(OwnerOutcome::Lost(None));
                    }
                    return Err(self.not_sent(&step, failure.error));
                }
                Err(failure) => {
                    if failure.sent
                        && mutation::has(Mutation::GuessReleased)
                        && matches!(step, OwnerStep::Release)
                    {
                        return Ok(OwnerOutcome::Taken(None));
                    }
                    if failure.sent {
                        // The shorter lease may be the valid one from now on.
                        match step {
                            OwnerStep::Extend(_) if mutation::has(Mutation::HopeForTheLonger) => {}
                            OwnerStep::Extend(lease) => {
                                self.deadline =
                                    guarantees.kept_by_either(self.deadline, self.lease, lease);
                                self.lease = self.lease.min(lease);
                                self.extension_in_doubt = true;
                            }
                            _ => self.release_in_doubt = true,
                        }
                    }
                    (error, read_first) = (Some(failure.error), true);
                    failures += 1;
                    if failures == ATTEMPTS {
                        break;
                    }
                    continue;
                }
            };
            let mut replies = replies.into_iter();
            let seen = if read_first { replies.next() } else { None };
            let answer = replies.next();
            let queue = match replies.next() {
                Some(Reply::Value(item)) => Some(item),
                _ => None,
            };
            // How a further request ended, if the reply asks for one.
            let further = match (answer, seen, step) {
                (Some(Reply::Deleted), ..) => return Ok(OwnerOutcome::Taken(queue)),
                (Some(Reply::Stored(Stored { version, fence })), _, OwnerStep::HandOff(_)) => {
                    return Ok(OwnerOutcome::HandedOff { version, fence, sent });
                }
                (Some(Reply::Stored(Stored { version, .. })), _, OwnerStep::Extend(lease)) => {
                    let late = mutation::has(Mutation::ExtensionFromReply);
                    let sent = if late { self.kind.target.now() } else { now };
                    let before = guarantees.kept_by_either(self.deadline, self.lease, lease);
                    (self.deadline, self.lease) = (lease.deadline(sent), lease);
                    self.confirm(version);
                    // What was under way has arrived by now.
                    self.kind.orphan = self.kind.orphan.filter(|&at| now < at + LATEST_ARRIVAL);
                    // A release that is still under way carries an older version.
                    self.release_in_doubt = false;
                    let verified = self.cap_deadline_if_slow(sent, before);
                    self.extension_in_doubt = verified.is_err();
                    return verified.map(|()| OwnerOutcome::Taken(None));
                }
                (_, Some(Reply::Value(item)), _)
                    if is_ours(&item.value, self.token) && self.proves_nothing(item.version) =>
                {
                    let (key, version) = (&self.kind.target.key, item.version);
                    match self.kind.target.one(Op::Delete { key, version }) {
                        Ok(Reply::Deleted | Reply::Missing) => return Ok(OwnerOutcome::Lost(None)),
                        // A waiter may have marked it.
                        removed => removed.map(|_| ()),
                    }
                }
                // The holder has put it back, on a server that recovers.
                (_, Some(Reply::Value(item)), OwnerStep::HandOff(_))
                    if is_ours(&item.value, self.token) && self.recovers(item.version) =>
                {
                    self.confirm(item.version);
                    return Ok(OwnerOutcome::Recovering);
                }
                (_, Some(Reply::Value(item)), _)
                    if is_ours(&item.value, self.token) || mutation::has(Mutation::BlindDelete) =>
                {
                    self.confirm(item.version);
                    self.notice_waiters(&item.value);
                    Ok(())
                }
                // An earlier hand-off request of this step arrived.
                (_, Some(Reply::Value(item)), OwnerStep::HandOff(successor))
                    if is_ours(&item.value, successor.token) =>
                {
                    let Item { version, fence, .. } = item;
                    return Ok(OwnerOutcome::HandedOff { version, fence, sent });
                }
                // The server may have forgotten the lock.
                (Some(Reply::VersionMismatch), Some(Reply::Missing), _)
                    if reclaims < LOOKS && self.reclaim().is_some() =>
                {
                    reclaims += 1;
                    match self.put_back() {
                        Ok(Reclaimed::Back(version)) if hands_off => {
                            self.confirm(version);
                            return Ok(OwnerOutcome::Recovering);
                        }
                        Ok(Reclaimed::Back(version)) => {
                            self.confirm(version);
                            read_first = false;
                            Ok(())
                        }
                        Ok(Reclaimed::TooLate) => return Ok(OwnerOutcome::Lost(None)),
                        Ok(Reclaimed::Occupied) => Ok(()),
                        Ok(Reclaimed::Refused) => {
                            reclaims = LOOKS;
                            Ok(())
                        }
                        Err(failure) => Err(failure),
                    }
                }
                // The item was missing when it was read, and had changed a moment later. Either
                // another client acquired the lock in between, or the known version is of another
                // life of the server. The item shows which.
                (Some(Reply::VersionMismatch), Some(Reply::Missing), _) if unclear < LOOKS => {
                    unclear += 1;
                    Ok(())
                }
                // The item is gone, or belongs to another client. If an earlier release got no
                // reply, it most likely removed the item, unless the server has begun another life
                // since, or the lease had ended before. With a guard, another life takes nothing
                // away from a holder whose lease still runs. The store answers "version mismatch" to
                // a version of another life.
                (Some(last), Some(read), _) => {
                    let same_life = match read {
                        Reply::Value(item) => item.version.epoch() == self.kind.version.epoch(),
                        _ => last == Reply::Missing,
                    };
                    let same_life = same_life || guarantees.guard.is_some();
                    let in_time = self.kind.target.now() < self.deadline;
                    let released = !matches!(step, OwnerStep::Extend(_));
                    let queue = queue.filter(|_| last == Reply::Missing);
                    return Ok(if released && self.release_in_doubt && same_life && in_time {
                        OwnerOutcome::Taken(queue)
                    } else {
                        OwnerOutcome::Lost(queue)
                    });
                }
                (Some(Reply::VersionMismatch), None, _) => {
                    read_first = true;
                    Ok(())
                }
                _ => return Ok(OwnerOutcome::Lost(queue)),
            };
            if let Err(failure) = further {
                if !failure.sent && error.is_none() {
                    return Err(self.not_sent(&step, failure.error));
                }
                failures += 1;
                error = Some(failure.error);
                if failures == ATTEMPTS {
                    break;
                }
            }
        }
        Err(Error::unresolved(error, "lock"))
    }

    /// The error of a step that ends with a request that was not sent: it changed nothing, but an
    /// earlier release may have.
    fn not_sent(&self, step: &OwnerStep<'_>, error: Error) -> Error {
        let releases = !matches!(step, OwnerStep::Extend(_));
        let in_doubt = releases && self.release_in_doubt;
        if in_doubt { Error::unresolved(Some(error), "lock") } else { error }
    }

    /// Whether the server gives no new grants yet in the life that gave this version.
    pub(super) fn recovers(&self, version: Version) -> bool {
        let Target { context, route, .. } = &self.kind.target;
        !context.recovers_for(*route, version.epoch()).is_zero()
    }

    /// Notes whether a waiter has marked the record.
    fn notice_waiters(&mut self, value: &[u8]) {
        if !self.kind.notifies && OwnerRecord::parse(value).is_some_and(|record| record.notifies) {
            self.kind.notifies = true;
            self.kind.value.extend_from_slice(NOTIFIES);
        }
    }

    /// After a suspiciously slow extension: caps the deadline by the time for which the server
    /// keeps the item, or, if that cannot be read, by the time for which the server keeps it at
    /// least.
    fn cap_deadline_if_slow(&mut self, sent: Moment, before: Moment) -> Result<()> {
        let target = &self.kind.target;
        if !target.context.guarantees().is_suspicious(target.now().since(sent)) {
            return Ok(());
        }
        self.cap_deadline_by_ttl().map_err(|error| {
            self.deadline = self.deadline.min(before);
            Error::new(
                ErrorKind::Unknown,
                format!("It was extended, but for how long is not known: {error}"),
            )
        })
    }

    /// After a suspiciously slow grant: caps the deadline by the time for which the server keeps
    /// the item.
    pub(super) fn cap_deadline_by_ttl(&mut self) -> Result<()> {
        let context = &self.kind.target.context;
        let (clock, guarantees) = (context.clock(), context.guarantees());
        let mut first = None;
        let kept = loop {
            let sent = clock.now();
            let seen = self.kind.target.get()?;
            let left = match seen.filter(|item| is_ours(&item.value, self.token)) {
                Some(item) => item.remaining.unwrap_or(Duration::MAX),
                None => Duration::ZERO,
            };
            match guarantees.kept_until(left, sent, clock.now(), first) {
                Some(kept) => break kept,
                None => first = Some(sent),
            }
        };
        self.deadline = self.deadline.min(kept);
        if self.remaining().is_zero() {
            return Err(Error::new(
                ErrorKind::Unreachable,
                "The server took longer to answer than the lease lasts; nothing is held. Ask for a \
                 longer lease.",
            ));
        }
        Ok(())
    }
}

/// A step that only the owner may take.
#[derive(Clone, Copy)]
pub(super) enum OwnerStep<'a> {
    Release,
    Extend(Lease),
    /// To a waiting thread of this process.
    HandOff(&'a Successor<'a>),
}

/// The next holder.
pub(super) struct Successor<'a> {
    pub(super) token: Token,
    pub(super) value: &'a [u8],
    pub(super) lease: Lease,
}

/// The result of a step.
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
