//! The mutex: one item on the server, `lock:<name>`, whose value says who owns it.
//!
//! | state of the item | what is true | who may move it on, and how |
//! | --- | --- | --- |
//! | none | the mutex is free | anybody, by `Add` of a record with a fresh token |
//! | our token, before our deadline | we hold it | we, by `Delete` or `Swap` of the version we know |
//! | our token, past our deadline | nobody holds it; the server drops it within 2 seconds | we, as above: nobody can have been in between |
//! | another token, or a plain client's value | another holds it | its owner; the server, when its TTL ends; an operator by [`Mutex::force_unlock`] |
//!
//! The item alone decides. The deadline is counted on our boot clock from before the request left, so we
//! stop believing in a lock before the server gives it to somebody else.
//!
//! **Lost replies.** A request whose reply does not come may have been carried out. We then ask again on a
//! fresh connection, with the same token, and read the item back in the same packet: the token says whether
//! it is ours. Only if that fails too is the outcome unknown; the lock is then remembered and taken off as
//! soon as the server answers again.
//!
//! **Versions.** A version is good only for the life of the server that gave it; the store answers "changed"
//! to one of another life. "Changed" is never taken for "lost": the item is read, and if it carries our token
//! (somebody appended nothing to it, say) the step is taken again with the version it has now.
//!
//! The idea of `add` as a lock is Brad Fitzpatrick's answer to Kyle Burton on the memcached list in 2004.

use std::fmt;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::client::{ATTEMPTS, Client};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::fork;
use crate::lease::Lease;
use crate::name::{Key, hex};
use crate::owner::{OwnerRecord, Token, is_ours};
use crate::store::{Op, Reply, Route, Version};
use crate::wait::{self, Wait, Waited};

/// How often a step is taken anew because the lock's version was found to be another.
const ROUNDS: usize = 10;

/// When a grant took longer than this, the server may have been stopped, and its once-a-second clock may
/// have stood still while it stored our item. We then ask it how long the item really lives.
const SUSPICIOUS_DELAY: Duration = Duration::from_millis(500);

/// By how much an item may outlive its lease on the server.
const SERVER_SLACK: Duration = Duration::from_secs(2);

/// A mutex by its name. It can be used from any number of threads at once; each call to `lock` competes
/// with every other, in this process and elsewhere. It is not re-entrant.
#[derive(Clone, Debug)]
pub struct Mutex {
    client: Client,
    route: Route,
    key: Key,
    lease: Lease,
}

impl Mutex {
    pub(crate) fn new(client: Client, key: Key, lease: Lease) -> Mutex {
        Mutex { client, route: Route::of(&key), key, lease }
    }

    /// Waits for as long as it takes.
    ///
    /// # Errors
    /// See [`Mutex::lock_with`]; and [`ErrorKind::Interrupted`] when [`Client::cancel_waits`] ended the wait.
    pub fn lock(&self) -> Result<Lock> {
        self.lock_with(&Wait::FOREVER)?.done().ok_or_else(|| {
            Error::new(ErrorKind::Interrupted, "The wait for the lock was cancelled; nothing is held.")
        })
    }

    /// Tries once; `None` when another holds it. One round trip.
    ///
    /// # Errors
    /// See [`Mutex::lock_with`].
    pub fn try_lock(&self) -> Result<Option<Lock>> {
        Ok(self.lock_with(&Wait::NEVER)?.done())
    }

    /// Waits at most `limit`; `None` when it passed.
    ///
    /// # Errors
    /// See [`Mutex::lock_with`].
    pub fn lock_for(&self, limit: Duration) -> Result<Option<Lock>> {
        Ok(self.lock_with(&Wait::at_most(limit))?.done())
    }

    /// Waits as `wait` says. A free lock is taken in one round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when the server cannot be reached at the first attempt, or while waiting
    /// for longer than the URL's `outage` (5 seconds); nothing is held.
    /// [`ErrorKind::Unknown`] when a request was sent and neither its reply nor the item could be read;
    /// should it have been granted, it is taken off at the next contact or ends with its lease.
    /// [`ErrorKind::Protocol`] when the server is too old, runs without cas, or answers nonsense.
    pub fn lock_with(&self, wait: &Wait<'_>) -> Result<Waited<Lock>> {
        self.client.take_off_strays(self.route);
        let identity = self.client.identity()?;
        let token = identity.token();
        let value = identity.record(token, self.client.clock());
        let mut attempt = Attempt { mutex: self, token, value, in_doubt_since: None };
        let waited =
            self.client.waiting(|around| wait::poll(wait, around, |interrupted| attempt.run(interrupted)));
        if let (Some(sent), false) = (attempt.in_doubt_since, matches!(waited, Ok(Waited::Done(_)))) {
            let until = sent + self.lease.duration() + SERVER_SLACK;
            self.client.remember_stray(self.route, &self.key, token, until);
        }
        waited.map_err(|error| error.during(format_args!("Locking {}", self.key)))
    }

    /// Who holds it, if anybody. What is read is already past: it is for people, not for decisions.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] or [`ErrorKind::Protocol`], as for any read.
    pub fn owner(&self) -> Result<Option<Owner>> {
        Ok(self.seen()?.map(|(owner, _)| owner))
    }

    /// Takes the lock away from the holder that [`Owner::token`] named: for operators who know that it is
    /// dead. False when that acquisition does not hold it any more; a later holder is never touched. The
    /// old holder finds its lock lost.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], [`ErrorKind::Unknown`] or [`ErrorKind::Protocol`].
    pub fn force_unlock(&self, token: &str) -> Result<bool> {
        for _ in 0..ROUNDS {
            let Some((owner, version)) = self.seen()? else { return Ok(false) };
            if owner.token() != token {
                return Ok(false);
            }
            match self.client.one(self.route, Op::Delete { key: &self.key, version }) {
                Ok(Reply::Deleted) => return Ok(true),
                Ok(Reply::Missing) => return Ok(false),
                Ok(_) => {}
                Err(failure) => return Err(failure.error),
            }
        }
        Err(Error::new(
            ErrorKind::Unknown,
            format!("The lock {} changes too fast to be taken off.", self.key),
        ))
    }

    fn seen(&self) -> Result<Option<(Owner, Version)>> {
        Ok(self.client.get(self.route, &self.key)?.map(|item| {
            let record = OwnerRecord::parse(&item.value);
            (Owner { record, value: item.value, remaining: item.remaining }, item.version)
        }))
    }
}

/// Who was seen to hold a mutex.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Owner {
    /// What memlock wrote; `None` when a plain memcached client holds it.
    pub record: Option<OwnerRecord>,
    /// The item's value as it is.
    pub value: Vec<u8>,
    /// How long the server keeps it yet, in its whole seconds; `None`: for ever.
    pub remaining: Option<Duration>,
}

impl Owner {
    /// What names this acquisition: the token, or the hash of a plain client's value.
    pub fn token(&self) -> String {
        match &self.record {
            Some(record) => record.token.to_string(),
            None => format!("plain:{}", hex(&Sha256::digest(&self.value))),
        }
    }
}

/// One acquisition on its way: the same token however often it tries.
struct Attempt<'a> {
    mutex: &'a Mutex,
    token: Token,
    value: Vec<u8>,
    /// When a request left whose reply was lost: from then on the item may be ours without our knowing.
    in_doubt_since: Option<Moment>,
}

impl Attempt<'_> {
    /// Tries once, and finds out what came of it. `interrupted`: whether to leave that for later.
    fn run(&mut self, interrupted: &dyn Fn() -> bool) -> Result<Option<Lock>> {
        let Mutex { client, route, key, .. } = self.mutex;
        let mut error = None;
        for _ in 0..ATTEMPTS {
            let sent = client.clock().now();
            let ops = [self.add(), Op::Get { key }];
            // The item needs to be read only if it may be ours.
            let ops = if self.in_doubt_since.is_some() { &ops[..] } else { &ops[..1] };
            match client.run(*route, ops) {
                Ok(replies) => match (replies.first(), replies.get(1)) {
                    (Some(&Reply::Stored(version)), _) => return self.grant(version, sent).map(Some),
                    (_, Some(Reply::Value(item))) if is_ours(&item.value, self.token) => {
                        let version = item.version;
                        return self.grant(version, self.in_doubt_since.unwrap_or(sent)).map(Some);
                    }
                    _ => return Ok(None),
                },
                Err(failure) => {
                    if failure.sent {
                        self.in_doubt_since.get_or_insert(sent);
                    }
                    if self.in_doubt_since.is_none() {
                        return Err(failure.error);
                    }
                    error = Some(failure.error);
                    if interrupted() {
                        break;
                    }
                }
            }
        }
        Err(unsettled(error))
    }

    fn add(&self) -> Op<'_> {
        Op::Add { key: &self.mutex.key, value: &self.value, ttl: self.mutex.lease.ttl() }
    }

    fn grant(&mut self, version: Version, sent: Moment) -> Result<Lock> {
        let Mutex { client, route, key, lease } = self.mutex;
        let mut lock = Lock {
            client: client.clone(),
            route: *route,
            key: key.clone(),
            token: self.token,
            value: std::mem::take(&mut self.value),
            version,
            fence: version.fence(),
            deadline: lease.deadline(sent),
            process: fork::generation(),
            held: true,
            lost: false,
            release_in_doubt: false,
            stray: self.in_doubt_since.map(|sent| sent + lease.duration() + SERVER_SLACK),
        };
        if client.clock().now().since(sent) > SUSPICIOUS_DELAY {
            lock.believe_the_server()?;
        }
        Ok(lock)
    }
}

/// A mutex that is held. Dropping it unlocks, as well as that can be done; [`Lock::unlock`] tells how it
/// went.
///
/// In a child made by `fork` it is dead: the child holds nothing, and neither unlocking nor dropping it
/// there touches the parent's lock.
#[must_use = "the mutex is unlocked as soon as the Lock is dropped"]
pub struct Lock {
    client: Client,
    route: Route,
    key: Key,
    token: Token,
    value: Vec<u8>,
    version: Version,
    fence: u64,
    deadline: Moment,
    process: u64,
    held: bool,
    /// Whether it was found lost.
    lost: bool,
    /// Set when a release of ours was sent and its outcome is not known.
    release_in_doubt: bool,
    /// Set when a request of ours may still be under way: until when to look for what it may have left.
    stray: Option<Moment>,
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
        if self.is_ours_to_use() { self.deadline } else { Moment::from_boot(Duration::ZERO) }
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
        let settled = self.settle(Step::Release).map_err(|error| self.said("Unlocking", error))?;
        self.held = false;
        if let Some(until) = self.stray {
            self.client.remember_stray(self.route, &self.key, self.token, until);
        }
        Ok(if settled { Release::Released } else { Release::Lost })
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
            Ok(true) => Ok(Extension::Extended),
            Ok(false) => {
                (self.held, self.lost) = (false, true);
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
            self.client.remember_stray(self.route, &self.key, self.token, self.deadline + SERVER_SLACK);
        }
    }

    fn is_ours_to_use(&self) -> bool {
        self.held && self.process == fork::generation()
    }

    fn was_lost(&self) -> bool {
        self.lost && self.process == fork::generation()
    }

    fn said(&self, doing: &str, error: Error) -> Error {
        error.during(format_args!("{doing} {}", self.key))
    }

    /// Takes a step that only the owner may take. True when it was taken, false when the lock was lost.
    fn settle(&mut self, step: Step) -> Result<bool> {
        let mut error = None;
        let mut failures = 0;
        let mut read_first = self.release_in_doubt;
        for _ in 0..ROUNDS {
            let deadline = match step {
                Step::Release => self.deadline,
                Step::Extend(lease) => lease.deadline(self.client.clock().now()),
            };
            let (key, version) = (&self.key, self.version);
            let op = match step {
                Step::Release => Op::Delete { key, version },
                Step::Extend(lease) => Op::Swap { key, version, value: &self.value, ttl: lease.ttl() },
            };
            let ops = [Op::Get { key }, op];
            let replies = match self.client.run(self.route, if read_first { &ops } else { &ops[1..] }) {
                Ok(replies) => replies,
                Err(failure) if !failure.sent && error.is_none() => return Err(failure.error),
                Err(failure) => {
                    if failure.sent {
                        // It may be the shorter lease that counts from now on.
                        self.deadline = self.deadline.min(deadline);
                        self.release_in_doubt |= matches!(step, Step::Release);
                    }
                    (error, read_first) = (Some(failure.error), true);
                    failures += 1;
                    if failures == ATTEMPTS {
                        break;
                    }
                    continue;
                }
            };
            match (replies.last(), read_first.then(|| replies.first()).flatten()) {
                (Some(Reply::Deleted), _) => return Ok(true),
                (Some(&Reply::Stored(version)), _) => {
                    (self.version, self.deadline) = (version, deadline);
                    return Ok(true);
                }
                (_, Some(Reply::Value(item))) if is_ours(&item.value, self.token) => {
                    self.version = item.version
                }
                // The item is gone, or another's. If an earlier release of ours got no reply, it was most
                // likely that which removed it: but not if the server is another one since, nor if our lease
                // was over before. The store answers "changed" to a version of another life.
                (Some(last), Some(read)) => {
                    let same_life = match read {
                        Reply::Value(item) => item.version.incarnation == self.version.incarnation,
                        _ => *last == Reply::Missing,
                    };
                    let in_time = self.client.clock().now() < self.deadline;
                    return Ok(matches!(step, Step::Release)
                        && self.release_in_doubt
                        && same_life
                        && in_time);
                }
                (Some(Reply::Changed), None) => read_first = true,
                _ => return Ok(false),
            }
        }
        Err(unsettled(error))
    }

    /// After a suspiciously slow grant: counts on no more than the server will keep the item for.
    fn believe_the_server(&mut self) -> Result<()> {
        let sent = self.client.clock().now();
        let seen = self.client.get(self.route, &self.key)?;
        let kept = match seen.filter(|item| is_ours(&item.value, self.token)) {
            Some(item) => item.remaining.unwrap_or(Duration::MAX),
            None => Duration::ZERO,
        };
        // The last of the server's seconds may be over in no time.
        self.deadline = self.deadline.min(sent + kept.saturating_sub(Duration::from_secs(1)));
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
        // Past that the server has let go of it by itself.
        if !self.is_ours_to_use() || self.deadline + SERVER_SLACK <= self.client.clock().now() {
            return;
        }
        if let Err(error) = self.unlock() {
            log::warn!("A lock could not be released when it was dropped. {error}");
            self.client.remember_stray(self.route, &self.key, self.token, self.deadline + SERVER_SLACK);
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("key", &self.key).field("fence", &self.fence).finish_non_exhaustive()
    }
}

/// A step that only the owner may take.
#[derive(Clone, Copy)]
enum Step {
    Release,
    Extend(Lease),
}

/// The error of a step whose outcome could not be found out.
fn unsettled(error: Option<Error>) -> Error {
    match error {
        Some(error) if !error.is_outage() => error,
        Some(error) => Error::new(
            ErrorKind::Unknown,
            format!("The request was sent, and neither its reply nor the lock could be read ({error})"),
        ),
        None => {
            Error::new(ErrorKind::Unknown, "The lock is changed by somebody else faster than it can be read.")
        }
    }
}
