//! The leader: the thread that reads and writes the record for all listed operations. See
//! `combine`.

use std::cell::Cell;
use std::time::Duration;

use super::batch;
use super::combine::{Combiner, Memory, Others};
use super::handle::{LIFE, Semaphore, Wrote};
use super::member::{Member, Origin, Planned, Writer, Writing};
use super::operation::{
    Acquisition, Kind, Operation, OperationOutcome, Reclaimable, Release, ServerClock, Wakes,
};
use super::permit::{Grant, Permit};
use super::snapshot::{Confirmation, Refusal, Snapshot};
use super::ticket::{Completion, Entry};
use super::wake::{REAPER, local_waiters};
use crate::cas_backoff::ROUNDS;
use crate::clock::Moment;
use crate::error::Error;
use crate::guard::orphan;
use crate::mutation::{self, Mutation};
use crate::owner::Token;
use crate::store::{Failure, Op, Reply};
use crate::target::{ATTEMPTS, Target};
use crate::wait::entries;
use crate::wait::local::HandingOff;
use crate::wait_id::WaitId;

/// A process that was refused retries within this time; after the next refusal within twice this
/// time, and so on, up to `MOST_SPREADS` times this time. Otherwise, holders with equally long
/// holds would collide each time.
const SPREAD: Duration = Duration::from_micros(1200);
const MOST_SPREADS: u32 = 4;
/// After this many refusals, and each multiple, the leader asks whether its caller still waits.
const CALLS_ENOUGH: usize = 4;

/// A record for several operations that was read from a server that may have been stopped is read
/// again, up to this many reads: otherwise each granted operation would have to read it again.
const MOST_LOOKS: usize = 3;

pub(super) struct Leader<'a> {
    combiner: &'a Combiner,
    semaphore: &'a Semaphore,
    /// The leader's own operation is the first, until it is completed.
    batch: Vec<Member<'a>>,
    own: Option<Completion>,
    /// The record to build on, if any; and whether it is only remembered.
    snapshot: Option<(Snapshot, bool)>,
    /// The last write of this process, and the record after it, if no other process was using the
    /// semaphore.
    written: Option<(Token, u64)>,
    after: Option<Snapshot>,
    /// How often in a row another process was faster.
    refused: usize,
    writing: Option<Writing>,
    /// Set if the leader performs only its own operation, outside of the combiner: see `submit`.
    alone: bool,
    /// The leader's own operation is not wanted any more.
    is_over: bool,
}

impl<'a> Leader<'a> {
    pub(super) fn new(
        combiner: &'a Combiner,
        semaphore: &'a Semaphore,
        own: Operation,
        known: Option<Snapshot>,
        memory: Memory,
    ) -> Leader<'a> {
        let now = semaphore.target.now();
        let is_safe = own.in_doubt.is_none();
        let known = known.or(memory.snapshot).filter(|snapshot| snapshot.is_usable(now) && is_safe);
        Leader {
            combiner,
            semaphore,
            batch: vec![Member::of(own, Origin::Own)],
            own: None,
            snapshot: known.map(|snapshot| (snapshot, true)),
            written: memory.written,
            after: None,
            refused: 0,
            writing: None,
            alone: false,
            is_over: false,
        }
    }

    /// A leader that performs only its own operation.
    pub(super) fn alone(
        semaphore: &'a Semaphore,
        own: Operation,
        known: Option<Snapshot>,
    ) -> Leader<'a> {
        let memory = Memory::default();
        let mut leader = Leader::new(semaphore.combiner(), semaphore, own, known, memory);
        leader.alone = true;
        leader
    }

    /// Leads until its own operation is completed.
    pub(super) fn run(mut self, is_over: &dyn Fn() -> bool) -> Completion {
        loop {
            if let Some(own) = self.own.take() {
                return own;
            }
            self.take_in();
            let is_over_now = self.is_over;
            self.settle_where(&mut |member| {
                let unwanted = match &member.origin {
                    Origin::Own => is_over_now,
                    Origin::Thread(ticket) => ticket.is_unwanted(),
                    Origin::Waiter(_) => false,
                };
                // An acquisition that is not in doubt can be dropped at any moment.
                (unwanted && member.is_idle()).then_some(OperationOutcome::NoRoom { refusal: None })
            });
            if self.own.is_none() {
                self.round(is_over);
            }
        }
    }

    /// Takes the operations that were listed since.
    fn take_in(&mut self) {
        if self.alone {
            return;
        }
        let before = self.batch.len();
        let listed = self.combiner.take_listed().into_iter();
        self.batch.extend(
            listed.map(|Entry { operation, ticket }| Member::of(operation, Origin::Thread(ticket))),
        );
        if let Some((_, remembered)) = &mut self.snapshot {
            // Operations that were listed after the read are not refused by this record.
            *remembered |= self.batch.len() > before;
        }
    }

    /// One read, if there is no record to build on, and one write.
    fn round(&mut self, is_over: &dyn Fn() -> bool) {
        // A thread that only drops a guard, or tries once, sends nothing more to a silent server; the
        // threads of the other operations do so for themselves.
        if self.semaphore.target.is_skipped()
            && let Err(error) = self.semaphore.inspect()
        {
            return self.fail_own(&error);
        }
        let (mut snapshot, remembered) = match self.snapshot.take() {
            Some(snapshot) => snapshot,
            None => match self.inspect() {
                Ok(Some(snapshot)) => (snapshot, false),
                Ok(None) => return self.set_up(),
                Err(error) if self.semaphore.target.is_skipped() => return self.fail_own(&error),
                Err(error) => return self.fail(&error),
            },
        };
        self.invite(&snapshot);
        let context = &self.semaphore.target.context;
        let identity = match context.identity() {
            Ok(identity) => identity,
            Err(error) => return self.fail(&error),
        };
        let sent = context.clock().now();
        let (host, pid) = (identity.host(), std::process::id());
        let writer = Writer { host, pid, unix_seconds: context.clock().unix_seconds(), now: sent };
        if !batch::plan(&mut snapshot, &mut self.batch, &writer, remembered) {
            return;
        }
        let writes = self.batch.iter().any(|member| member.planned.writes());
        self.settle_where(&mut |member| {
            let planned = std::mem::replace(&mut member.planned, Planned::Refuses);
            match planned {
                Planned::Known(outcome) => Some(outcome),
                planned => {
                    member.planned = planned;
                    None
                }
            }
        });
        if writes {
            self.write(snapshot, sent, is_over);
        }
    }

    /// If permits are released, takes acquisitions of waiters of this process into the batch, as
    /// many as permits may be handed off.
    fn invite(&mut self, snapshot: &Snapshot) {
        if self.alone || !self.batch.iter().any(Member::releases) {
            return;
        }
        let target @ Target { context, key, .. } = &self.semaphore.target;
        let waiters = local_waiters(context).begin_hand_offs(key, || {
            let freed = batch::to_release(&snapshot.record, &self.batch);
            if freed == 0 {
                return 0;
            }
            let share = self.combiner.share(snapshot.capacity(target.now()), freed);
            let invited = self.batch.iter().filter(|member| member.is_waiter()).count();
            usize::try_from(share).unwrap_or(usize::MAX).saturating_sub(invited)
        });
        self.batch.extend(waiters.into_iter().map(|waiter| {
            let operation = Operation::new(Kind::Acquisition(waiter.request), None);
            Member::of(operation, Origin::Waiter(waiter))
        }));
    }

    fn inspect(&self) -> crate::error::Result<Option<Snapshot>> {
        let mut snapshot = self.semaphore.inspect()?;
        for _ in 1..MOST_LOOKS {
            if self.batch.len() == 1 || !snapshot.as_ref().is_some_and(Snapshot::is_slow) {
                break;
            }
            snapshot = self.semaphore.inspect()?;
        }
        Ok(snapshot)
    }

    /// There is no semaphore, so it has no holders, and any client that knows its number of permits
    /// sets it up.
    fn set_up(&mut self) {
        let mut number = None;
        let Target { context, route, .. } = &self.semaphore.target;
        let (recovery, now) = (context.recovery(*route), context.clock().now());
        // Whether a server that recovers has forgotten what this holder still holds.
        let is_forgotten = |held: &&Reclaimable| recovery.is_some_and(|it| held.fits(it.life, now));
        self.settle_where(&mut |member| match &member.operation.kind {
            Kind::Acquisition(wanted) => {
                number = number.or(wanted.set_up_with);
                // Its holders may set a semaphore up again that the server has forgotten.
                let missing = match recovery {
                    Some(_) => OperationOutcome::NoRoom { refusal: None },
                    None => OperationOutcome::Missing,
                };
                wanted.set_up_with.is_none().then_some(missing)
            }
            Kind::Release(release) => {
                Some(match release.reclaimable.as_ref().filter(is_forgotten) {
                    Some(_) => OperationOutcome::Released { wakes: None },
                    None => OperationOutcome::Gone { instead: None },
                })
            }
            Kind::Extend(extend) => {
                let mut held = extend.renewing.iter().filter_map(|it| it.reclaimable.as_ref());
                let held = held.find(is_forgotten);
                number = number.or(held.map(|held| held.known.number));
                held.is_none().then_some(OperationOutcome::Gone { instead: None })
            }
        });
        let Some(number) = number else { return };
        let token = match self.semaphore.target.context.identity() {
            Ok(identity) => identity.token(),
            Err(error) => return self.fail(&error),
        };
        let life = self.semaphore.target.context.guarantees().covering_seconds(LIFE);
        match self.semaphore.create(token, life, number) {
            Ok(Some(snapshot)) => self.snapshot = Some((snapshot, false)),
            Ok(None) => self.count_failure(None),
            Err(error) => self.fail(&error),
        }
    }

    /// Writes the planned record.
    fn write(&mut self, snapshot: Snapshot, sent: Moment, is_over: &dyn Fn() -> bool) {
        let (confirmed, slow) = (snapshot.confirmation(), snapshot.is_slow());
        let lonely = self.written == Some((confirmed.of, snapshot.record.serial));
        let serial = snapshot.record.serial.wrapping_add(1);
        // The outcome of acquisitions for which no permits are left.
        let is_refused = |member: &Member<'_>| matches!(member.planned, Planned::Refuses);
        let refusal = self.batch.iter().any(is_refused).then(|| snapshot.refusal(sent));
        let queue_key = self.semaphore.target.key.waiters();
        let queue = [Op::get(&queue_key)];
        let releases =
            self.batch.iter().any(|member| matches!(member.planned, Planned::Releases(_)));
        let writing = Writing { sent, slow, version: snapshot.version };
        self.writing = Some(writing);
        let wrote = self.semaphore.put(snapshot, if releases { &queue } else { &[] }, lonely);
        self.writing = None;
        match wrote {
            Ok(Wrote { done: false, .. }) if !mutation::has(Mutation::ChangedIsGranted) => {
                self.is_refused(is_over);
            }
            Ok(Wrote { capacity, replies, after, .. }) => {
                self.written = Some((confirmed.of, serial));
                self.after = after;
                self.refused = 0;
                let wakes = self.wakes(replies.into_iter().next(), capacity);
                if releases {
                    self.note_released(&wakes);
                }
                let verified = if slow { self.verify() } else { Some(None) };
                self.wrote(wakes, confirmed, verified, refusal);
            }
            Err(failure) => self.failed(failure, writing, is_over),
        }
    }

    /// Reads the record after several operations were granted by the time of a server that may have
    /// been stopped: one read for all of them. `None` if each of them has to read for itself.
    fn verify(&self) -> Option<Option<Snapshot>> {
        if self.batch.len() == 1 {
            return None;
        }
        self.semaphore.inspect_closely().ok().flatten().map(Some)
    }

    /// All that was planned has been executed. `verified`: `Some(None)` if nothing has to be read
    /// because the server was not stopped; otherwise the result of [`Leader::verify`].
    fn wrote(
        &mut self,
        wakes: Wakes,
        confirmed: Confirmation,
        verified: Option<Option<Snapshot>>,
        refusal: Option<Refusal>,
    ) {
        let mut wakes = Some(wakes);
        self.settle_where(&mut |member| {
            let in_doubt = member.operation.in_doubt;
            Some(match (&member.planned, &mut member.operation.kind) {
                (Planned::Grants(counted_from), Kind::Acquisition(wanted)) => {
                    let forgets = mutation::has(Mutation::CountFromTheLastTry);
                    let first =
                        in_doubt.filter(|_| !forgets).map_or(*counted_from, |doubt| doubt.since);
                    let counted_from = first.min(*counted_from);
                    let clock = match &verified {
                        None => ServerClock::MayStand,
                        Some(None) => ServerClock::Runs,
                        Some(Some(snapshot)) => {
                            ServerClock::KeepsUntil(snapshot.keeps_until(wanted.token))
                        }
                    };
                    OperationOutcome::Granted {
                        confirmed,
                        permits: wanted.permits,
                        counted_from,
                        clock,
                    }
                }
                (Planned::Releases(_), _) => OperationOutcome::Released { wakes: wakes.take() },
                (Planned::Extends(_), Kind::Extend(extend)) => {
                    for it in &mut extend.renewing {
                        if let Some(Some(snapshot)) = &verified {
                            it.deadline = it.deadline.min(snapshot.keeps_until(it.token));
                        }
                        if let Some(held) = &mut it.reclaimable {
                            held.confirm(confirmed);
                        }
                    }
                    OperationOutcome::Extended { asks: verified.is_none() }
                }
                _ => {
                    member.operation.in_doubt = None;
                    OperationOutcome::NoRoom { refusal: refusal.clone() }
                }
            })
        });
    }

    /// Notes what the next leader has to know of waiters of other processes.
    fn note_released(&self, wakes: &Wakes) {
        let Target { context, key, .. } = &self.semaphore.target;
        let others = wakes
            .queue
            .as_ref()
            .map_or(Others::None, |queue| others(&queue.value, &local_waiters(context).ids(key)));
        self.combiner.released(wakes.freed, others);
    }

    /// What is needed to wake waiters for all released permits.
    fn wakes(&self, queue: Option<Reply>, capacity: u32) -> Wakes {
        let mut wakes = Wakes { queue: None, capacity, freed: 0, entry_ids: Vec::new() };
        for member in &self.batch {
            if let (Planned::Releases(permits), Kind::Release(Release { entry_ids, .. })) =
                (&member.planned, &member.operation.kind)
            {
                wakes.freed = wakes.freed.saturating_add(*permits);
                wakes.entry_ids.extend(entry_ids);
            }
        }
        if let Some(Reply::Value(item)) = queue {
            wakes.queue = Some(item);
        }
        wakes
    }

    /// Another process was faster to write.
    fn is_refused(&mut self, is_over: &dyn Fn() -> bool) {
        if mutation::has(Mutation::ForgetTheRefused) {
            self.batch.retain(Member::is_own);
        }
        for member in &mut self.batch {
            member.operation.refused += 1;
        }
        self.settle_where(&mut |member| {
            let Operation { refused, error, .. } = &member.operation;
            (*refused == ROUNDS).then(|| OperationOutcome::Unresolved(error.clone()))
        });
        self.refused += 1;
        let context = &self.semaphore.target.context;
        let times = u32::try_from(self.refused).unwrap_or(u32::MAX).min(MOST_SPREADS);
        match context.identity() {
            Ok(identity) => context.clock().sleep((SPREAD * times).mul_f64(identity.fraction())),
            Err(error) => return self.fail(&error),
        }
        self.is_over |= self.refused.is_multiple_of(CALLS_ENOUGH) && is_over();
    }

    /// The request failed; if it was sent, it may have been executed.
    fn failed(
        &mut self,
        Failure { error, sent: was_sent }: Failure,
        writing: Writing,
        is_over: &dyn Fn() -> bool,
    ) {
        if was_sent {
            let context = &self.semaphore.target.context;
            for member in &mut self.batch {
                member.is_in_doubt(writing);
                if mutation::has(Mutation::ForgetLostPermits)
                    && let Kind::Acquisition(wanted) = &mut member.operation.kind
                    && let Ok(identity) = context.identity()
                {
                    (wanted.token, member.operation.in_doubt) = (identity.token(), None);
                }
            }
        }
        self.settle_where(&mut |member| {
            let guesses =
                mutation::has(Mutation::GuessReleasedInBatch) && was_sent && !member.is_own();
            match member.planned {
                Planned::Releases(_) if guesses => Some(OperationOutcome::Released { wakes: None }),
                _ if member.operation.in_doubt.is_none() && !was_sent => Some(member.fails(&error)),
                _ => None,
            }
        });
        self.count_failure(Some(&error));
        if is_over() {
            self.is_over = true;
            self.settle_where(&mut |member| {
                let is_own =
                    member.is_own() && matches!(member.operation.kind, Kind::Acquisition(_));
                (is_own && member.operation.in_doubt.is_some())
                    .then(|| OperationOutcome::Unresolved(Some(error.clone())))
            });
        }
    }

    /// Counts a failed attempt, and completes the operations for which it was the last one.
    fn count_failure(&mut self, why: Option<&Error>) {
        self.settle_where(&mut |member| {
            let Operation { failures, error, .. } = &mut member.operation;
            *failures += 1;
            *error = why.cloned().or(error.take());
            match error {
                _ if *failures < ATTEMPTS => None,
                Some(error) => {
                    let error = error.clone();
                    Some(member.fails(&error))
                }
                None => Some(OperationOutcome::Unresolved(None)),
            }
        });
    }

    /// Completes the leader's own operation with this error. The next leader goes on with the others.
    fn fail_own(&mut self, error: &Error) {
        self.settle_where(&mut |member| member.is_own().then(|| member.fails(error)));
    }

    /// Nothing can be done for any operation now: completes all of them with this error.
    fn fail(&mut self, error: &Error) {
        self.settle_where(&mut |member| Some(member.fails(error)));
    }

    /// Completes the operations that have an outcome.
    fn settle_where(
        &mut self,
        outcome_of: &mut dyn FnMut(&mut Member<'_>) -> Option<OperationOutcome>,
    ) {
        let (outcome, mut waiters) = (Cell::new(None), Vec::new());
        let is_settled = |member: &mut Member<'_>| {
            let found = outcome_of(member);
            let is_some = found.is_some();
            outcome.set(found);
            is_some
        };
        for Member { operation, origin, .. } in self.batch.extract_if(.., is_settled) {
            let Some(outcome) = outcome.take() else { continue };
            match origin {
                Origin::Own => self.own = Some(Completion::new(operation, outcome)),
                Origin::Thread(ticket) => ticket.complete(Completion::new(operation, outcome)),
                Origin::Waiter(waiter) => waiters.push((waiter, operation, outcome)),
            }
        }
        // Only now, since this may send requests and log.
        for (waiter, operation, outcome) in waiters {
            hand_off(self.semaphore, waiter, &operation, outcome);
        }
    }
}

/// The waiters in the queue, except for `ours`.
fn others(queue: &[u8], ours: &[WaitId]) -> Others {
    let others = entries::waiters(queue).filter(|entry| !ours.contains(&entry.id));
    others.fold(Others::None, |others, entry| match others {
        _ if entry.permits > 1 || entry.priority > 0 => Others::First,
        Others::None => Others::Some(1),
        Others::Some(waiters) => Others::Some(waiters.saturating_add(1)),
        Others::First => Others::First,
    })
}

/// Gives a waiter of this process its permit, if it was granted one that lasts.
fn hand_off(
    semaphore: &Semaphore,
    waiter: HandingOff<'_, Acquisition, Permit>,
    operation: &Operation,
    outcome: OperationOutcome,
) {
    let OperationOutcome::Granted { confirmed, permits, counted_from, clock } = outcome else {
        return call_off(semaphore, waiter, operation);
    };
    let Acquisition { token, lease, .. } = waiter.request;
    let lease = if mutation::has(Mutation::HandOffOwnLease) { semaphore.lease } else { lease };
    let target = semaphore.target.for_calls();
    let grant = Grant { token, permits, counted_from, confirmed };
    let mut permit = grant.into_permit(Semaphore { target, lease, ..semaphore.clone() });
    match permit.verify(clock) {
        Ok(()) => waiter.grant(permit),
        // The permit is released.
        Err(_) => call_off(semaphore, waiter, operation),
    }
}

/// Lets a waiter go on sleeping that was not granted a permit.
fn call_off(
    semaphore: &Semaphore,
    mut waiter: HandingOff<'_, Acquisition, Permit>,
    operation: &Operation,
) {
    may_be_orphaned(semaphore, operation);
    // The token may be on its way to the server, or used up.
    if let Ok(identity) = semaphore.target.context.identity()
        && !mutation::has(Mutation::HandOffAgain)
    {
        waiter.request.token = identity.token();
        waiter.call_off();
    }
}

/// Remembers the permits of an acquisition that is in doubt, and that no caller takes.
fn may_be_orphaned(semaphore: &Semaphore, operation: &Operation) {
    if let (Kind::Acquisition(wanted), Some(_)) = (&operation.kind, operation.in_doubt) {
        let target = &semaphore.target;
        orphan::remember(target, &REAPER, wanted.token, target.gone(wanted.lease));
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        if let Some(writing) = self.writing {
            self.batch.iter_mut().for_each(|member| member.is_in_doubt(writing));
        }
        if let Some(Completion { outcome: OperationOutcome::Granted { .. }, token, .. }) = &self.own
        {
            // The leader unwinds.
            let target = &self.semaphore.target;
            let until = target.gone(self.semaphore.lease);
            token.iter().for_each(|&token| orphan::remember(target, &REAPER, token, until));
        }
        let mut rest = Vec::new();
        for Member { operation, origin, .. } in self.batch.drain(..) {
            match origin {
                Origin::Thread(ticket) => rest.push(Entry { operation, ticket }),
                Origin::Waiter(waiter) => call_off(self.semaphore, waiter, &operation),
                // The leader unwinds.
                Origin::Own => may_be_orphaned(self.semaphore, &operation),
            }
        }
        if self.alone {
            return;
        }
        let memory = Memory { written: self.written, snapshot: self.after.take() };
        self.combiner.wake_next(rest, memory);
    }
}
