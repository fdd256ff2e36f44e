//! What semaphores owe.

use std::collections::HashMap;
use std::time::Duration;

use memlock_core::Answer;

use super::facts::{Facts, Semaphore};
use super::losses;
use super::verdict::Verdict;
use crate::history::{Call, Op};

/// For how long newcomers let a waiter for several permits go first after its last word: five of
/// the server's seconds.
const GATHERS: Duration = Duration::from_secs(6);

/// One acquisition, from its grant to its end.
#[derive(Debug)]
struct Holding<'a> {
    acquired: &'a Call,
    granted: Duration,
    permits: u32,
    deadline: Duration,
    extended: Vec<&'a Call>,
    /// More than one if the first failed, or if it was released twice.
    released: Vec<&'a Call>,
}

impl Holding<'_> {
    /// Until when it counts.
    fn until(&self) -> Duration {
        let lost = self.extended.iter().find(|call| call.answer() == Some(Answer::Lost));
        let given_up = self.released.first().into_iter().chain(lost).map(|call| call.began).min();
        self.deadline.min(given_up.unwrap_or(Duration::MAX))
    }

    fn may_be_lost_from(&self, facts: &Facts) -> Option<Duration> {
        facts.may_be_lost_from(self.acquired, &self.extended, self.deadline)
    }

    /// Until when it may stand on the server, for all that is known.
    fn gone_by(&self, facts: &Facts) -> Duration {
        let settled = self
            .released
            .iter()
            .find(|call| matches!(call.answer(), Some(Answer::Ok | Answer::Lost)));
        let stored = self.extended.iter().copied().chain([self.acquired]);
        settled.map_or_else(
            || stored.map(|call| facts.kept_until(call)).max().unwrap_or(Duration::MAX),
            |call| call.ended(),
        )
    }
}

pub(super) fn check(calls: &[&Call], facts: &Facts, verdict: &mut Verdict) {
    for call in calls.iter().filter(|call| matches!(call.op, Op::Acquire { .. })) {
        if !facts.semaphores.iter().any(|semaphore| semaphore.name == call.name) {
            verdict.violations.push(format!("a semaphore of unknown size: {call:?}"));
        }
    }
    let all = holdings(calls, verdict);
    for &Semaphore { name, permits: size, .. } in facts.semaphores {
        let holdings: Vec<&Holding<'_>> =
            all.iter().filter(|holding| holding.acquired.name == name).collect();
        no_more_than_there_are(&holdings, size, facts, verdict);
        told_truly(&holdings, facts, verdict);
        if facts.punctual {
            let of_it = |call: &&&Call| matches!(call.op, Op::Acquire { .. }) && call.name == name;
            let asked: Vec<&Call> = calls.iter().filter(of_it).copied().collect();
            refused_for_a_reason(&asked, &holdings, size, facts, verdict);
        }
    }
}

/// Puts together what each thread did between a grant and its end.
fn holdings<'a>(calls: &[&'a Call], verdict: &mut Verdict) -> Vec<Holding<'a>> {
    let mut holdings: Vec<Holding<'a>> = Vec::new();
    for call in calls {
        // The first calls of a history may be cut off: then there is no acquisition to them.
        let last = holdings.last_mut().filter(|holding| holding.acquired.who == call.who);
        match (&call.op, &call.done, last) {
            (Op::Acquire { permits, .. }, Some(done), _) if done.answer == Answer::Ok => {
                if done.first != u64::from(*permits) {
                    verdict.violations.push(format!("granted is not what was asked for: {call:?}"));
                }
                holdings.push(Holding {
                    acquired: call,
                    granted: done.at,
                    permits: *permits,
                    deadline: Duration::from_nanos(done.second),
                    extended: Vec::new(),
                    released: Vec::new(),
                });
            }
            (Op::Prolong { .. }, done, Some(holding)) => {
                holding.extended.push(call);
                // A lost one reports that nothing is left; when it was lost is checked elsewhere.
                if let Some(done) = done.as_ref().filter(|done| done.answer != Answer::Lost) {
                    holding.deadline = Duration::from_nanos(done.second);
                }
            }
            (Op::Release, _, Some(holding)) => holding.released.push(call),
            _ => {}
        }
    }
    holdings
}

/// At no moment do valid holdings of one life of the server add up to more than there are.
fn no_more_than_there_are(
    holdings: &[&Holding<'_>],
    size: u32,
    facts: &Facts,
    verdict: &mut Verdict,
) {
    let mut by_grant: Vec<&Holding<'_>> =
        holdings.iter().copied().filter(|holding| holding.granted < holding.until()).collect();
    by_grant.sort_by_key(|holding| holding.granted);
    let sum = |of: &[&Holding<'_>]| of.iter().map(|holding| holding.permits).sum::<u32>();
    let mut valid: Vec<&Holding<'_>> = Vec::new();
    for holding in by_grant {
        valid.retain(|other| other.until() > holding.granted);
        valid.push(holding);
        if sum(&valid) <= size {
            continue;
        }
        let text = format!("{} permits out, and there are {size}: {valid:?}", sum(&valid));
        // A grant that was known late may have been made, and lost, before the others.
        let lost = |other: &&Holding<'_>| {
            other.may_be_lost_from(facts).is_some_and(|lost| lost <= holding.granted)
        };
        valid.retain(|other| !lost(other));
        if sum(&valid) <= size {
            verdict.losses.push(text);
        } else {
            verdict.breach(text);
        }
    }
}

fn told_truly(holdings: &[&Holding<'_>], facts: &Facts, verdict: &mut Verdict) {
    for holding in holdings {
        losses::are_told_truly(
            holding.extended.iter().chain(&holding.released),
            holding.deadline,
            || holding.may_be_lost_from(facts),
            format_args!("permits lost before their deadline: {holding:?}"),
            verdict,
        );
        let mut ended = false;
        for call in &holding.released {
            let said = call.answer();
            if (ended && said == Some(Answer::Ok)) || (!ended && said == Some(Answer::NotHeld)) {
                verdict.violations.push(format!("released twice, or not at all: {holding:?}"));
            }
            ended |= matches!(said, Some(Answer::Ok | Answer::Lost));
        }
    }
}

/// Refused when there must have been permits: so they are not leaked either. A caller that waits
/// may also be behind waiters that have died; so, where processes die or stand still, only calls
/// that do not wait are checked.
fn refused_for_a_reason(
    asked: &[&Call],
    holdings: &[&Holding<'_>],
    size: u32,
    facts: &Facts,
    verdict: &mut Verdict,
) {
    let ends: HashMap<*const Call, Duration> = holdings
        .iter()
        .map(|holding| (std::ptr::from_ref(holding.acquired), holding.gone_by(facts)))
        .collect();
    // From when until when each may have held how many.
    let mut possible: Vec<(Duration, Duration, u32)> = Vec::new();
    let mut reserving: Vec<(Duration, Duration)> = Vec::new();
    for call in asked.iter().copied() {
        let Op::Acquire { permits, wait, .. } = call.op else { continue };
        if permits > 1 && wait != Some(Duration::ZERO) {
            reserving.push((call.began, call.ended().saturating_add(GATHERS)));
        }
        let to = match call.answer() {
            Some(Answer::Ok) => {
                ends.get(&std::ptr::from_ref(call)).copied().unwrap_or(Duration::MAX)
            }
            Some(Answer::Busy | Answer::TimedOut | Answer::Interrupted) => {
                if !facts.may_have_been_next(call) {
                    continue;
                }
                call.ended()
            }
            Some(Answer::Unreachable) => call.ended(),
            _ => facts.kept_until(call),
        };
        possible.push((call.began, to, permits));
    }
    let calm = facts.deaths.is_empty() && facts.stops.is_empty();
    for call in asked {
        let Op::Acquire { permits, .. } = call.op else { continue };
        let looked_at = match call.answer() {
            Some(Answer::Busy) => true,
            Some(Answer::TimedOut) => calm,
            _ => false,
        };
        let (began, ended) = (call.began, call.ended());
        let meets = |from: Duration, to: Duration| from <= ended && to >= began;
        if !looked_at || reserving.iter().any(|&(from, to)| meets(from, to)) {
            continue;
        }
        let held = possible
            .iter()
            .filter(|&&(from, to, _)| meets(from, to))
            .map(|&(_, _, permits)| permits);
        if held.sum::<u32>() + permits <= size {
            verdict.violations.push(format!("refused, and there must have been permits: {call:?}"));
        }
    }
}
