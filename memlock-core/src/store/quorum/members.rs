//! The members of a quorum: requests to all of them at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{Clock, Moment, brief};
use crate::error::Error;
use crate::hash::{fnv1a, mix};
use crate::mutation::{self, Mutation};
use crate::store::{Failure, Op, Reply, Route, Sent, Store};

/// For how long a member that could not be reached is left out, as long as the others suffice.
const AWAY: Duration = Duration::from_secs(1);
/// For how long members that hang are waited for only a part of the time, once that was in vain: for
/// one part in so many, and no shorter than this, as replies are late on a busy machine.
const AGAIN: Duration = Duration::from_secs(1);
const PART: u32 = 10;
const SHORTEST: Duration = Duration::from_millis(100);
/// The pause between two looks whether they answer: the first and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(64));
/// How far a server's clock may be from those of the others beyond a quarter of the guard: what is
/// known of them is that of whole seconds.
const READING: Duration = Duration::from_secs(2);

/// What the members are asked in one round.
#[derive(Default)]
pub(super) struct Batches<'a> {
    pub(super) ops: Vec<Op<'a>>,
    /// Where those of each member end.
    pub(super) ends: Vec<usize>,
}

impl<'a> Batches<'a> {
    /// What this member is asked.
    fn of(&self, member: usize) -> &[Op<'a>] {
        let start = if member == 0 { 0 } else { self.ends[member - 1] };
        &self.ops[start..self.ends[member]]
    }
}

/// What became of the request to a member.
#[derive(Debug)]
pub(super) struct Exchanged {
    pub(super) ran: Result<Vec<Reply>, Failure>,
    /// When the round began, and when the reply was there.
    pub(super) sent: Moment,
    pub(super) came: Moment,
}

/// The servers, in the order of the URL.
#[derive(Debug)]
pub(super) struct Members {
    all: Vec<Arc<dyn Store>>,
    names: Vec<String>,
    /// The hashes of the names.
    hashes: Vec<u64>,
    clock: Arc<dyn Clock>,
    /// Until when each is left out, in nanoseconds of the boot clock.
    away_until: Vec<AtomicU64>,
    /// Until when those that hang are waited for only a part of the time, in the same.
    hopeless_until: AtomicU64,
}

impl Members {
    pub(super) fn new(all: Vec<Arc<dyn Store>>, clock: &Arc<dyn Clock>) -> Members {
        let name = |member: &Arc<dyn Store>| {
            member.nodes().first().map(|node| node.name.clone()).unwrap_or_default()
        };
        let names: Vec<String> = all.iter().map(name).collect();
        Members {
            hashes: names.iter().map(|name| fnv1a(name.as_bytes())).collect(),
            names,
            away_until: all.iter().map(|_| AtomicU64::new(0)).collect(),
            hopeless_until: AtomicU64::new(0),
            clock: Arc::clone(clock),
            all,
        }
    }

    pub(super) fn all(&self) -> &[Arc<dyn Store>] {
        &self.all
    }

    /// How many of the configured members decide, whichever of them answer.
    pub(super) fn majority(&self) -> usize {
        if mutation::has(Mutation::CountWhoAnswers) {
            return self.available().count() / 2 + 1;
        }
        self.all.len() / 2 + 1
    }

    /// For people.
    pub(super) fn title(&self) -> String {
        let kind = self.all.first().and_then(|member| member.nodes().into_iter().next());
        let kind = kind.map(|node| node.title).unwrap_or_default();
        let kind = kind.split(" at ").next().unwrap_or_default();
        format!("{} {kind}s at {}", self.all.len(), self.names.join(", "))
    }

    /// The members, the one that decides first.
    pub(super) fn in_order(&self, route: Route) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.all.len()).collect();
        order.sort_by_key(|&member| {
            std::cmp::Reverse((mix(self.hashes[member] ^ route.hash()), &self.names[member]))
        });
        order
    }

    /// The first member that is expected to answer.
    pub(super) fn first(&self, route: Route) -> usize {
        let order = self.in_order(route);
        let available: Vec<usize> = self.available().collect();
        order.iter().copied().find(|member| available.contains(member)).unwrap_or(order[0])
    }

    /// The members that are expected to answer.
    pub(super) fn available(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.all.len()).filter(|&member| !self.is_away(member))
    }

    /// Whether it is left out: it did not answer a moment ago.
    pub(super) fn is_away(&self, member: usize) -> bool {
        self.is_until(&self.away_until[member]) || self.hangs(member, None)
    }

    fn is_until(&self, until: &AtomicU64) -> bool {
        let until = until.load(Ordering::Relaxed);
        until > 0 && u128::from(until) > self.clock.now().since_boot().as_nanos()
    }

    fn set(&self, until: &AtomicU64, time: Duration) {
        let moment = (self.clock.now() + time).since_boot().as_nanos();
        until.store(u64::try_from(moment).unwrap_or(0), Ordering::Relaxed);
    }

    /// Whether it did not answer in time, and has not answered since. It is asked in the background;
    /// `anew`: see [`Store::probe`].
    fn hangs(&self, member: usize, anew: Option<Duration>) -> bool {
        let (store, route) = (&self.all[member], Route::of_any());
        if !store.is_silent(route) {
            return false;
        }
        store.probe(route, anew);
        store.is_silent(route)
    }

    /// Which members are asked: those that are expected to answer and those that are `needed`; if
    /// that is no majority, all that do not hang. With whether others were waited for.
    fn asked(&self, needed: &[bool]) -> (Vec<bool>, bool) {
        let is_enough = |of: &[bool]| of.iter().filter(|&&is_one| is_one).count() >= self.enough();
        let ask = |member: usize| {
            let is_left_out = self.is_until(&self.away_until[member]) && !needed[member];
            !is_left_out && !self.hangs(member, None)
        };
        let asked: Vec<bool> = (0..self.all.len()).map(ask).collect();
        if is_enough(&asked) {
            return (asked, false);
        }
        self.await_majority(&vec![false; self.all.len()]);
        let ask = |member: usize| !self.all[member].is_silent(Route::of_any());
        ((0..self.all.len()).map(ask).collect(), true)
    }

    /// How many members have to answer.
    fn enough(&self) -> usize {
        self.all.len() / 2 + 1
    }

    /// Waits until a majority does not hang, without those that have `failed`, for the time that one
    /// request may take: they are asked side by side. For a second after that was in vain calls wait
    /// for a part of it, enough for those that answer again.
    fn await_majority(&self, failed: &[bool]) {
        let timeout = |member: &Arc<dyn Store>| member.nodes().first().map(|node| node.timeout);
        let whole = self.all.iter().filter_map(timeout).max().unwrap_or_default();
        let is_hopeless = self.is_until(&self.hopeless_until);
        let part = (whole / PART).max(whole.min(SHORTEST));
        let limit = if is_hopeless { part } else { whole };
        let answers = |member: &usize| !failed[*member] && !self.hangs(*member, Some(limit));
        let (mut left, (mut pause, longest)) = (limit, PAUSES);
        while (0..self.all.len()).filter(answers).count() < self.enough() {
            if left.is_zero() {
                if !is_hopeless {
                    self.set(&self.hopeless_until, AGAIN);
                }
                return;
            }
            self.clock.sleep(pause.min(left));
            left = left.saturating_sub(pause);
            pause = (pause * 2).min(longest);
        }
    }

    /// Sends each member its operations, all before the first reply is awaited. `None` for members
    /// that have none. `meanwhile` is called once all requests were sent. `needed`: the members on
    /// which the outcome depends. Members that are left out are asked after all if too few of the
    /// others answer, unless they hang.
    pub(super) fn exchange(
        &self,
        batches: &Batches<'_>,
        needed: &[bool],
        meanwhile: &dyn Fn(),
    ) -> Vec<Option<Exchanged>> {
        let (asked, has_waited) = self.asked(needed);
        let mut results = self.ask(batches, &asked, meanwhile);
        for (member, result) in results.iter_mut().enumerate() {
            if !asked[member] && !batches.of(member).is_empty() {
                let (ran, now) = (Err(self.left_out(member)), self.clock.now());
                *result = Some(Exchanged { ran, sent: now, came: now });
            }
        }
        let failed = |result: &Option<Exchanged>| {
            result.as_ref().is_some_and(|exchanged| exchanged.ran.is_err())
        };
        let too_few = results.iter().filter(|result| failed(result)).count() > self.all.len() / 2;
        if too_few && asked.contains(&false) {
            let failed = |member: usize| asked[member] && failed(&results[member]);
            let failed: Vec<bool> = (0..self.all.len()).map(failed).collect();
            if !has_waited {
                self.await_majority(&failed);
            }
            let may_answer =
                |member: usize| !asked[member] && !self.all[member].is_silent(Route::of_any());
            let asked: Vec<bool> = (0..self.all.len()).map(may_answer).collect();
            let more = self.ask(batches, &asked, &|| {});
            for (result, more) in results.iter_mut().zip(more) {
                if more.is_some() {
                    *result = more;
                }
            }
        }
        results
    }

    /// Sends to the members that are `asked`, and then awaits the replies, that of the last one first: by
    /// then the others have most likely answered, so that this thread is woken once.
    fn ask<'a>(
        &'a self,
        batches: &'a Batches<'a>,
        asked: &[bool],
        meanwhile: &dyn Fn(),
    ) -> Vec<Option<Exchanged>> {
        let send = |member: usize| {
            let ops = batches.of(member);
            let op = ops.first().filter(|_| asked[member])?;
            let sent = self.clock.now();
            Some((sent, self.all[member].send(Route::of(op.key()), ops)))
        };
        let requests: Vec<Option<(Moment, Sent<'_>)>> = (0..self.all.len()).map(send).collect();
        meanwhile();
        let receive = |(member, request): (usize, Option<(Moment, Sent<'_>)>)| {
            let (sent, request) = request?;
            let ran = request.replies();
            match &ran {
                Err(failure) if failure.error.is_outage() => {
                    self.set(&self.away_until[member], AWAY);
                }
                Ok(_) => self.away_until[member].store(0, Ordering::Relaxed),
                _ => {}
            }
            Some(Exchanged { ran, sent, came: self.clock.now() })
        };
        let mut results: Vec<_> = requests.into_iter().enumerate().rev().map(receive).collect();
        results.reverse();
        results
    }

    fn left_out(&self, member: usize) -> Failure {
        let title = self.all[member].nodes().into_iter().next().map(|node| node.title);
        let text = format!(
            "{} did not answer a moment ago, so it was not asked again.",
            title.unwrap_or_default()
        );
        Failure { error: Error::unreachable(text), sent: false }
    }

    /// Why a member's vote does not count any more.
    pub(super) fn forgot(&self, member: usize) -> Error {
        let text = format!("{} was started anew meanwhile.", self.names[member]);
        Error::unreachable(text)
    }

    /// By how much a server's clock may differ from those of the others.
    fn tolerance(&self) -> Option<Duration> {
        Some(self.all.first()?.guarantees().guard?.longest_lease() / 4 + READING)
    }

    /// Whether the clocks of all members agree, as far as they are known: then none is misdated.
    pub(super) fn clocks_agree(&self, route: Route) -> bool {
        let (mut first, mut last) = (Duration::MAX, Duration::ZERO);
        for time in self.all.iter().filter_map(|member| member.time(route)) {
            (first, last) = (first.min(time), last.max(time));
        }
        self.tolerance().is_none_or(|most| last.saturating_sub(first) <= most)
    }

    /// Why a member's clock cannot be trusted, if so.
    pub(super) fn misdated(&self, member: usize, route: Route) -> Option<Error> {
        if mutation::has(Mutation::TrustAllClocks) {
            return None;
        }
        let mut times: Vec<Duration> =
            self.all.iter().filter_map(|member| member.time(route)).collect();
        let own = self.all.get(member)?.time(route)?;
        let most = self.tolerance()?;
        times.sort();
        // Of two that differ, either may be wrong.
        let apart = match times[..] {
            [first, .., last] if times.len() == 2 => last - first,
            _ => own.abs_diff(times[times.len() / 2]),
        };
        if apart <= most {
            return None;
        }
        let text = format!(
            "The clock of {} differs by {} from those of the other servers: set it. With this \
             guard they may differ by {}.",
            self.names[member],
            brief(apart),
            brief(most)
        );
        Some(Error::unreachable(text))
    }
}
