//! The order in which the waiters for a semaphore's permits get them.
//!
//! Order is not promised to the last of them: wake-ups may be lost, and a waiter that inspects the
//! semaphore by itself and finds permits takes them. So all pairs are counted of a waiter and one
//! of lower priority that both had been waiting for some time, and most of them have to be in
//! order.

use std::time::Duration;

use memlock_core::Answer;

use super::facts::Facts;
use super::verdict::{Turns, Verdict};
use crate::history::{Call, Op};

/// By then a waiter is in the queue.
const STANDS: Duration = Duration::from_millis(40);
/// So few pairs prove nothing.
const FEWEST: usize = 20;
/// How many of a hundred have to be in order.
const MOST_IN_ORDER: usize = 80;

pub(super) fn check(calls: &[&Call], facts: &Facts, verdict: &mut Verdict) {
    let mut turns = Turns::default();
    // A waiter for several permits may have to wait longer.
    for semaphore in facts.semaphores.iter().filter(|semaphore| semaphore.most == 1) {
        count(calls, semaphore.name, &mut turns);
    }
    verdict.turns = turns;
    let pairs = turns.in_order + turns.overtaken;
    let calm =
        facts.sound && facts.deaths.is_empty() && facts.stops.is_empty() && facts.losses.is_empty();
    if calm && pairs >= FEWEST && turns.in_order * 100 < pairs * MOST_IN_ORDER {
        verdict.violations.push(format!("priorities are not respected: {}", turns.summary()));
    }
}

fn count(calls: &[&Call], name: &str, turns: &mut Turns) {
    let waited = |call: &&&Call| {
        let asks = matches!(call.op, Op::Acquire { .. }) && call.name == name;
        asks && call.ended() > call.began + STANDS && call.answer() == Some(Answer::Ok)
    };
    let mut waiters: Vec<&Call> = calls.iter().filter(waited).copied().collect();
    waiters.sort_by_key(|call| call.ended());
    for (place, first) in waiters.iter().enumerate() {
        // Those that were in the queue when this one's turn came, and got theirs later.
        let others =
            waiters[place + 1..].iter().filter(|other| other.began + STANDS < first.ended());
        for other in others {
            match priority(first).cmp(&priority(other)) {
                std::cmp::Ordering::Greater => turns.in_order += 1,
                std::cmp::Ordering::Less => turns.overtaken += 1,
                std::cmp::Ordering::Equal => {}
            }
        }
    }
}

fn priority(call: &Call) -> i64 {
    if let Op::Acquire { priority, .. } = call.op { priority } else { 0 }
}
