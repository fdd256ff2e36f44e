//! What every call owes: an end in time, and an answer that it can have.

use std::time::Duration;

use super::{BOUND, Facts, Verdict};
use crate::history::{Call, Op, Span, answer};

pub(super) fn check(calls: &[&Call], facts: &Facts, verdict: &mut Verdict) {
    for call in calls.iter().filter(|call| call.op != Op::Inside) {
        let death = facts.deaths.get(&call.who.process).copied().unwrap_or(Duration::MAX);
        let took = Span { from: call.began, to: call.ended().min(death).min(facts.now) };
        let own = facts.stops.iter().filter(|(process, _)| *process == call.who.process);
        let stood: Duration = own.map(|(_, stop)| stop.shared(took)).sum();
        let limit = call.limit();
        let length = took.to.saturating_sub(took.from);
        let late = length.saturating_sub(limit + stood);
        verdict.latest = verdict.latest.max(late);
        if late > BOUND {
            verdict.hung.push(format!("hung: {length:?} with a limit of {limit:?}: {call:?}"));
        }
        if call.answer().is_some_and(|answer| !is_possible(&call.op, answer)) {
            verdict.violations.push(format!("an answer that this call cannot have: {call:?}"));
        }
        if facts.sound && call.answer().is_some_and(|answer| answer < 0) {
            verdict.violations.push(format!("a failure, and nothing was wrong: {call:?}"));
        }
        if call.answer() == Some(answer::TIMED_OUT) && call.ended() < call.began + limit {
            verdict.violations.push(format!("timed out before its time: {call:?}"));
        }
    }
}

fn is_possible(op: &Op, said: i32) -> bool {
    let failures = [answer::UNREACHABLE, answer::UNKNOWN, answer::PROTOCOL];
    let proper = match op {
        Op::Lock { wait: Duration::ZERO, .. } | Op::Acquire { wait: Duration::ZERO, .. } => {
            [answer::OK, answer::BUSY].contains(&said)
        }
        Op::Lock { .. } | Op::Acquire { .. } => [answer::OK, answer::TIMED_OUT].contains(&said),
        Op::Release => [answer::OK, answer::LOST, answer::NOT_HELD].contains(&said),
        Op::Extend { .. } | Op::Unlock | Op::Prolong { .. } => {
            [answer::OK, answer::LOST].contains(&said)
        }
        Op::SetUp => [answer::OK, answer::EXISTS].contains(&said),
        Op::Insert { .. } => [answer::OK, answer::DUPLICATE, answer::NOT_FOUND].contains(&said),
        Op::Inside => true,
    };
    proper || failures.contains(&said)
}
