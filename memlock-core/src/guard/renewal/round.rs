//! One round of the renewal thread: expired leases are lost, leases at risk are reported, and due
//! leases are renewed. Cleanup on the server after a loss comes last, because it may take long.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::batch::Batch;
use super::entry::RenewalEntry;
use super::notice::Notice;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::outcome::Loss;
use crate::mutation::{self, Mutation};
use crate::store::{Failure, Op, Request};

/// The pause before a failed renewal is retried. Each further pause is twice as long, up to the
/// longest.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(1);
/// The most packets to one server in one round: two, and three more if the server answers slowly or
/// has forgotten what is renewed. What is not done by then is tried again.
const PASSES: usize = 5;
/// How long the packets of a server that refuses some requests are halved in one round: leases on
/// other servers are not renewed meanwhile.
const HALVING: Duration = Duration::from_millis(250);
/// How many packets may remain unsent meanwhile because of leases that the URL refuses.
const MOST_UNSENT: u32 = 32;

/// Runs one round. Returns the longest time until the next one.
pub(super) fn round(entries: &[Arc<RenewalEntry>]) -> Duration {
    let live: Vec<&Arc<RenewalEntry>> = entries.iter().filter(|entry| entry.lives_on()).collect();
    let due = |ahead: fn(&RenewalEntry) -> Duration| {
        live.iter().filter(move |entry| entry.is_due(ahead(entry))).copied()
    };
    // Each silent server costs a timeout: it must delay the others no more than once.
    let mut silent = BTreeSet::new();
    if due(|_| Duration::ZERO).next().is_some() {
        let mut by_server: BTreeMap<usize, Vec<Batch>> = BTreeMap::new();
        // Leases that are due soon are renewed, too.
        for entry in due(|entry| entry.lease / 6) {
            let batches = by_server.entry(entry.server).or_default();
            if !batches.iter_mut().any(|batch| batch.join(entry)) {
                batches.extend(Batch::new(entry));
            }
        }
        // Servers that did not answer the last time come last.
        let mut by_server: Vec<(usize, Vec<Batch>)> = by_server.into_iter().collect();
        by_server.sort_by_key(|(_, batches)| batches.iter().any(Batch::is_overdue));
        let tried = by_server
            .into_iter()
            .filter_map(|(server, batches)| Some((server, renew_all(batches).err()?)));
        let failures: Vec<(usize, Error)> = tried.collect();
        // A logger may take long, so failures are logged after everything is renewed.
        for (server, error) in failures {
            if error.is_outage() {
                silent.insert(server);
            }
            log::debug!("Leases could not be renewed now, and are tried again: {error}");
        }
    }
    entries.iter().for_each(|entry| entry.tell_loss());
    entries.iter().for_each(|entry| entry.clean_up(&mut silent));
    live.iter()
        .filter(|entry| entry.loss().is_none())
        .map(|entry| entry.next())
        .min()
        .unwrap_or(Duration::ZERO)
}

/// Renews the leases of one server. A lease that the server refuses to renew, for example because
/// it is full, must not cost the others their leases: a packet of which a part was refused is
/// retried in halves, the largest first.
fn renew_all(batches: Vec<Batch>) -> Result<()> {
    let Some(context) = batches.first().map(|batch| batch.context().clone()) else { return Ok(()) };
    let until = context.clock().now() + HALVING;
    let (mut packets, mut ended) = (VecDeque::from([batches]), Ok(()));
    let mut unsent = 0;
    while let Some(mut batches) = packets.pop_front() {
        let Err(Failure { error, sent }) = renew(&mut batches) else { continue };
        // A server that refuses every connection refuses each half, too. Of a lease for which an
        // item would be stored for too long (`evictions=refuse`), nothing is sent either.
        unsent += u32::from(!sent && batches.len() > 1);
        let most = match error.kind() {
            ErrorKind::Protocol => 2,
            ErrorKind::Config => MOST_UNSENT,
            _ => return Err(error),
        };
        if unsent > most || context.clock().now() >= until {
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

/// Renews by as few packets as possible. Semaphores that other clients write at the same time come
/// last, each separately.
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
    for pass in 0..PASSES {
        batches.retain(|batch| {
            let goes_on = batch.may_go_on();
            if !goes_on && pass > 0 {
                batch.leave_in_doubt();
            }
            goes_on
        });
        let Some(first) = batches.first() else { return Ok(()) };
        let (context, route) = (first.context().clone(), first.route());
        let sent = context.clock().now();
        let steps: Vec<Vec<Op<'_>>> = batches.iter().map(Batch::ops).collect();
        let (ops, lengths) = (steps.concat(), steps.iter().map(Vec::len).collect::<Vec<usize>>());
        match context.send(Request::new(route, &ops)).receive() {
            Ok(replies) => {
                let came = context.clock().now();
                let (mut replies, mut lengths) = (replies.into_iter(), lengths.into_iter());
                batches.retain_mut(|batch| {
                    let its = replies.by_ref().take(lengths.next().unwrap_or(0)).collect();
                    batch.take(its, sent, came)
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
    // Other clients write faster than this one.
    batches.iter().for_each(|batch| batch.not_renewed(true));
    Ok(())
}

impl RenewalEntry {
    /// Whether the lease is still held. Reports a loss or a risk to the holder.
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

    /// Whether the lease is to be renewed within `ahead`.
    fn is_due(&self, ahead: Duration) -> bool {
        !self.is_at_its_longest() && self.state().due <= self.now() + ahead
    }

    pub(super) fn is_at_its_longest(&self) -> bool {
        self.longest.is_some_and(|longest| longest <= self.now())
            && !mutation::has(Mutation::KeepBeyondMaxHold)
    }

    /// The time until the entry needs attention again.
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
        // The lease reached `max_hold` during this round: its holder has to be notified.
        if self.is_at_its_longest() && !state.warned {
            next = Duration::ZERO;
        }
        // Clocks are coarse: avoids a round that finds nothing due.
        next + Duration::from_millis(1)
    }

    /// Records that the server has granted a new lease. It may end no later than the old one: after
    /// the server was stopped, the deadline is capped by its TTL. The lease is no longer at risk
    /// once more than half of it is left.
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
            log::info!("The lease of the {} is renewed again.", self.what);
        }
    }

    /// Records that the lease could not be renewed now. `in_doubt`: it may have been renewed all
    /// the same.
    pub(super) fn not_renewed(&self, in_doubt: bool) {
        let now = self.now();
        let mut state = self.state();
        state.overdue = true;
        state.in_doubt |= in_doubt;
        state.retry = (state.retry * 2).clamp(FIRST_RETRY, LONGEST_RETRY);
        state.due =
            now + if mutation::has(Mutation::KeepOnlyOnce) { self.lease } else { state.retry };
    }

    /// When to renew the lease: after a third of it, or somewhat less, so that not all clients
    /// renew at once. Immediately, if that time has already passed.
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

    /// Records that the lease is gone from the server: it has ended, if its holder cannot rely on
    /// it any more.
    pub(super) fn gone(&self) {
        let is_over = self.held().as_ref().is_some_and(|held| held.remaining().is_zero());
        self.note(if is_over { self.why_over() } else { Loss::Gone });
    }
}
