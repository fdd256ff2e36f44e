//! A mutex that is held: releasing, extending, and what is known meanwhile.

use std::fmt;
use std::time::Duration;

use super::{ROUNDS, SUSPICIOUS_DELAY, ring_next, unsettled};
use crate::client::{ATTEMPTS, Client};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::flaw::{self, Flaw};
use crate::fork;
use crate::lease::{CLOCK_ERROR, Lease};
use crate::name::Key;
use crate::owner::{OwnerRecord, RINGS, Token, is_ours};
use crate::store::{Item, Op, Reply, Route, Version};
use crate::wait::entries::{Entry, WaitId};
use crate::wait::queue::Queue;
use crate::wait::ringing;

/// How often an item that was found missing, and then another's, is looked at again.
const LOOKS: usize = 2;

/// How long a request may be under way, for the purpose of looking for what it left.
const LATEST_ARRIVAL: Duration = Duration::from_secs(10);

/// A mutex that is held. Dropping it unlocks, as well as that can be done; [`Lock::unlock`] tells how it
/// went.
///
/// In a child made by `fork` it is dead: the child holds nothing, and neither unlocking nor dropping it
/// there touches the parent's lock.
#[must_use = "the mutex is unlocked as soon as the Lock is dropped"]
pub struct Lock {
    pub(super) client: Client,
    pub(super) route: Route,
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) value: Vec<u8>,
    pub(super) version: Version,
    pub(super) fence: u64,
    pub(super) deadline: Moment,
    /// When the server has let go of it by itself, whichever of the leases that were asked for it took.
    pub(super) server_until: Moment,
    pub(super) process: u64,
    pub(super) held: bool,
    /// Whether it was found lost.
    pub(super) lost: bool,
    /// Set when a release of ours was sent and its outcome is not known.
    pub(super) release_in_doubt: bool,
    /// Set when a request of ours may still be under way: until when to look for what it may have left.
    pub(super) stray: Option<Moment>,
    pub(super) lease: Lease,
    /// Others may be waiting: our record says that we ring, so the queue is looked at when we let go.
    pub(super) rings: bool,
    /// Under which ids we stood in the queue; they are taken off when we let go.
    pub(super) stood: Vec<WaitId>,
    /// No bell was heard, so that one of them should still be there.
    unrung: bool,
    pub(super) turn: Turn,
}

/// This process's turn: from when it got the mutex until another one gets it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) began: Moment,
    /// How often it was handed over within the process.
    pub(super) passed_on: u32,
}

/// What was granted.
pub(super) struct Grant {
    pub(super) client: Client,
    pub(super) route: Route,
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) value: Vec<u8>,
    pub(super) rings: bool,
    pub(super) version: Version,
    pub(super) lease: Lease,
    /// When the request left that was granted.
    pub(super) sent: Moment,
    pub(super) stray: Option<Moment>,
    pub(super) turn: Turn,
}

/// How a release ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// It was ours until now, and is free.
    Released,
    /// It was no longer ours when we got there: the lease ran out, or the server lost it.
    Lost,
    /// This handle holds nothing: it was unlocked before, or belongs to the parent of this process.
    NotHeld,
}

/// How an extension ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// It is ours for the new lease, counted from when the call was made.
    Extended,
    /// It was no longer ours when we got there: the lease ran out, or the server lost it.
    Lost,
    /// This handle holds nothing: it was unlocked before, or belongs to the parent of this process.
    NotHeld,
}

impl Lock {
    pub(super) fn new(grant: Grant) -> Lock {
        let Grant { client, route, key, token, value, rings, version, lease, sent, stray, turn } = grant;
        let server_until = lease.gone(client.clock().now());
        Lock {
            client,
            route,
            key,
            token,
            value,
            version,
            fence: version.fence(),
            deadline: lease.deadline(sent),
            server_until,
            process: fork::generation(),
            held: true,
            lost: false,
            release_in_doubt: false,
            stray,
            lease,
            rings,
            stood: Vec::new(),
            unrung: false,
            turn,
        }
    }

    pub(super) fn stood_in_line(&mut self, ids: Vec<WaitId>, unrung: bool) {
        self.stood.extend(ids);
        self.unrung = unrung;
    }

    /// The fencing token: greater than that of every earlier holder of this mutex. Hand it to the resource,
    /// which refuses anything below the greatest it has seen; then even a holder that overslept its lease
    /// does no harm.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// How long the lock is certainly ours yet, unless the server loses it; zero when it is not. No I/O.
    pub fn remaining(&self) -> Duration {
        self.deadline().since(self.client.clock().now())
    }

    /// Until when it is certainly ours, on the boot clock; past when it is not. No I/O.
    pub fn deadline(&self) -> Moment {
        let certain = self.is_ours_to_use() && !self.release_in_doubt;
        if certain { self.deadline } else { Moment::from_boot(Duration::ZERO) }
    }

    /// The token by which the item carries our ownership.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Unlocks, in one round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`]: nothing was changed, the lock is still ours, and unlocking may be tried
    /// again. [`ErrorKind::Unknown`]: sent, and neither the reply nor the item could be read; it may be tried
    /// again too. When the handle is dropped instead, the lock is taken off at the next contact with the
    /// server, or ends with its lease.
    pub fn unlock(&mut self) -> Result<Release> {
        if !self.is_ours_to_use() {
            return Ok(if self.was_lost() { Release::Lost } else { Release::NotHeld });
        }
        let handed_over = self.hand_over();
        let settled = match handed_over {
            Some(settled) => settled,
            None => self.settle(Step::Release),
        };
        let settled = settled.map_err(|error| self.said("Unlocking", error))?;
        self.held = false;
        if let Settled::Taken(queue) | Settled::Lost(queue) = &settled
            && let Some(queue) = queue
        {
            self.hand_on(queue);
        } else if matches!(settled, Settled::Lost(_)) {
            self.leave_the_line();
        }
        self.client.take_off_strays(self.route);
        if let Some(until) = self.stray {
            self.client.remember_stray(self.route, &self.key, self.token, until);
        }
        Ok(if matches!(settled, Settled::Lost(_)) { Release::Lost } else { Release::Released })
    }

    /// Nobody has it any more: rings the next one who waits for it.
    fn hand_on(&self, item: &Item) {
        let Lock { client, route, key, .. } = self;
        let hall = client.mutex_waiters();
        let now = client.clock().now();
        // Only one that stood in line for it may go on without standing there again.
        let stood = !self.stood.is_empty();
        let turn = if stood { hall.turn(key, now, now.since(self.turn.began)) } else { Duration::ZERO };
        let queue = Queue { client, route: *route, key: &key.waiters() };
        let ring = ringing(client, hall, key, turn);
        let is_deaf = |entry: &Entry<'_>| entry.bell.is_none() && !hall.has(key, entry.id);
        let handed = queue.hand_on(item.clone(), &self.stood, &ring, &is_deaf);
        hall.let_go(key, handed, client.clock().now());
        if handed.stuck {
            hall.leave_behind(key, &self.stood);
        }
        if self.unrung && !handed.ours {
            client.bells().missed();
        }
    }

    /// It was lost, and none of those who wait was told: takes our entries off the queue, if there are any left, and rings
    /// the next one if nobody has it.
    fn leave_the_line(&mut self) {
        let stood = std::mem::take(&mut self.stood);
        let Lock { client, route, key, .. } = self;
        let queue = Queue { client, route: *route, key: &key.waiters() };
        match queue.leave(&stood, Op::Get { key }) {
            Ok(Some(Reply::Missing)) => ring_next(client, *route, key),
            Ok(_) => {}
            Err(failure) => {
                log::debug!("The queue could not be left: {}", failure.error);
                client.mutex_waiters().leave_behind(key, &stood);
            }
        }
    }

    /// Gives it a new lease, counted from now: in one round trip, and only if it is still ours. The fence
    /// stays as it is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a lease out of range. [`ErrorKind::Unreachable`]: nothing was changed, and
    /// the old lease runs on. [`ErrorKind::Unknown`]: it may or may not have been extended; count on the
    /// shorter of the two leases, as [`Lock::remaining`] does.
    pub fn extend(&mut self, lease: Duration) -> Result<Extension> {
        let lease = Lease::new(lease)?;
        if !self.is_ours_to_use() {
            return Ok(if self.was_lost() { Extension::Lost } else { Extension::NotHeld });
        }
        match self.settle(Step::Extend(lease)) {
            Ok(Settled::Taken(_) | Settled::HandedOver { .. }) => Ok(Extension::Extended),
            Ok(Settled::Lost(_)) => {
                (self.held, self.lost) = (false, true);
                self.leave_the_line();
                Ok(Extension::Lost)
            }
            Err(error) => Err(self.said("Extending", error)),
        }
    }

    /// Lets go without waiting for the server: the lock is taken off at the client's next contact with it,
    /// or ends with its lease. For when unlocking failed and nobody will try again.
    pub fn abandon(mut self) {
        if self.is_ours_to_use() {
            self.held = false;
            self.client.remember_stray(self.route, &self.key, self.token, self.server_until);
        }
    }

    fn is_ours_to_use(&self) -> bool {
        self.held && (self.process == fork::generation() || flaw::has(Flaw::ChildrenHold))
    }

    fn was_lost(&self) -> bool {
        self.lost && self.process == fork::generation()
    }

    fn said(&self, doing: &str, error: Error) -> Error {
        error.during(format_args!("{doing} {}", self.key))
    }

    /// Takes a step that only the owner may take.
    pub(super) fn settle(&mut self, step: Step<'_>) -> Result<Settled> {
        let mut error = None;
        let (mut failures, mut unclear) = (0, 0);
        let mut read_first = self.release_in_doubt;
        let mut first_sent = None;
        for _ in 0..ROUNDS {
            let now = self.client.clock().now();
            let sent = *first_sent.get_or_insert(now);
            let deadline = match step {
                Step::Release | Step::HandOver(_) => self.deadline,
                Step::Extend(lease) => {
                    // It may reach the server at any time until its reply is given up.
                    self.server_until = self.server_until.max(lease.gone(now) + LATEST_ARRIVAL);
                    lease.deadline(now)
                }
            };
            // A queue that cannot be read must not keep us from letting go.
            let ring = self.rings && failures == 0 && matches!(step, Step::Release);
            let queue_key = ring.then(|| self.key.waiters());
            let (key, version) = (&self.key, self.version);
            let read = Op::Get { key };
            let op = match step {
                Step::Release => Op::Delete { key, version },
                Step::Extend(lease) => Op::Swap { key, version, value: &self.value, ttl: lease.ttl() },
                Step::HandOver(heir) => Op::Swap { key, version, value: heir.value, ttl: heir.lease.ttl() },
            };
            let queue = queue_key.as_ref().map_or(read, |key| Op::Get { key });
            let ops = [read, op, queue];
            let ops = &ops[usize::from(!read_first)..2 + usize::from(queue_key.is_some())];
            let replies = match self.client.run(self.route, ops) {
                Ok(replies) => replies,
                Err(failure) if !failure.sent && error.is_none() => {
                    // A memcached that has no room for a `Swap` refuses it and removes the item.
                    if failure.error.kind() == ErrorKind::Protocol
                        && let Ok(item) = self.client.get(self.route, &self.key)
                        && !item.is_some_and(|item| is_ours(&item.value, self.token))
                    {
                        return Ok(Settled::Lost(None));
                    }
                    // This one changed nothing; an earlier one may have.
                    let in_doubt = self.release_in_doubt;
                    return Err(if in_doubt { unsettled(Some(failure.error)) } else { failure.error });
                }
                Err(failure) => {
                    if failure.sent && flaw::has(Flaw::GuessReleased) && matches!(step, Step::Release) {
                        return Ok(Settled::Taken(None));
                    }
                    if failure.sent {
                        // It may be the shorter lease that counts from now on.
                        if !flaw::has(Flaw::HopeForTheLonger) {
                            self.deadline = self.deadline.min(deadline);
                        }
                        self.release_in_doubt |= !matches!(step, Step::Extend(_));
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
            match (answer, seen, step) {
                (Some(Reply::Deleted), ..) => return Ok(Settled::Taken(queue)),
                (Some(Reply::Stored(version)), _, Step::HandOver(_)) => {
                    return Ok(Settled::HandedOver { version, sent });
                }
                (Some(Reply::Stored(version)), ..) => {
                    let late = lease_from_reply(step, self.client.clock().now());
                    let before = std::mem::replace(&mut self.deadline, late.unwrap_or(deadline));
                    self.version = version;
                    return self.believe_if_slow(step, before).map(|()| Settled::Taken(None));
                }
                (_, Some(Reply::Value(item)), _)
                    if is_ours(&item.value, self.token) || flaw::has(Flaw::BlindDelete) =>
                {
                    self.version = item.version;
                    self.notice_waiters(&item.value);
                }
                // An earlier one of ours arrived.
                (_, Some(Reply::Value(item)), Step::HandOver(heir)) if is_ours(&item.value, heir.token) => {
                    return Ok(Settled::HandedOver { version: item.version, sent });
                }
                // The item is gone, or another's. If an earlier release of ours got no reply, it was most
                // likely that which removed it: but not if the server is another one since, nor if our lease
                // was over before. The store answers "changed" to a version of another life.
                // Gone when we read it, and changed when we came to it: another one took it in between, or our version is
                // of another life of the server. Its item tells.
                (Some(Reply::Changed), Some(Reply::Missing), _) if unclear < LOOKS => unclear += 1,
                (Some(last), Some(read), _) => {
                    let same_life = match read {
                        Reply::Value(item) => item.version.incarnation == self.version.incarnation,
                        _ => last == Reply::Missing,
                    };
                    let in_time = self.client.clock().now() < self.deadline;
                    let released = !matches!(step, Step::Extend(_));
                    let queue = queue.filter(|_| last == Reply::Missing);
                    return Ok(if released && self.release_in_doubt && same_life && in_time {
                        Settled::Taken(queue)
                    } else {
                        Settled::Lost(queue)
                    });
                }
                (Some(Reply::Changed), None, _) => read_first = true,
                _ => return Ok(Settled::Lost(queue)),
            }
        }
        Err(unsettled(error))
    }

    /// A waiter may have written into our record that it waits.
    fn notice_waiters(&mut self, value: &[u8]) {
        if !self.rings && OwnerRecord::parse(value).is_some_and(|record| record.rings) {
            self.rings = true;
            self.value.extend_from_slice(RINGS);
        }
    }

    /// After an extension that took suspiciously long: counts on no more than the server will keep the item for,
    /// or, if it does not say, than it would have kept it for before.
    fn believe_if_slow(&mut self, step: Step<'_>, before: Moment) -> Result<()> {
        let Step::Extend(lease) = step else { return Ok(()) };
        if self.client.clock().now() + lease.duration() < self.deadline + SUSPICIOUS_DELAY {
            return Ok(());
        }
        self.believe_the_server().map_err(|error| {
            self.deadline = self.deadline.min(before);
            Error::new(
                ErrorKind::Unknown,
                format!("It was extended, but for how long cannot be told: {error}"),
            )
        })
    }

    /// After a suspiciously slow grant: counts on no more than the server will keep the item for.
    pub(super) fn believe_the_server(&mut self) -> Result<()> {
        let sent = self.client.clock().now();
        let seen = self.client.get(self.route, &self.key)?;
        let kept = match seen.filter(|item| is_ours(&item.value, self.token)) {
            Some(item) => item.remaining.unwrap_or(Duration::MAX),
            None => Duration::ZERO,
        };
        // The last of the server's seconds may be over in no time.
        self.deadline = self.deadline.min(sent + kept.saturating_sub(CLOCK_ERROR));
        if self.remaining().is_zero() {
            return Err(Error::new(
                ErrorKind::Unreachable,
                "The server took longer to answer than the lease lasts; nothing is held. Ask for a longer lease.",
            ));
        }
        Ok(())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !self.is_ours_to_use() {
            return;
        }
        // Past that the server has let go of it by itself.
        if self.server_until <= self.client.clock().now() {
            self.leave_the_line();
            return;
        }
        if let Err(error) = self.unlock() {
            log::warn!("A lock could not be released when it was dropped. {error}");
            self.client.remember_stray(self.route, &self.key, self.token, self.server_until);
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("key", &self.key).field("fence", &self.fence).finish_non_exhaustive()
    }
}

/// When an extension would end that is counted from its answer.
fn lease_from_reply(step: Step<'_>, now: Moment) -> Option<Moment> {
    match step {
        Step::Extend(lease) if flaw::has(Flaw::ExtensionFromReply) => Some(lease.deadline(now)),
        _ => None,
    }
}

/// A step that only the owner may take.
#[derive(Clone, Copy)]
pub(super) enum Step<'a> {
    Release,
    Extend(Lease),
    /// To a waiter of this process.
    HandOver(&'a Heir<'a>),
}

/// Who is to have it next.
pub(super) struct Heir<'a> {
    pub(super) token: Token,
    pub(super) value: &'a [u8],
    pub(super) lease: Lease,
}

/// What came of a step.
pub(super) enum Settled {
    /// It was taken. A release also read the queue, if there may be one.
    Taken(Option<Item>),
    /// It is the heir's, by this version, from a request that left then.
    HandedOver { version: Version, sent: Moment },
    /// The lock was not ours any more; and here is the queue if nobody has it.
    Lost(Option<Item>),
}
