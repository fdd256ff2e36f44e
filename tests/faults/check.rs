//! Decides offline, from the histories of all processes, whether what was promised was kept.
//!
//! | what is looked for | where |
//! | --- | --- |
//! | two valid holds of a mutex at once; a fence that does not rise; a lock lost before its deadline; a release that is answered as done after another was granted it; a refusal when no client can have held it | [`locks`] |
//! | more permits out than there are; permits lost before their end; a release that is answered as done twice; a refusal when there must have been permits | [`semaphores`] |
//! | waiters of low priority that come before those of higher priority | [`turns`] |
//! | a key with two ids, an id with two keys, a key with two firsts or with none; a session set up twice, or gone | [`lists`] |
//! | a call that lasts longer than its limit and [`BOUND`]; an answer that these programs cannot get | [`calls`] |
//!
//! Whether all permits and locks are there again when all clients are dead is checked by
//! [`leftovers`](crate::leftovers).
//!
//! Stamps are taken so that they err on the side of memlock: a hold is counted from when the grant
//! was known until just before the release was begun, or until its deadline. Where the server lost
//! its memory (it was flushed, restarted, or evicts), a hold that spans that moment may be lost;
//! that is counted as a loss and is no violation. A server that was stopped may shorten what it
//! stored when it woke up: that counts as a loss too.

use std::collections::HashMap;
use std::time::Duration;

pub(crate) use turns::Turns;

use crate::history::{Call, Op, Span, answer};

mod calls;
mod lists;
mod locks;
mod semaphores;
mod turns;

/// How much longer than its limit a call may take. The clients' `io_timeout` and `connect_timeout`
/// are 300 ms: three attempts that each wait for a connection, its introduction and an answer, and
/// a queue that is left.
pub(crate) const BOUND: Duration = Duration::from_secs(4);

/// How much longer than a lease the server may keep what was asked for: to the next full second,
/// two more, and one of its clock.
pub(crate) const KEPT: Duration = Duration::from_secs(4);

/// What is known beside the histories.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// When the server lost what it had stored: at some moment of each span, or all the time.
    pub(crate) losses: Vec<Span>,
    /// When the server stood still, and until its clock may have been wrong.
    pub(crate) pauses: Vec<Span>,
    /// When processes stood still.
    pub(crate) stops: Vec<(usize, Span)>,
    /// When processes were killed.
    pub(crate) deaths: HashMap<usize, Duration>,
    /// Nothing is wrong with server and wire: no call may fail.
    pub(crate) sound: bool,
    /// No request can come late, so that the possible holders of a mutex are known.
    pub(crate) punctual: bool,
    /// From when on all that matters was read: what happened before that moment proves nothing by
    /// being absent.
    pub(crate) since: Duration,
    /// Until when the histories were read.
    pub(crate) now: Duration,
}

impl Facts {
    /// Whether the server may have lost something within that time.
    pub(crate) fn lost_within(&self, span: Span) -> bool {
        self.losses.iter().any(|loss| loss.meets(span))
    }

    /// From when on the server may have lost what this call was granted, so that it is no fault of
    /// ours.
    fn may_be_lost_from(
        &self,
        granted: &Call,
        extended: &[&Call],
        deadline: Duration,
    ) -> Option<Duration> {
        let life = Span { from: granted.began, to: deadline };
        let losses = self.losses.iter().filter(|loss| loss.meets(life)).map(|loss| loss.from);
        let mut stored = extended.iter().copied().chain([granted]);
        let paused = stored.any(|call| self.pauses.iter().any(|pause| pause.meets(call.span())));
        losses.chain(paused.then_some(granted.began)).min()
    }

    /// Until when the server may keep what this call stored. The dead send nothing more.
    fn kept_until(&self, call: &Call) -> Duration {
        let death = self.deaths.get(&call.who.process).copied().unwrap_or(Duration::MAX);
        call.ended().min(death).saturating_add(call.lease() + KEPT)
    }
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<String>,
    pub(crate) hung: Vec<String>,
    /// Locks that were lost with the server's memory, as is documented.
    pub(crate) losses: Vec<String>,
    /// By how much a call exceeded its limit at most.
    pub(crate) latest: Duration,
    /// In which order waiters of different priority got their permits.
    pub(crate) turns: Turns,
}

/// How often what was answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) calls: usize,
    pub(crate) granted: usize,
    /// How often permits were.
    pub(crate) permitted: usize,
    pub(crate) refused: usize,
    pub(crate) inserted: usize,
    pub(crate) lost: usize,
    pub(crate) unreachable: usize,
    pub(crate) unknown: usize,
    pub(crate) protocol: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, calls: &[Call]) {
        for call in calls {
            let Some(said) = call.answer().filter(|_| call.op != Op::Inside) else { continue };
            self.calls += 1;
            let count = match (&call.op, said) {
                (Op::Lock { .. }, answer::OK) => &mut self.granted,
                (Op::Acquire { .. }, answer::OK) => &mut self.permitted,
                (_, answer::BUSY | answer::TIMED_OUT) => &mut self.refused,
                (Op::Insert { .. }, answer::OK | answer::DUPLICATE) => &mut self.inserted,
                (_, answer::LOST) => &mut self.lost,
                (_, answer::UNREACHABLE) => &mut self.unreachable,
                (_, answer::UNKNOWN) => &mut self.unknown,
                (_, answer::PROTOCOL) => &mut self.protocol,
                _ => continue,
            };
            *count += 1;
        }
    }

    pub(crate) fn errors(&self) -> usize {
        self.unreachable + self.unknown + self.protocol
    }
}

/// Looks for everything that may not be.
pub(crate) fn check(calls: &[Call], facts: &Facts) -> Verdict {
    let mut calls: Vec<&Call> = calls.iter().collect();
    calls.sort_by_key(|call| (call.who, call.began));
    let mut verdict = Verdict::default();
    calls::check(&calls, facts, &mut verdict);
    locks::check(&calls, facts, &mut verdict);
    semaphores::check(&calls, facts, &mut verdict);
    turns::check(&calls, facts, &mut verdict);
    lists::check(&calls, facts, &mut verdict);
    verdict
}

#[cfg(test)]
mod tests;
