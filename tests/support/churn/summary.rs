//! The figures of the churn test, for people.

use std::fmt::Write;
use std::time::Duration;

use memlock_tests::history::answer;

use super::checks::{Findings, Stretch};
use super::history::{History, Waited, leaving, left};
use super::keys::KEYS;

/// The figures in words.
pub(crate) fn of(history: &History, findings: &Findings) -> String {
    let (waits, processes) = (history.waits(), &history.processes);
    let count =
        |what: &dyn Fn(&Waited<'_>) -> bool| waits.iter().filter(|waited| what(waited)).count();
    let answered = |answer| count(&|one| one.call.answer() == Some(answer));
    let killed = |one: &Waited<'_>| processes[one.call.who.process].killed.is_some();
    let holding = |one: &Waited<'_>| one.hold.as_ref().is_some_and(|hold| left(hold).is_none());
    let mut text = String::new();
    let mut say = |line: String| _ = writeln!(text, "  {line}");
    say(format!(
        "{} processes, {} of them killed; {} waits: {} got it, {} timed out, {} were cancelled",
        processes.len(),
        processes.iter().filter(|process| process.killed.is_some()).count(),
        waits.len(),
        count(&|one| one.hold.is_some()),
        answered(answer::TIMED_OUT),
        answered(answer::INTERRUPTED),
    ));
    say(format!(
        "killed while holding {}, while waiting {}",
        count(&|one| killed(one) && holding(one)),
        count(&|one| killed(one) && one.call.done.is_none()),
    ));
    let overtakers = overtakers(&waits);
    for (which, unreachable) in [("with", false), ("without", true)] {
        let of_kind = |one: &Waited<'_>| processes[one.call.who.process].unreachable == unreachable;
        let longest = waits.iter().filter(|one| of_kind(one)).max_by_key(|one| one.length());
        let overtaken =
            overtakers.iter().filter(|(_, one)| of_kind(one)).max_by_key(|(count, _)| *count);
        if let (Some(longest), Some((count, who))) = (longest, overtaken) {
            let (time, longest, who) = (longest.length(), longest.whose(), who.whose());
            say(format!(
                "{which} wake-ups: longest wait {time:?}, {longest}; most overtakers {count}, {who}"
            ));
        }
    }
    let late =
        waits.iter().filter_map(|one| Some((one.ended.saturating_sub(one.call.due()?), one)));
    if let Some((late, who)) = late.max_by_key(|(late, _)| *late) {
        say(format!("latest end after a limit or a cancellation {late:?}, {}", who.whose()));
    }
    let over = |least| {
        findings.free.iter().filter(|free| free.length > Duration::from_millis(least)).count()
    };
    say(format!(
        "free while waited for: {:?} in all, over 50 ms {}, over 0.5 s {}, over 1.5 s {}, over 3 s {}; the longest:",
        findings.free.iter().map(|free| free.length).sum::<Duration>(),
        over(50),
        over(500),
        over(1500),
        over(3000)
    ));
    for Stretch { length, began, what } in findings.free.iter().take(5) {
        say(format!("  {length:?} from {began:?}, {what}"));
    }
    if let Some(Stretch { length, began, what }) = findings.absent.first() {
        say(format!("longest on the server, not inside: {length:?} from {began:?}, {what}"));
    }
    let (away, near) = hand_overs(&waits);
    for (which, mut times) in [("another process", away), ("a thread of the same process", near)] {
        times.sort();
        let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
        say(format!("{} hand-overs to {which}: p50 {:?}, p99 {:?}", times.len(), at(50), at(99)));
    }
    text
}

/// How many later callers got it before, for each wait.
fn overtakers<'a>(waits: &'a [Waited<'a>]) -> Vec<(usize, &'a Waited<'a>)> {
    let mut all = Vec::new();
    for key in 0..KEYS {
        let mut waits: Vec<&Waited<'_>> = waits.iter().filter(|one| one.key == key).collect();
        waits.sort_by_key(|one| one.call.began);
        for (place, this) in waits.iter().enumerate() {
            let later = waits[place + 1..].iter().take_while(|later| later.call.began < this.ended);
            let first = later
                .filter_map(|later| later.hold.as_ref())
                .filter(|hold| hold.granted < this.ended);
            all.push((first.count(), *this));
        }
    }
    all
}

/// From a holder's unlocking to the entry of the next one, where that one had waited: to other
/// processes, and within one.
fn hand_overs(waits: &[Waited<'_>]) -> (Vec<Duration>, Vec<Duration>) {
    let (mut away, mut near) = (Vec::new(), Vec::new());
    for key in 0..KEYS {
        let of_key = waits.iter().filter(|one| one.key == key);
        let mut holds: Vec<_> = of_key.filter_map(|one| one.hold.as_ref()).collect();
        holds.retain(|hold| hold.is_valid());
        holds.sort_by_key(|hold| hold.granted);
        for pair in holds.windows(2) {
            let (last, next) = (pair[0], pair[1]);
            let waited = |leaving: &Duration| next.lock.began < *leaving;
            if let Some(leaving) = leaving(last).filter(waited) {
                let is_near = last.lock.who.process == next.lock.who.process;
                let times = if is_near { &mut near } else { &mut away };
                times.push(next.granted.saturating_sub(leaving));
            }
        }
    }
    (away, near)
}
