//! One round of the renewer: what is over is lost, what is at risk is reported, what is due is
//! renewed. And last, because it may take its time, what is to be done on the server after a loss.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::batch::Batch;
use super::entry::RenewalEntry;
use super::notice::Notice;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::fork;
use crate::guard::outcome::Loss;
use crate::mutation::{self, Mutation};
use crate::store::{Failure, Op};

/// After a renewal that failed it is tried again so much later, twice as much after each further
/// one.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(1);
/// How many packets a server is sent in one round at most: two, and three more where it answers
/// slowly.
const PASSES: usize = 5;
/// For how long the packets of a server that refuses some of them are halved in one round: what
/// others keep is not renewed meanwhile.
const HALVING: Duration = Duration::from_millis(250);

/// Does what is to be done now, and tells when to come again at the latest.
///
/// Callbacks and loggers may fork. In the child nothing is kept, and the mutex of a hold may stay
/// locked by a thread that is only in the parent: so after each of them the child leaves.
pub(super) fn round(entries: &[Arc<RenewalEntry>]) -> Duration {
    let here = || !fork::is_astray();
    let live: Vec<&Arc<RenewalEntry>> =
        entries.iter().filter(|entry| here() && entry.lives_on()).collect();
    if !here() {
        return Duration::ZERO;
    }
    let due = |ahead: fn(&RenewalEntry) -> Duration| {
        live.iter().filter(move |entry| entry.is_due(ahead(entry))).copied()
    };
    // Each costs a timeout: it is to hold up the others no more than once.
    let mut silent = BTreeSet::new();
    if due(|_| Duration::ZERO).next().is_some() {
        let mut by_server: BTreeMap<usize, Vec<Batch>> = BTreeMap::new();
        // What is due soon goes along.
        for entry in due(|entry| entry.lease / 6) {
            let batches = by_server.entry(entry.server).or_default();
            if !batches.iter_mut().any(|batch| batch.join(entry)) {
                batches.extend(Batch::new(entry));
            }
        }
        // Those last that did not answer the last time.
        let mut by_server: Vec<(usize, Vec<Batch>)> = by_server.into_iter().collect();
        by_server.sort_by_key(|(_, batches)| batches.iter().any(Batch::is_overdue));
        let tried = by_server
            .into_iter()
            .filter_map(|(server, batches)| Some((server, renew_all(batches).err()?)));
        let failures: Vec<(usize, Error)> = tried.collect();
        // A callback may take its time, so not before everything is renewed.
        for (server, error) in failures {
            if error.is_outage() {
                silent.insert(server);
            }
            log::debug!("Leases could not be renewed now, and are tried again: {error}");
        }
    }
    entries.iter().take_while(|_| here()).for_each(|entry| entry.tell_loss());
    entries.iter().take_while(|_| here()).for_each(|entry| entry.clean_up(&mut silent));
    if !here() {
        return Duration::ZERO;
    }
    live.iter()
        .filter(|entry| entry.loss().is_none())
        .map(|entry| entry.next())
        .min()
        .unwrap_or(Duration::ZERO)
}

/// Renews the holds of one server. One that it refuses, since it is full perhaps, is not to cost
/// the others their leases: so a packet of which something was refused is tried again in halves,
/// the largest first.
fn renew_all(batches: Vec<Batch>) -> Result<()> {
    let Some(context) = batches.first().map(|batch| batch.context().clone()) else { return Ok(()) };
    let until = context.clock().now() + HALVING;
    let (mut packets, mut ended) = (VecDeque::from([batches]), Ok(()));
    let mut unsent = 0;
    while let Some(mut batches) = packets.pop_front() {
        let Err(Failure { error, sent }) = renew(&mut batches) else { continue };
        // A server that refuses every connection refuses each half, too.
        unsent += u32::from(!sent && batches.len() > 1);
        if error.kind() != ErrorKind::Protocol || unsent > 2 || context.clock().now() >= until {
            return Err(error);
        }
        if batches.len() > 1 {
            let rest = batches.split_off(batches.len() / 2);
            packets
                .extend([batches, rest].map(|half| half.iter().filter_map(Batch::anew).collect()));
        } else {
            ended = Err(error);
        }
    }
    ended
}

/// Renews by as few packets as that takes. Semaphores that others write at the same time come last,
/// and each by itself.
fn renew(batches: &mut Vec<Batch>) -> std::result::Result<(), Failure> {
    let mut refused = Vec::new();
    let mut renewed = renew_together(batches, &mut refused);
    for mut batch in refused {
        match renewed {
            Ok(()) => renewed = batch.combine(),
            Err(_) => batch.failed(false),
        }
    }
    renewed
}

fn renew_together(
    batches: &mut Vec<Batch>,
    refused: &mut Vec<Batch>,
) -> std::result::Result<(), Failure> {
    for _ in 0..PASSES {
        if fork::is_astray() {
            return Ok(());
        }
        batches.retain(Batch::may_go_on);
        let Some(first) = batches.first() else { return Ok(()) };
        let (context, route) = (first.context().clone(), first.route());
        let sent = context.clock().now();
        let ops: Vec<Op<'_>> = batches.iter().map(Batch::op).collect();
        match context.run(route, &ops) {
            Ok(replies) => {
                let came = context.clock().now();
                let mut replies = replies.into_iter();
                batches.retain_mut(|batch| {
                    let reply = replies.next().filter(|_| !fork::is_astray());
                    reply.is_some_and(|reply| batch.take(&reply, sent, came))
                });
                refused.extend(batches.extract_if(.., |batch| batch.is_refused()));
            }
            Err(failure) => {
                for batch in &*batches {
                    batch.failed(failure.sent);
                }
                return Err(failure);
            }
        }
    }
    // Others write faster than we do.
    for batch in &*batches {
        batch.failed(false);
    }
    Ok(())
}

impl RenewalEntry {
    /// Whether it is held yet. Tells the owner what there is to tell.
    fn lives_on(&self) -> bool {
        let now = self.now();
        let (left, is_over) = match self.held().as_ref() {
            Some(held) => (held.remaining(), held.ends() <= now),
            None => return false,
        };
        if is_over && (self.is_at_its_longest() || !mutation::has(Mutation::KeepPastTheEnd)) {
            self.note(self.why_over());
        }
        if self.loss().is_some() {
            self.tell_loss();
            return false;
        }
        let at_risk = {
            let mut state = self.state();
            let late = self.is_at_its_longest() || state.overdue && left <= self.lease / 2;
            let first = late && (!state.warned || mutation::has(Mutation::WarnTwice));
            state.warned |= late;
            first
        };
        if at_risk && !mutation::has(Mutation::NoWarning) {
            self.notify(Notice::AtRisk(left));
        }
        true
    }

    /// Whether it is to be renewed now, or so much later.
    fn is_due(&self, ahead: Duration) -> bool {
        !self.is_at_its_longest() && self.state().due <= self.now() + ahead
    }

    pub(super) fn is_at_its_longest(&self) -> bool {
        self.longest.is_some_and(|longest| longest <= self.now())
            && !mutation::has(Mutation::KeepBeyondMaxHold)
    }

    /// How long it can be left alone.
    fn next(&self) -> Duration {
        let Some(left) = self.held().as_ref().map(|held| held.remaining()) else {
            return Duration::ZERO;
        };
        let now = self.now();
        let state = self.state();
        let mut next = left;
        if self.longest.is_none_or(|longest| longest > now) {
            next = next.min(state.due.since(now));
        }
        if let Some(longest) = self.longest.filter(|&longest| longest > now) {
            next = next.min(longest.since(now));
        }
        if state.overdue && !state.warned {
            next = next.min(left.saturating_sub(self.lease / 2));
        }
        // It came to that in the course of a round: its owner is to know.
        if self.is_at_its_longest() && !state.warned {
            next = Duration::ZERO;
        }
        // Clocks are coarse: no round for nothing.
        next + Duration::from_millis(1)
    }

    /// The server has granted a new lease, which may end no later than the old one: after a server
    /// stood still the deadline is capped by its TTL. The risk is over once more than half of the
    /// lease is left.
    pub(super) fn renewed(&self) {
        let due = self.in_time();
        let left = self.held().as_ref().map_or(Duration::ZERO, |held| held.remaining());
        let is_over = left > self.lease / 2;
        let was_at_risk = {
            let mut state = self.state();
            (state.overdue, state.in_doubt) = (false, false);
            (state.retry, state.due) = (Duration::ZERO, due);
            let warned = state.warned;
            state.warned &= !is_over;
            warned && is_over
        };
        if was_at_risk {
            log::info!("The lease of {} is renewed again.", self.target.key);
        }
    }

    /// It could not be renewed now. `in_doubt`: or it was, without our knowing.
    pub(super) fn not_renewed(&self, in_doubt: bool) {
        let now = self.now();
        let mut state = self.state();
        state.overdue = true;
        state.in_doubt |= in_doubt;
        state.retry = (state.retry * 2).clamp(FIRST_RETRY, LONGEST_RETRY);
        state.due =
            now + if mutation::has(Mutation::KeepOnlyOnce) { self.lease } else { state.retry };
    }

    /// When to renew it: after a third of its lease, or somewhat less, so that not all clients do
    /// it at once. At once, if so much of it has passed already.
    pub(super) fn in_time(&self) -> Moment {
        let chance = self.target.context.identity().map_or(0.5, |identity| identity.fraction());
        let after =
            if mutation::has(Mutation::KeepTooLate) { self.lease * 2 } else { self.lease / 3 };
        let left = self.held().as_ref().map_or(Duration::ZERO, |held| held.remaining());
        let passed = self.lease.saturating_sub(left);
        self.now() + after.mul_f64(0.9 + 0.1 * chance).saturating_sub(passed)
    }

    pub(super) fn now(&self) -> Moment {
        self.target.now()
    }

    /// It was found to be gone.
    pub(super) fn gone(&self) {
        self.note(Loss::Gone);
    }
}
