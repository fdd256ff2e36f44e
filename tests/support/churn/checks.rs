//! What the histories of the churn test must show: that locks are safe, by the checker of all
//! histories, and that no lock stands idle.

use std::collections::HashMap;
use std::time::Duration;

use memlock_tests::check;

use super::history::{History, Process, Waited, left};
use super::keys::KEYS;

// Upper bounds are compared with the time that the test's stopwatch counted, so that other load on
// the machine is no violation.

/// For how long a lock may be free while it has waiters.
const BOUND: Duration = Duration::from_secs(5);
/// For how long the server may have a living process as the holder that is not inside.
const MOST_ABSENT: Duration = Duration::from_secs(1);

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
}

/// Looks for everything that may not be.
pub(crate) fn check(history: &History) -> Findings {
    let safety = check::check(&history.calls, &history.facts());
    let violations = [safety.violations, safety.hung].concat();
    let mut findings = Findings { violations, ..Findings::default() };
    let mut absent = Vec::new();
    let waits = history.waits();
    for key in 0..KEYS {
        let waits: Vec<&Waited<'_>> = waits.iter().filter(|waited| waited.key == key).collect();
        findings.free.extend(free_while_waited_for(history, key, &waits));
        absent.extend(held_by_nobody(history, key, &waits));
    }
    for (stretches, most, what) in [
        (&mut findings.free, BOUND, "free while somebody waited"),
        (&mut absent, MOST_ABSENT, "held by a living process that was not inside"),
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

/// When the lock had no holder, by the histories and by the server, and had waiters.
fn free_while_waited_for(history: &History, key: usize, waits: &[&Waited<'_>]) -> Vec<Stretch> {
    // What begins or ends: first holders, then waiters.
    let mut changes: Vec<(Duration, [i32; 2])> = Vec::new();
    let mut span = |from: Duration, to: Duration, [inside, waiting]: [i32; 2]| {
        changes.extend([(from, [inside, waiting]), (to, [-inside, -waiting])]);
    };
    for waited in waits {
        span(waited.call.began, waited.ended, [0, 1]);
        if let Some(hold) = &waited.hold
            && let Some(left) = left(hold)
        {
            span(hold.granted, left, [1, 0]);
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
fn held_by_nobody(history: &History, key: usize, waits: &[&Waited<'_>]) -> Vec<Stretch> {
    let mut inside: HashMap<usize, Vec<(Duration, Duration)>> = HashMap::new();
    for waited in waits {
        if let Some(hold) = &waited.hold {
            let span = (hold.granted, left(hold).unwrap_or(Duration::MAX));
            inside.entry(waited.call.who.process).or_default().push(span);
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
