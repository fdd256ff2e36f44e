//! Acquiring permits: one acquisition, from its first attempt to the grant.

use std::cell::Cell;
use std::time::Duration;

use super::batch;
use super::handle::{Semaphore, Wrote};
use super::operation::{Acquisition, Doubt, Kind, Operation, OperationOutcome, ServerClock};
use super::permit::{Grant, Permit};
use super::record::{Holding, Reservation};
use super::snapshot::{Refusal, Snapshot};
use super::submit;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::orphan;
use crate::mutation::{self, Mutation};
use crate::owner::Token;
use crate::store::{Op, Reply};
use crate::target::ATTEMPTS;
use crate::wait::entries::Request;
use crate::wait::policy;
use crate::wait::queue::Capacity;
use crate::wait::{Acquire, QueueReceipt};
use crate::wait_id::WaitId;

/// For how many of the server's seconds new callers must not overtake a waiter for several permits,
/// unless it renews its reservation.
const RESERVATION_SECONDS: u64 = 5;

/// A snapshot is written over if its age, besides the time of its reply, is no more than this.
const JUST_NOW: Duration = Duration::from_millis(1);

/// How often a leaving waiter tries to remove its reservation while other clients write.
const MOST_TRIES: usize = 10;

/// One acquisition. All its attempts use the same token.
pub(super) struct Attempt<'a> {
    semaphore: &'a Semaphore,
    token: Token,
    /// By which another thread of this process hands a permit off to this one.
    handoff: Token,
    request: Request,
    /// When the caller's wait ends; `None`: never, or the caller tries once.
    until: Option<Moment>,
    /// The last snapshot, if it was taken just now.
    snapshot: Option<Snapshot>,
    /// When the last inspection was sent.
    looked: Cell<Moment>,
    /// Set when a reply was lost: this acquisition may hold permits without knowing.
    in_doubt: Option<Doubt>,
    /// Set while the record may have this waiter's reservation.
    reserved: Cell<bool>,
    /// Set when granted permits that were given up could not be released.
    left: bool,
    /// Whether the waiter was in the queue as one that may not receive its wake-up.
    unproven: bool,
    /// The semaphore's state at the last refusal.
    refusal: &'a Cell<Option<Refusal>>,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        semaphore: &'a Semaphore,
        request: Request,
        until: Option<Moment>,
        refusal: &'a Cell<Option<Refusal>>,
    ) -> Result<Attempt<'a>> {
        let context = &semaphore.target.context;
        Ok(Attempt {
            semaphore,
            token: context.identity()?.token(),
            handoff: context.identity()?.token(),
            request,
            until,
            snapshot: None,
            looked: Cell::new(context.clock().now()),
            in_doubt: None,
            reserved: Cell::new(false),
            left: false,
            unproven: false,
            refusal,
        })
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    /// Until when to look for a grant that a request without a reply may have left.
    pub(super) fn orphan_until(&self) -> Option<Moment> {
        let guarantees = self.semaphore.target.context.guarantees();
        self.in_doubt.map(|doubt| guarantees.gone(self.semaphore.lease, doubt.until))
    }

    /// Whether a grant of this acquisition may be on the server, or on its way there.
    pub(super) fn may_have_left_something(&self) -> bool {
        self.left || self.in_doubt.is_some()
    }

    /// Whether this acquisition may take its permits.
    fn fits(&self, snapshot: &Snapshot, called: bool) -> bool {
        let Snapshot { record, now, .. } = snapshot;
        let available = snapshot.available(self.semaphore.target.now());
        record.has_room(*now) && batch::fits(&self.acquire(called), record, *now, available)
    }

    /// Checks that this handle goes on with a semaphore of `number` permits, and that as many as
    /// are requested will ever be available.
    fn check(&self, number: u32) -> Result<()> {
        let (semaphore, wanted) = (self.semaphore, self.request.permits);
        if wanted <= semaphore.agree(number)? {
            return Ok(());
        }
        // It may have been read before another thread changed it by this handle. If there is none any
        // more, the next attempt finds out what that means.
        let Some(snapshot) = semaphore.inspect()? else { return Ok(()) };
        let number = semaphore.agree(snapshot.record.permits)?;
        if wanted <= number {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{wanted} were asked for at once, and it has {number}: they will never be available. Ask \
             for {number} at most, or change its number with `memlock resize`."
        )))
    }

    fn grant(&mut self, grant: Grant, clock: ServerClock) -> Result<Permit> {
        let late = mutation::has(Mutation::PermitDeadlineFromReply);
        let counted_from = if late { self.semaphore.target.now() } else { grant.counted_from };
        let grant = Grant { counted_from, ..grant };
        let mut permit = grant.into_permit(self.semaphore.clone());
        if let Err(error) = permit.verify(clock) {
            self.left = match permit.release() {
                Ok(_) => self.may_have_left_something(),
                Err(_) => {
                    permit.abandon();
                    true
                }
            };
            let error = if self.left { Error::unresolved(Some(error), "semaphore") } else { error };
            // This token is used up.
            let (left, unproven) = (self.left, self.unproven);
            let anew = Attempt::new(self.semaphore, self.request, self.until, self.refusal)?;
            *self = Attempt { left, unproven, ..anew };
            return Err(error);
        }
        Ok(permit)
    }

    /// Acts on the outcome of an operation.
    fn conclude(
        &mut self,
        mut outcome: OperationOutcome,
        called: bool,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Option<Permit>> {
        let semaphore = self.semaphore;
        for _ in 0..ATTEMPTS {
            match outcome {
                OperationOutcome::Granted { confirmed, permits, counted_from, clock } => {
                    let (token, number) = (self.token, confirmed.number);
                    let grant = Grant { token, permits, counted_from, confirmed };
                    let opened = semaphore.learn(number);
                    let granted = self.grant(grant, clock);
                    // The logger is not ours, and may panic: what was granted is released then.
                    semaphore.log_mismatch(number, opened);
                    return granted.map(Some);
                }
                OperationOutcome::NoRoom { refusal } => {
                    match refusal {
                        Some(refusal) => {
                            self.check(refusal.permits)?;
                            self.refusal.set(Some(refusal));
                        }
                        // It may have been dropped untried.
                        None => {
                            let skipped = semaphore.target.skip_if_silent();
                            skipped.map_err(|failure| failure.error)?;
                        }
                    }
                    return Ok(None);
                }
                OperationOutcome::Unfit { number, is_first } => {
                    // Another thread may have learned the number by this handle in the meantime, or
                    // changed it.
                    if !(is_first && semaphore.knows_the_number()) {
                        self.check(number)?;
                    }
                    outcome = self.submit(called, is_over);
                }
                OperationOutcome::Missing => return Err(semaphore.not_found()),
                OperationOutcome::Failed(error) => return Err(error),
                OperationOutcome::Unresolved(error) => {
                    return Err(Error::unresolved(error, "semaphore"));
                }
                OperationOutcome::Released { .. }
                | OperationOutcome::Extended { .. }
                | OperationOutcome::Gone { .. } => {
                    let text = "An acquisition was answered as another step.";
                    return Err(Error::new(ErrorKind::Internal, text));
                }
            }
        }
        Err(Error::unresolved(None, "semaphore"))
    }

    /// Tries once, together with the operations of other threads of this process.
    fn submit(&mut self, called: bool, is_over: &dyn Fn() -> bool) -> OperationOutcome {
        let semaphore = self.semaphore;
        let kind = Kind::Acquisition(self.acquire(called));
        let operation = Operation { until: self.until, ..Operation::new(kind, self.in_doubt) };
        // A snapshot from before this thread slept is not written over: other clients have written
        // since.
        let now = semaphore.target.now();
        let is_fresh =
            |snapshot: &Snapshot| now.since(snapshot.sent) <= snapshot.took * 2 + JUST_NOW;
        let snapshot = self.snapshot.take().filter(is_fresh);
        // A leader of another thread may still ask a silent server for others.
        let is_over = || semaphore.target.is_skipped() || is_over();
        let completion = submit::submit(semaphore, operation, snapshot, &is_over);
        (self.token, self.in_doubt) = (completion.token.unwrap_or(self.token), completion.in_doubt);
        completion.outcome
    }

    fn acquire(&self, called: bool) -> Acquisition {
        let semaphore = self.semaphore;
        let Request { permits, priority, .. } = self.request;
        Acquisition {
            token: self.token,
            permits,
            priority,
            called,
            lease: semaphore.lease,
            expected: semaphore.expected(),
            set_up_with: semaphore.number(),
        }
    }

    /// Reserves permits for this waiter, so that new callers do not take them. Inspections renew
    /// the reservation.
    fn reserve(&self, snapshot: &Snapshot) {
        let other = snapshot.record.reservation.filter(|other| other.until > snapshot.now);
        let needless = other.is_some_and(|other| {
            let another = other.token != self.token && other.priority >= self.request.priority;
            another
                || other.token == self.token
                    && other.until > snapshot.now.saturating_add(RESERVATION_SECONDS / 2)
        });
        if !needless {
            let mut snapshot = snapshot.clone();
            let Request { priority, .. } = self.request;
            let until = snapshot.now.saturating_add(RESERVATION_SECONDS);
            snapshot.record.reservation = Some(Reservation { token: self.token, priority, until });
            self.reserved.set(true);
            let _ = self.semaphore.write(snapshot);
        }
    }

    /// Called when the wait has ended, with the token of the permits if there are any: removes a
    /// reservation that is left, because another waiter of this process took over the place in the
    /// queue, or another thread handed the permit off.
    pub(super) fn end(&self, granted: Option<Token>) {
        if !self.reserved.get()
            || granted == Some(self.token)
            || mutation::has(Mutation::LeaveReservation)
        {
            return;
        }
        let target = self.semaphore.target.for_drop();
        let semaphore = Semaphore { target, ..self.semaphore.clone() };
        if let Ok(Some(snapshot)) = semaphore.inspect() {
            self.cancel_reservation(&semaphore, snapshot);
        }
    }

    /// Removes the reservation of this leaving waiter. Returns the semaphore's state afterwards.
    fn cancel_reservation(&self, semaphore: &Semaphore, snapshot: Snapshot) -> Snapshot {
        self.reserved.set(false);
        let mut now = snapshot;
        for _ in 0..MOST_TRIES {
            let ours =
                now.record.reservation.is_some_and(|reservation| reservation.token == self.token);
            if !ours || mutation::has(Mutation::GatherForGood) {
                break;
            }
            let mut without = now.clone();
            without.record.reservation = None;
            match semaphore.write(without) {
                Ok(Wrote { done: false, after, .. }) => {
                    let Some(snapshot) = after.or_else(|| semaphore.inspect().ok().flatten())
                    else {
                        break;
                    };
                    now = snapshot;
                }
                // The reservation is removed, or expires within some seconds.
                _ => break,
            }
        }
        now
    }
}

impl Acquire for Attempt<'_> {
    type HandoffRequest = Acquisition;
    type Guard = Permit;

    fn is_shared(&self) -> bool {
        true
    }

    fn attempt(&mut self, called: bool, is_over: &dyn Fn() -> bool) -> Result<Option<Permit>> {
        // Orphaned grants of this client may be what holds the permits.
        orphan::reap(&self.semaphore.target);
        let outcome = self.submit(called, is_over);
        self.conclude(outcome, called, is_over)
    }

    fn recovers(&self) -> bool {
        let refusal = self.refusal.take();
        let was_refused = refusal.as_ref().is_some_and(|refusal| refusal.recovers);
        self.refusal.set(refusal);
        was_refused || self.semaphore.recovery().is_some()
    }

    fn inspection(&self) -> Op<'_> {
        self.looked.set(self.semaphore.target.now());
        Op::get(&self.semaphore.target.key)
    }

    fn needs(&self, reply: &Reply, held: &[Token]) -> bool {
        let Ok(Some(Snapshot { record, now, .. })) = self.semaphore.note(reply, self.looked.get())
        else {
            return false;
        };
        // Beyond the lease, the server keeps them for this long.
        let longer = self.semaphore.target.context.guarantees().covering_seconds(Duration::ZERO);
        let is_over = |holding: &&Holding| holding.until.saturating_sub(now) <= longer;
        let holdings = record.holdings.iter().filter(|holding| !is_over(holding));
        let ours = holdings.filter(|holding| held.contains(&holding.token));
        let ours = ours.fold(0, |sum: u32, holding| sum.saturating_add(holding.permits));
        ours > 0 && record.permits.saturating_sub(ours) < self.request.permits
    }

    fn state(&mut self, reply: &Reply, first: bool) -> Result<policy::TargetState> {
        self.snapshot = None;
        let Some(snapshot) = self.semaphore.note(reply, self.looked.get())? else {
            // The next attempt sets the semaphore up, or reports that it is missing.
            let recovers = self.semaphore.recovery().map(|recovery| recovery.left);
            return Ok(policy::TargetState::of_missing(recovers));
        };
        self.check(snapshot.record.permits)?;
        // Granted by a request without a reply.
        if snapshot.record.held_by(self.token).is_some() {
            return Ok(policy::TargetState::Ours);
        }
        if self.fits(&snapshot, first) {
            self.snapshot = Some(snapshot).filter(|snapshot| !snapshot.is_slow());
            return Ok(policy::TargetState::Free);
        }
        let at = self.semaphore.target.now();
        let left = snapshot.available_in(self.request.permits, at);
        // Only the first waiter reserves: a waiter before this one that requests less must not be
        // blocked.
        if first && (self.request.permits > 1 || self.unproven) {
            self.reserve(&snapshot);
        }
        self.refusal.set(Some(snapshot.refusal(at)));
        Ok(policy::TargetState::Held { notifies: true, left })
    }

    fn capacity(&mut self, reply: &Reply, leaves: bool) -> Option<Capacity> {
        let permits = match self.semaphore.note(reply, self.looked.get()) {
            Ok(Some(snapshot)) => {
                let snapshot = match leaves {
                    true => self.cancel_reservation(self.semaphore, snapshot),
                    false => snapshot,
                };
                snapshot.capacity(self.semaphore.target.now())
            }
            _ if self.semaphore.recovery().is_some() => 0,
            // The next attempt finds out.
            _ => u32::MAX,
        };
        (permits > 0).then_some(Capacity { permits, shared: true })
    }

    fn is_for_the_first(&self, reply: &Reply) -> bool {
        let Ok(Some(snapshot)) = self.semaphore.note(reply, self.looked.get()) else {
            return false;
        };
        self.fits(&snapshot, true) && !self.fits(&snapshot, false)
    }

    fn request(&self) -> Request {
        self.request
    }

    fn joined(&mut self, _ids: &[WaitId], proven: bool) {
        self.unproven |= !proven;
    }

    fn handoff_request(&self) -> Acquisition {
        Acquisition { token: self.handoff, ..self.acquire(false) }
    }

    fn will_wait(&mut self) {}

    fn acquired_from_queue(
        &mut self,
        permit: &mut Permit,
        QueueReceipt { ids, unwoken, .. }: QueueReceipt,
    ) {
        let (number, mut opened) = (permit.kind.confirmed.get().number, None);
        // Another thread has handed it off: `conclude` has done this for the others.
        if permit.token != self.token {
            permit.kind.semaphore = self.semaphore.clone();
            opened = self.semaphore.learn(number);
        }
        let listed = unwoken || self.unproven && !ids.is_empty();
        permit.remember_entries(ids, listed);
        self.semaphore.log_mismatch(number, opened);
    }

    fn give_back(&mut self, mut permit: Permit) {
        if permit.release().is_err() {
            permit.abandon();
        }
    }
}
