//! Acquiring: one acquisition on its way to its permits.

use std::cell::Cell;
use std::time::Duration;

use super::permit::{Grant, Permit};
use super::record::{Gathering, Holding};
use super::seen::Seen;
use super::{LIFE, Semaphore, Wrote};
use crate::client::ATTEMPTS;
use crate::clock::Moment;
use crate::contention::{ROUNDS, give_way};
use crate::error::{Error, Result};
use crate::flaw::{self, Flaw};
use crate::lease::covering;
use crate::owner::Token;
use crate::store::{Op, Reply};
use crate::wait::entries::{Request, WaitId};
use crate::wait::plan;
use crate::wait::queue::Room;
use crate::wait::{Goal, Stood};

/// For how many of the server's seconds newcomers let a waiter for several permits go first, if it does not ask for that
/// again.
const GATHERS: u64 = 5;

/// How often one that goes tries to take off that it gathers, where others write at the same time.
const MOST_TRIES: usize = 10;

/// One acquisition on its way: the same token however often it tries.
pub(super) struct Attempt<'a> {
    semaphore: &'a Semaphore,
    token: Token,
    request: Request,
    /// How it was seen last, if that was just now.
    seen: Option<Seen>,
    /// When the last look left.
    looked: Cell<Moment>,
    /// From when the first request counts its lease whose reply was lost: its permits may be ours without our knowing.
    in_doubt_since: Option<Moment>,
    /// When the last such request left.
    in_doubt_until: Option<Moment>,
    /// Permits that were granted, and not believed in, could not be given back.
    left: bool,
    /// We stood in the queue as a waiter that may not hear that it is woken.
    unproven: bool,
    /// How it was when it was refused the last time.
    refusal: &'a Cell<Option<Seen>>,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        semaphore: &'a Semaphore,
        request: Request,
        refusal: &'a Cell<Option<Seen>>,
    ) -> Result<Attempt<'a>> {
        let client = &semaphore.client;
        Ok(Attempt {
            semaphore,
            token: client.identity()?.token(),
            request,
            seen: semaphore.recall(),
            looked: Cell::new(client.clock().now()),
            in_doubt_since: None,
            in_doubt_until: None,
            left: false,
            unproven: false,
            refusal,
        })
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    /// Until when to look for what a request without a reply may have left.
    pub(super) fn stray_until(&self) -> Option<Moment> {
        self.in_doubt_until.map(|sent| self.semaphore.lease.gone(sent))
    }

    /// Whether something of ours may be on the server, or on its way there.
    pub(super) fn may_have_left_something(&self) -> bool {
        self.left || self.in_doubt_since.is_some()
    }

    /// What the semaphore is now, which is set up if there is none.
    fn look(&self) -> Result<Option<Seen>> {
        let semaphore = self.semaphore;
        match semaphore.look()? {
            Some(seen) => Ok(Some(seen)),
            None => semaphore.create(semaphore.client.identity()?.token(), covering(LIFE)),
        }
    }

    /// Whether we may take what we want.
    fn fits(&self, seen: &Seen, called: bool) -> bool {
        let Request { permits, priority, .. } = self.request;
        let overtakes = !called && seen.record.is_gathering(seen.now, self.token, priority);
        seen.record.available(seen.now) >= permits
            && seen.record.has_room(seen.now)
            && (!overtakes || flaw::has(Flaw::OvertakeGatherers))
    }

    /// Whether there will ever be as many as we want.
    fn check(&self, seen: &Seen) -> Result<()> {
        self.semaphore.agree(&seen.record)?;
        let wanted = self.request.permits;
        if wanted <= seen.record.permits {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{wanted} permits were asked for at once, and there are {}: they will never be available.",
            seen.record.permits
        )))
    }

    fn grant(&mut self, seen: Option<Seen>, grant: Grant, slow: bool) -> Result<Permit> {
        let late = flaw::has(Flaw::PermitDeadlineFromReply);
        let counted_from = if late { self.semaphore.client.clock().now() } else { grant.counted_from };
        let mut permit = Permit::new(self.semaphore.clone(), Grant { counted_from, ..grant }, seen);
        if slow
            && !flaw::has(Flaw::BelieveSlowGrants)
            && let Err(error) = permit.believe_the_server()
        {
            self.left = match permit.release() {
                Ok(_) => self.may_have_left_something(),
                Err(_) => {
                    permit.abandon();
                    true
                }
            };
            let error = if self.left { Error::unsettled(Some(error), "semaphore") } else { error };
            // That token is used up.
            let (left, unproven) = (self.left, self.unproven);
            *self = Attempt { left, unproven, ..Attempt::new(self.semaphore, self.request, self.refusal)? };
            return Err(error);
        }
        Ok(permit)
    }

    /// Lets newcomers know that we want several at once, as long as we look at it.
    fn gather(&self, seen: &Seen) {
        let other = seen.record.gathering.filter(|other| other.until > seen.now);
        let needless = other.is_some_and(|other| {
            let another = other.token != self.token && other.priority >= self.request.priority;
            another || other.token == self.token && other.until > seen.now.saturating_add(GATHERS / 2)
        });
        if !needless {
            let mut seen = seen.clone();
            let Request { priority, .. } = self.request;
            let until = seen.now.saturating_add(GATHERS);
            seen.record.gathering = Some(Gathering { token: self.token, priority, until });
            let _ = self.semaphore.write(seen, &[]);
        }
    }

    /// Lets newcomers have what we gathered, now that we go. Gives how it was when that was done.
    fn gather_no_more(&self, seen: Seen) -> Seen {
        let mut now = seen;
        for _ in 0..MOST_TRIES {
            let ours = now.record.gathering.is_some_and(|gathering| gathering.token == self.token);
            if !ours || flaw::has(Flaw::GatherForGood) {
                break;
            }
            let mut without = now.clone();
            without.record.gathering = None;
            match self.semaphore.write(without, &[]) {
                Ok(Wrote { done: false, after, .. }) => {
                    let Some(seen) = after.or_else(|| self.semaphore.look().ok().flatten()) else { break };
                    now = seen;
                }
                // It is over by itself in some seconds.
                _ => break,
            }
        }
        now
    }
}

impl Goal for Attempt<'_> {
    type Ask = ();
    type Got = Permit;

    fn attempt(&mut self, called: bool, enough: &dyn Fn() -> bool) -> Result<Option<Permit>> {
        let semaphore = self.semaphore;
        let client = &semaphore.client;
        // Some of our own strays may be what is in the way.
        client.take_off_strays(semaphore.route);
        let now = client.clock().now();
        let mut known = self.seen.take().filter(|seen| self.in_doubt_since.is_none() && seen.is_usable(now));
        let mut remembered = known.is_some();
        let (mut error, mut failures) = (None, 0);
        for round in 0..ROUNDS {
            let looked = match known.take() {
                Some(seen) => Ok(Some(seen)),
                None => self.look(),
            };
            let mut seen = match looked {
                Ok(Some(seen)) => seen,
                Ok(None) if failures + 1 < ATTEMPTS => {
                    failures += 1;
                    continue;
                }
                Ok(None) => break,
                Err(failed) if self.in_doubt_since.is_none() => return Err(failed),
                Err(failed) => {
                    error = Some(failed);
                    break;
                }
            };
            // What is only remembered may have changed.
            if std::mem::take(&mut remembered) && (self.check(&seen).is_err() || !self.fits(&seen, called)) {
                continue;
            }
            self.check(&seen)?;
            if let Some(holding) = seen.record.held_by(self.token) {
                let counted_from = self.in_doubt_since.unwrap_or(seen.sent);
                let (permits, slow) = (holding.permits, seen.is_slow());
                let grant = Grant { token: self.token, permits, counted_from, semaphore: seen.record.token };
                return self.grant(None, grant, slow).map(Some);
            }
            if !self.fits(&seen, called) {
                // By now it has another version than the one that a lost request was for.
                (self.in_doubt_since, self.in_doubt_until) = (None, None);
                self.refusal.set(Some(seen));
                return Ok(None);
            }
            let sent = client.clock().now();
            let (until, counted_from) = seen.lease(semaphore.lease, sent);
            let identity = client.identity()?;
            let (host, since) = (identity.host(), client.clock().unix_seconds());
            let permits = self.request.permits;
            let holding = Holding::new(self.token, permits, until, host, std::process::id(), since);
            seen.record.take(seen.now, holding);
            let (of, slow) = (seen.record.token, seen.is_slow());
            match semaphore.write(seen, &[]) {
                Ok(Wrote { done, after, .. }) => {
                    if done || flaw::has(Flaw::ChangedIsGranted) {
                        let doubt = self.in_doubt_since.unwrap_or(counted_from);
                        let counted_from = counted_from.min(doubt);
                        let grant = Grant { token: self.token, permits, counted_from, semaphore: of };
                        return self.grant(after, grant, slow).map(Some);
                    }
                    // Somebody else was faster, and here is what it made of it.
                    known = after;
                    if give_way(client, round)? {
                        known = None;
                        if self.in_doubt_since.is_none() && enough() {
                            return Ok(None);
                        }
                    }
                }
                Err(failure) => {
                    if failure.sent {
                        self.in_doubt_since.get_or_insert(counted_from);
                        self.in_doubt_until = Some(sent);
                    }
                    if self.in_doubt_since.is_none() {
                        return Err(failure.error);
                    }
                    if flaw::has(Flaw::ForgetLostPermits) {
                        (self.in_doubt_since, self.in_doubt_until) = (None, None);
                        self.token = client.identity()?.token();
                    }
                    failures += 1;
                    error = Some(failure.error);
                    if failures == ATTEMPTS || enough() {
                        break;
                    }
                }
            }
        }
        Err(Error::unsettled(error, "semaphore"))
    }

    fn look(&self) -> Op<'_> {
        self.looked.set(self.semaphore.client.clock().now());
        Op::Get { key: &self.semaphore.key }
    }

    fn seen(&mut self, reply: &Reply, first: bool) -> Result<plan::Seen> {
        let Some(seen) = self.semaphore.note(reply, self.looked.get())? else {
            // The next attempt sets it up, or says that it is not there.
            return Ok(plan::Seen::Free);
        };
        self.check(&seen)?;
        // Ours, by a request without a reply: the next attempt finds that out.
        if seen.record.held_by(self.token).is_some() {
            return Ok(plan::Seen::Free);
        }
        if self.fits(&seen, first) {
            self.seen = Some(seen).filter(|seen| !seen.is_slow());
            return Ok(plan::Seen::Free);
        }
        let end = seen.record.available_at(self.request.permits, seen.now);
        let left = end.map(|end| Duration::from_secs(end - seen.now));
        // A waiter before us that wants less is not to be kept off.
        if first && (self.request.permits > 1 || self.unproven) {
            self.gather(&seen);
        }
        self.refusal.set(Some(seen));
        Ok(plan::Seen::Held { rings: true, left })
    }

    fn room(&mut self, reply: &Reply) -> Option<Room> {
        let permits = match self.semaphore.note(reply, self.looked.get()) {
            Ok(Some(seen)) => {
                let seen = self.gather_no_more(seen);
                seen.record.available(seen.now)
            }
            // Whoever comes finds out.
            _ => u32::MAX,
        };
        (permits > 0).then_some(Room { permits, shared: true })
    }

    fn is_for_the_first(&self, reply: &Reply) -> bool {
        let Ok(Some(seen)) = self.semaphore.note(reply, self.looked.get()) else { return false };
        self.fits(&seen, true) && !self.fits(&seen, false)
    }

    fn request(&self) -> Request {
        self.request
    }

    fn stands(&mut self, _ids: &[WaitId], proven: bool) {
        self.unproven |= !proven;
    }

    fn ask(&self) {}

    fn will_wait(&mut self) {}

    fn stood(&mut self, permit: &mut Permit, Stood { ids, unrung, .. }: Stood) {
        let listed = unrung || self.unproven && !ids.is_empty();
        permit.stood_in_line(ids, listed);
    }

    fn decline(&mut self, mut permit: Permit) {
        if permit.release().is_err() {
            permit.abandon();
        }
    }
}
