//! What the histories of the churn test must show, and figures for people.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use super::event::KEYS;
use super::history::{End, History, HoldInterval, Process, Waited};

// Upper bounds are compared with the time that the test's stopwatch counted, so that other load on
// the machine is no violation.

/// How much later than its limit or its cancellation a wait may end.
const SLACK: Duration = Duration::from_secs(2);
/// For how long a lock may be free while it has waiters.
const BOUND: Duration = Duration::from_secs(5);
/// For how long the server may have a living process as the holder that is not inside.
const MOST_ABSENT: Duration = Duration::from_secs(1);

/// A faster grant is counted from its request, and never by the server's TTL.
const SLOW: Duration = Duration::from_millis(50);

/// A stretch of time, and what it is about.
#[derive(Clone, Default)]
pub(crate) struct Stretch {
    pub(crate) length: Duration,
    pub(crate) began: Duration,
    pub(crate) what: String,
}

/// What was found.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) violations: Vec<String>,
    /// When locks were free while they had waiters, the longest first.
    pub(crate) free: Vec<Stretch>,
    /// When the server had a holder that was not inside, the longest first.
    pub(crate) absent: Vec<Stretch>,
}

/// Looks for everything that may not be.
pub(crate) fn check(history: &History) -> Findings {
    let mut findings = Findings::default();
    for waited in &history.waits {
        ends_as_it_should(waited, history, &mut findings.violations);
    }
    for key in 0..KEYS {
        one_at_a_time(&holds(history, key), &mut findings.violations);
        findings.free.extend(free_while_waited_for(history, key));
        findings.absent.extend(held_by_nobody(history, key));
    }
    for (stretches, most, what) in [
        (&mut findings.free, BOUND, "free while somebody waited"),
        (&mut findings.absent, MOST_ABSENT, "held by a living process that was not inside"),
    ] {
        stretches.sort_by_key(|stretch| std::cmp::Reverse(stretch.length));
        let counted = |of: &Stretch| history.marks.between(of.began, of.began + of.length);
        for stretch in stretches.iter().filter(|stretch| counted(stretch) > most) {
            let Stretch { length, began, what: which } = stretch;
            findings.violations.push(format!("{what} for {length:?} from {began:?}: {which}"));
        }
    }
    findings
}

/// The holds of a key that were in time, in the order of their entry.
fn holds(history: &History, key: usize) -> Vec<(&Waited, &HoldInterval)> {
    let of_key = history.waits.iter().filter(|waited| waited.key == key);
    let mut holds: Vec<_> = of_key.filter_map(|waited| Some((waited, waited.hold()?))).collect();
    // A thread that slept from the grant until past its deadline got no wrong answer, and was never
    // inside.
    holds.retain(|(_, hold)| hold.entered < hold.until());
    holds.sort_by_key(|(_, hold)| hold.entered);
    holds
}

fn one_at_a_time(holds: &[(&Waited, &HoldInterval)], violations: &mut Vec<String>) {
    let mut last: Option<&(&Waited, &HoldInterval)> = None;
    for this in holds {
        if let Some(last) = last {
            let whose =
                format!("{} {:?} after {} {:?}", this.0.whose(), this.1, last.0.whose(), last.1);
            if this.1.entered < last.1.until() {
                violations.push(format!("two were inside: {whose}"));
            }
            if this.1.fence <= last.1.fence {
                violations.push(format!("the fence did not rise: {whose}"));
            }
        }
        if last.is_none_or(|last| last.1.until() <= this.1.until()) {
            last = Some(this);
        }
    }
}

fn ends_as_it_should(waited: &Waited, history: &History, violations: &mut Vec<String>) {
    let mut violation =
        |what: &str| violations.push(format!("{what}: {} {waited:?}", waited.whose()));
    if waited.due().is_some_and(|due| history.marks.between(due, waited.ended) > SLACK) {
        violation("a wait ended too late");
    }
    match &waited.end {
        End::Nothing(answer) if answer == "TimedOut" => {
            if waited.limit.is_none_or(|limit| waited.ended < waited.began + limit) {
                violation("a wait timed out before its time");
            }
        }
        End::Nothing(answer) if answer == "Interrupted" => {
            if waited.cancelled.is_none_or(|cancelled| waited.ended < cancelled) {
                violation("a wait was interrupted, and nobody had cancelled it");
            }
        }
        // A slow grant is counted by the server's TTL. If the server's clock had to catch up,
        // nothing of the lease may be left, and the wait fails with this error.
        End::Nothing(answer) if answer.contains("took longer to answer than the lease") => {
            if waited.ended < waited.began + SLOW {
                violation("a wait failed, but its grant was not slow");
            }
        }
        End::Nothing(_) => violation("a wait failed"),
        End::Acquired(HoldInterval { left: Some((at, answer)), deadline, .. }) => {
            match answer.as_str() {
                "Released" => {}
                "Lost" if deadline <= at => {}
                "Lost" => violation("a lock was lost before its deadline"),
                _ => violation("an unlock failed"),
            }
        }
        End::Acquired(_) | End::Died => {}
    }
}

/// When the lock had no holder, by the histories and by the server, and had waiters.
fn free_while_waited_for(history: &History, key: usize) -> Vec<Stretch> {
    // What begins or ends: first holders, then waiters.
    let mut changes: Vec<(Duration, [i32; 2])> = Vec::new();
    let mut span = |from: Duration, to: Duration, [inside, waiting]: [i32; 2]| {
        changes.extend([(from, [inside, waiting]), (to, [-inside, -waiting])]);
    };
    for waited in history.waits.iter().filter(|waited| waited.key == key) {
        span(waited.began, waited.ended, [0, 1]);
        if let Some(HoldInterval { entered, left: Some((left, _)), .. }) = waited.hold() {
            span(*entered, *left, [1, 0]);
        }
    }
    // A killed holder is inside for as long as the server believes so.
    for pair in history.sights[key].windows(2) {
        if pair[0].holder.is_some() {
            span(pair[0].before, pair[1].after, [1, 0]);
        }
    }
    changes.sort();
    let mut now = [0, 0];
    let mut free = Vec::new();
    for pair in changes.windows(2) {
        now = [now[0] + pair[0].1[0], now[1] + pair[0].1[1]];
        let (began, length) = (pair[0].0, pair[1].0 - pair[0].0);
        if now[0] > 0 || now[1] == 0 || length.is_zero() {
            continue;
        }
        match free.last_mut() {
            Some(Stretch { began: before, length: so_far, .. }) if *before + *so_far == began => {
                *so_far += length;
            }
            _ => {
                free.push(Stretch { length, began, what: format!("key {key}, {} waited", now[1]) })
            }
        }
    }
    free
}

/// When the server had a living process of ours as the holder, and by its history it was not
/// inside.
fn held_by_nobody(history: &History, key: usize) -> Vec<Stretch> {
    let mut inside: HashMap<usize, Vec<(Duration, Duration)>> = HashMap::new();
    for waited in history.waits.iter().filter(|waited| waited.key == key) {
        if let Some(hold) = waited.hold() {
            let left = hold.left.as_ref().map_or(Duration::MAX, |left| left.0);
            inside.entry(waited.process).or_default().push((hold.entered, left));
        }
    }
    let runs = history.sights[key].chunk_by(|one, next| one.holder == next.holder);
    let absent = runs.filter_map(|run| {
        let (first, last) = (run.first()?, run.last()?);
        let holder = first.holder.as_ref()?;
        // The last process with this number that was started before the sighting.
        let is_it = |process: &Process| process.pid == holder.pid && process.began < first.after;
        let process = history.processes.iter().rposition(is_it)?;
        let killed = history.processes[process].killed.map_or(Duration::MAX, |(before, _)| before);
        let inside = inside.get(&process).cloned().unwrap_or_default();
        let mut absent = longest_gap(first.after, last.before.min(killed), inside)?;
        absent.what =
            format!("key {key}, process {process}, pid {}, token {}", holder.pid, holder.token);
        Some(absent)
    });
    absent.collect()
}

/// The longest stretch between these two moments that lies in none of the spans.
fn longest_gap(
    from: Duration,
    end: Duration,
    mut spans: Vec<(Duration, Duration)>,
) -> Option<Stretch> {
    spans.sort();
    spans.push((end, end));
    let (mut began, mut longest) = (from, Stretch::default());
    for (from, to) in spans {
        let length = from.min(end).saturating_sub(began);
        if longest.length < length {
            longest = Stretch { length, began, what: String::new() };
        }
        began = began.max(to);
    }
    (!longest.length.is_zero()).then_some(longest)
}

/// The figures in words.
pub(crate) fn summary(history: &History, findings: &Findings) -> String {
    let History { waits, processes, .. } = history;
    let count = |what: &dyn Fn(&Waited) -> bool| waits.iter().filter(|waited| what(waited)).count();
    let nothing =
        |said: &str| count(&|one| matches!(&one.end, End::Nothing(answer) if answer == said));
    let killed = |one: &Waited| processes[one.process].killed.is_some();
    let holding = |one: &Waited| one.hold().is_some_and(|hold| hold.left.is_none());
    let mut text = String::new();
    let mut say = |line: String| _ = writeln!(text, "  {line}");
    say(format!(
        "{} processes, {} of them killed; {} waits: {} got it, {} timed out, {} were cancelled",
        processes.len(),
        processes.iter().filter(|process| process.killed.is_some()).count(),
        waits.len(),
        count(&|one| one.hold().is_some()),
        nothing("TimedOut"),
        nothing("Interrupted"),
    ));
    say(format!(
        "killed while holding {}, while waiting {}",
        count(&|one| killed(one) && holding(one)),
        count(&|one| killed(one) && matches!(one.end, End::Died)),
    ));
    let overtakers = overtakers(history);
    for (which, unreachable) in [("with", false), ("without", true)] {
        let of_kind = |one: &Waited| processes[one.process].unreachable == unreachable;
        let longest =
            waits.iter().filter(|one| of_kind(one)).max_by_key(|one| one.ended - one.began);
        let overtaken =
            overtakers.iter().filter(|(_, one)| of_kind(one)).max_by_key(|(count, _)| *count);
        if let (Some(longest), Some((count, who))) = (longest, overtaken) {
            let (time, longest, who) =
                (longest.ended - longest.began, longest.whose(), who.whose());
            say(format!(
                "{which} wake-ups: longest wait {time:?}, {longest}; most overtakers {count}, {who}"
            ));
        }
    }
    let late = waits.iter().filter_map(|one| Some((one.ended.saturating_sub(one.due()?), one)));
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
    let (away, near) = hand_overs(history);
    for (which, mut times) in [("another process", away), ("a thread of the same process", near)] {
        times.sort();
        let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
        say(format!("{} hand-overs to {which}: p50 {:?}, p99 {:?}", times.len(), at(50), at(99)));
    }
    text
}

/// How many later callers got it before, for each wait.
fn overtakers(history: &History) -> Vec<(usize, &Waited)> {
    let mut all = Vec::new();
    for key in 0..KEYS {
        let mut waits: Vec<&Waited> = history.waits.iter().filter(|one| one.key == key).collect();
        waits.sort_by_key(|one| one.began);
        for (place, this) in waits.iter().enumerate() {
            let later = waits[place + 1..].iter().take_while(|later| later.began < this.ended);
            let first =
                later.filter_map(|later| later.hold()).filter(|hold| hold.entered < this.ended);
            all.push((first.count(), *this));
        }
    }
    all
}

/// From a holder's unlocking to the entry of the next one, where that one had waited: to other
/// processes, and within one.
fn hand_overs(history: &History) -> (Vec<Duration>, Vec<Duration>) {
    let (mut away, mut near) = (Vec::new(), Vec::new());
    for key in 0..KEYS {
        for pair in holds(history, key).windows(2) {
            let ((last, before), (next, hold)) = (pair[0], pair[1]);
            if let Some(leaving) = before.leaving.filter(|leaving| next.began < *leaving) {
                let times = if last.process == next.process { &mut near } else { &mut away };
                times.push(hold.entered.saturating_sub(leaving));
            }
        }
    }
    (away, near)
}
