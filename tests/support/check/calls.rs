//! What every call owes: an end in time, and an answer that it can have.

use std::time::Duration;

use memlock_core::Answer;

use super::facts::Facts;
use super::verdict::Verdict;
use crate::history::{Call, Done, Op, Span};

/// A grant that comes faster is counted from its request, and never by the server's TTL.
const SLOW: Duration = Duration::from_millis(50);
/// What the error says of a grant that came so late that nothing is left of its lease.
const NOTHING_LEFT: &str = "took longer to answer than the lease";

pub(super) fn check(calls: &[&Call], facts: &Facts, verdict: &mut Verdict) {
    for call in calls.iter().filter(|call| call.op != Op::Inside) {
        ends_in_time(call, facts, verdict);
        if let Some(done) = &call.done {
            verdict
                .violations
                .extend(wrong_answers(call, done, facts).map(|what| format!("{what}: {call:?}")));
        }
    }
}

fn ends_in_time(call: &Call, facts: &Facts, verdict: &mut Verdict) {
    let Some(due) = call.due() else { return };
    let death = facts.deaths.get(&call.who.process).copied().unwrap_or(Duration::MAX);
    let took = Span { from: call.began, to: call.ended().min(death).min(facts.now) };
    let own = facts.stops.iter().filter(|(process, _)| *process == call.who.process);
    let stood: Duration = own.map(|(_, stop)| stop.shared(took)).sum();
    let late = facts.marks.between(due, took.to).saturating_sub(stood);
    verdict.latest = verdict.latest.max(late);
    if late > facts.bound {
        verdict.hung.push(format!("hung: {late:?} past its limit or its cancellation: {call:?}"));
    }
}

/// What is wrong with the answer.
fn wrong_answers(call: &Call, done: &Done, facts: &Facts) -> impl Iterator<Item = &'static str> {
    let is_failure = done.answer.code() < 0;
    let nothing_left = matches!(call.op, Op::Lock { .. }) && done.said.contains(NOTHING_LEFT);
    let was_slow = done.at >= call.began + SLOW;
    let excused = facts.slow_grants && nothing_left;
    let too_early = || call.limit().is_none_or(|limit| done.at < call.began + limit);
    let uncancelled = || call.cancelled.is_none_or(|cancelled| done.at < cancelled);
    [
        (!is_possible(call, done), "an answer that this call cannot have"),
        (is_failure && facts.sound && !excused, "a failure, and nothing was wrong"),
        (nothing_left && !was_slow, "refused as too slow, and the grant was not slow"),
        (done.answer == Answer::TimedOut && too_early(), "timed out before its time"),
        (
            done.answer == Answer::Interrupted && uncancelled(),
            "interrupted, and nobody had cancelled it",
        ),
    ]
    .into_iter()
    .filter_map(|(is_wrong, what)| is_wrong.then_some(what))
}

fn is_possible(call: &Call, done: &Done) -> bool {
    let failures = [Answer::Unreachable, Answer::Unknown, Answer::Protocol];
    // A wait that is cancelled answers so, and does not fail.
    let interrupted = done.answer == Answer::Interrupted && done.said.is_empty();
    let proper: &[Answer] = match call.op {
        Op::Lock { .. } | Op::Acquire { .. } if interrupted => return true,
        Op::Lock { wait: Some(Duration::ZERO), .. }
        | Op::Acquire { wait: Some(Duration::ZERO), .. } => &[Answer::Ok, Answer::Busy],
        Op::Lock { .. } | Op::Acquire { .. } => &[Answer::Ok, Answer::TimedOut],
        Op::Release => &[Answer::Ok, Answer::Lost, Answer::NotHeld],
        Op::Extend { .. } | Op::Unlock | Op::Prolong { .. } => &[Answer::Ok, Answer::Lost],
        Op::SetUp => &[Answer::Ok, Answer::Exists],
        Op::Insert { .. } => &[Answer::Ok, Answer::Duplicate, Answer::NotFound],
        Op::Inside => return true,
    };
    proper.contains(&done.answer) || failures.contains(&done.answer)
}
