//! The order in which the waiters for a semaphore's permits get them.
//!
//! Order is not promised to the last of them: wake-ups may be lost, and a waiter that inspects the
//! semaphore by itself and finds permits takes them. So all pairs are counted of a waiter and one
//! of lower priority that both had been waiting for some time, and most of them have to be in
//! order.

use std::time::Duration;

use super::{Facts, Verdict};
use crate::history::{Call, Op, answer};

/// By then a waiter is in the queue.
const STANDS: Duration = Duration::from_millis(40);
/// So few pairs prove nothing.
const FEWEST: usize = 20;
/// How many of a hundred have to be in order.
const MOST_IN_ORDER: usize = 80;
/// The semaphore of which no client asks for more than one permit: a waiter for several may have to
/// wait longer.
const SINGLE: &str = "p0";

/// How many pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turns {
    pub(crate) in_order: usize,
    pub(crate) overtaken: usize,
}

impl Turns {
    pub(crate) fn summary(&self) -> String {
        let Turns { in_order, overtaken } = self;
        format!(
            "of waiters with another of lower priority: {in_order} came before it, {overtaken} after it"
        )
    }
}

pub(super) fn check(calls: &[&Call], facts: &Facts, verdict: &mut Verdict) {
    let waited = |call: &&&Call| {
        let asks = matches!(call.op, Op::Acquire { .. }) && call.name == SINGLE;
        asks && call.ended() > call.began + STANDS && call.answer() == Some(answer::OK)
    };
    let mut waiters: Vec<&Call> = calls.iter().filter(waited).copied().collect();
    waiters.sort_by_key(|call| call.ended());
    let mut turns = Turns::default();
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
    verdict.turns = turns;
    let pairs = turns.in_order + turns.overtaken;
    let calm =
        facts.sound && facts.deaths.is_empty() && facts.stops.is_empty() && facts.losses.is_empty();
    if calm && pairs >= FEWEST && turns.in_order * 100 < pairs * MOST_IN_ORDER {
        verdict.violations.push(format!("priorities are not respected: {}", turns.summary()));
    }
}

fn priority(call: &Call) -> i64 {
    if let Op::Acquire { priority, .. } = call.op { priority } else { 0 }
}
