//! What mutexes owe.

use std::collections::HashMap;
use std::time::Duration;

use memlock_core::Answer;

use super::facts::Facts;
use super::holds::{HoldInterval, holds};
use super::losses;
use super::verdict::Verdict;
use crate::history::{Call, Op, Span};

/// From when on the server may have lost it, so that it is no fault of ours.
fn may_be_lost_from(hold: &HoldInterval<'_>, facts: &Facts) -> Option<Duration> {
    facts.may_be_lost_from(hold.lock, &hold.extended, hold.deadline)
}

/// Until when it may stand on the server, for all that is known.
fn gone_by(hold: &HoldInterval<'_>, facts: &Facts) -> Duration {
    let settled =
        hold.released.iter().find(|call| matches!(call.answer(), Some(Answer::Ok | Answer::Lost)));
    let stored = hold.extended.iter().copied().chain([hold.lock]);
    settled.map_or_else(
        || stored.map(|call| facts.kept_until(call)).max().unwrap_or(Duration::MAX),
        |call| call.ended(),
    )
}

pub(super) fn check(calls: &[&Call], facts: &Facts, verdict: &mut Verdict) {
    let mut names: HashMap<&str, Vec<&Call>> = HashMap::new();
    for call in calls.iter().filter(|call| matches!(call.op, Op::Lock { .. })) {
        names.entry(&call.name).or_default().push(call);
    }
    let mut by_name: HashMap<&str, Vec<HoldInterval<'_>>> = HashMap::new();
    for hold in holds(calls) {
        if let Some(section) = hold.entered_late {
            verdict.breach(format_args!("entered without a lease: {section:?} of {hold:?}"));
        }
        by_name.entry(&hold.lock.name).or_default().push(hold);
    }
    for (name, locks) in names {
        let mut holds = by_name.remove(name).unwrap_or_default();
        holds.sort_by_key(|hold| hold.granted);
        one_at_a_time(&holds, facts, verdict);
        fences_rise(&holds, verdict);
        told_truly(&holds, facts, verdict);
        if facts.punctual {
            refused_for_a_reason(&locks, &holds, facts, verdict);
        }
    }
}

fn one_at_a_time(holds: &[HoldInterval<'_>], facts: &Facts, verdict: &mut Verdict) {
    // The client with the smaller fence was granted it first, though it may have learnt so later.
    let mut judge = |text, this: &HoldInterval<'_>, other: &HoldInterval<'_>| {
        let (first, second) = if this.fence < other.fence { (this, other) } else { (other, this) };
        match may_be_lost_from(first, facts) {
            Some(lost) if lost <= second.granted => verdict.losses.push(text),
            _ => verdict.breach(text),
        }
    };
    // Of those so far, the one that lasts longest, and the one with the greatest fence.
    let mut last: Option<&HoldInterval<'_>> = None;
    let mut greatest: Option<&HoldInterval<'_>> = None;
    for this in holds.iter().filter(|hold| hold.is_valid()) {
        let overlapped = last.filter(|last| this.granted < last.until());
        if let Some(last) = overlapped {
            judge(format!("two valid holds: {this:?} within {last:?}"), this, last);
        }
        // The other one was granted while this one waited. With the smaller fence, this one had
        // been granted before that, and was still valid. Where the other one was granted before
        // this one was asked for, see `fences_rise`.
        let before = greatest.filter(|other| {
            let known = overlapped.is_some_and(|last| std::ptr::eq(last, *other));
            other.fence >= this.fence && other.granted > this.lock.began && !known
        });
        if let Some(other) = before {
            judge(format!("the fence did not rise: {this:?} after {other:?}"), this, other);
        }
        if last.is_none_or(|last| last.until() <= this.until()) {
            last = Some(this);
        }
        if greatest.is_none_or(|other| other.fence <= this.fence) {
            greatest = Some(this);
        }
    }
}

fn fences_rise(holds: &[HoldInterval<'_>], verdict: &mut Verdict) {
    // Of those granted so far, the one with the greatest fence: there are as many as holds, in
    // their order.
    let mut greatest: Vec<&HoldInterval<'_>> = Vec::with_capacity(holds.len());
    for hold in holds {
        let best = greatest.last().filter(|best| best.fence > hold.fence);
        greatest.push(best.copied().unwrap_or(hold));
    }
    for hold in holds {
        let before = holds.partition_point(|other| other.granted <= hold.lock.began);
        if let Some(other) = before.checked_sub(1).map(|last| greatest[last])
            && other.fence >= hold.fence
        {
            verdict.breach(format_args!("the fence did not rise: {hold:?} after {other:?}"));
        }
    }
    let mut fences: Vec<u64> = holds.iter().map(|hold| hold.fence).collect();
    fences.sort_unstable();
    for twice in fences.windows(2).filter(|pair| pair[0] == pair[1]) {
        verdict.breach(format_args!("two grants have the fence {}", twice[0]));
    }
}

fn told_truly(holds: &[HoldInterval<'_>], facts: &Facts, verdict: &mut Verdict) {
    let mut by_asking: Vec<&HoldInterval<'_>> = holds.iter().collect();
    by_asking.sort_by_key(|hold| hold.lock.began);
    // Of those asked for from here on, the one that was granted first.
    let mut first_granted: Vec<&HoldInterval<'_>> = Vec::with_capacity(holds.len());
    for hold in by_asking.iter().rev() {
        let best = first_granted.last().filter(|best| best.granted < hold.granted);
        first_granted.push(best.copied().unwrap_or(hold));
    }
    first_granted.reverse();
    for hold in holds {
        losses::are_told_truly(
            hold.extended.iter().chain(&hold.released),
            hold.deadline,
            || may_be_lost_from(hold, facts),
            format_args!("lost before its deadline: {hold:?}"),
            verdict,
        );
        let Some(release) = hold.released.first() else { continue };
        let after = by_asking.partition_point(|other| other.lock.began < hold.granted);
        if hold.released.last().and_then(|call| call.answer()) == Some(Answer::Ok)
            && let Some(other) = first_granted.get(after)
            && other.granted <= release.began
        {
            let text = format!("told as released, but it was another's: {hold:?}, {other:?}");
            // Where the reply to a release is lost too, and the item is gone, the answer is
            // "released": see DESIGN.md.
            match may_be_lost_from(hold, facts) {
                Some(lost) if lost <= other.granted && !facts.punctual => verdict.losses.push(text),
                _ => verdict.breach(text),
            }
        }
    }
}

/// Refused when no client can have held it. A caller that waits may also be behind waiters that
/// have died; so, where processes die or stand still, only calls that do not wait are checked.
fn refused_for_a_reason(
    locks: &[&Call],
    holds: &[HoldInterval<'_>],
    facts: &Facts,
    verdict: &mut Verdict,
) {
    let ends: HashMap<*const Call, Duration> =
        holds.iter().map(|hold| (std::ptr::from_ref(hold.lock), gone_by(hold, facts))).collect();
    let mut possible: Vec<(Span, *const Call)> = Vec::new();
    for call in locks.iter().copied() {
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
        possible.push((Span { from: call.began, to }, std::ptr::from_ref(call)));
    }
    possible.sort_by_key(|(span, _)| span.from);
    let mut longest: Vec<Duration> = Vec::with_capacity(possible.len());
    for (span, _) in &possible {
        longest.push(longest.last().map_or(span.to, |longest| span.to.max(*longest)));
    }
    let calm = facts.deaths.is_empty() && facts.stops.is_empty();
    for call in locks {
        let looked_at = match call.answer() {
            Some(Answer::Busy) => true,
            Some(Answer::TimedOut) => calm,
            _ => false,
        };
        let before = possible.partition_point(|(span, _)| span.from <= call.ended());
        let held = before.checked_sub(1).is_some_and(|last| longest[last] >= call.began);
        if looked_at && !held {
            verdict.breach(format_args!("refused, and nobody can have held it: {call:?}"));
        }
    }
}
