//! Forged histories: the checks find what is wrong in them, and nothing in right ones.

use std::thread;
use std::time::Duration;

use memlock_tests::safety::MARKER;
use memlock_tests::stopwatch::Marks;

use super::history::{self, History, Holder, Process, Sight};
use super::keys::{KEYS, name};
use super::{checks, summary};

/// Two processes contend for the first key from the second second on, and the history is read until
/// the twentieth.
const FROM: u64 = 2;
const END: Duration = Duration::from_secs(20);

/// A process that holds the first key for 5 ms.
const HOLDER: &str = "
    2000 call lock churn0 1000 -
    2001 done 0 5 @3000
    2002 enter
    2005 leave
    2006 call unlock churn0 0 0
    2007 done 0 0 0 ";

fn at(second: u64) -> Duration {
    Duration::from_secs(second)
}

fn process(began: u64, killed: Option<(u64, u64)>) -> Process {
    let killed = killed.map(|(before, gone)| (at(before), at(gone)));
    Process { pid: 7, began: at(began), unreachable: false, killed }
}

/// What these processes wrote; a line is `<ms> <rest>`, where the rest may name moments as `@ms`.
fn forged(processes: Vec<Process>, histories: &[&str], end: Duration) -> History {
    let folder =
        format!("memlock-churn-forged-{}-{:?}", std::process::id(), thread::current().id());
    let folder = std::env::temp_dir().join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    let mut calls = Vec::new();
    for (number, text) in histories.iter().enumerate() {
        let lines = text.lines().map(str::trim_start).filter(|line| !line.is_empty());
        let lines = lines.map(|line| {
            let (ms, rest) = line.split_once(' ').unwrap();
            let words = rest.split(' ').map(|word| match word.strip_prefix('@') {
                Some(ms) => format!("{ms}000000"),
                None => word.to_owned(),
            });
            format!("{ms}000000 0 {}\n", words.collect::<Vec<_>>().join(" "))
        });
        let file = folder.join(number.to_string());
        std::fs::write(&file, lines.collect::<String>()).unwrap();
        calls.extend(history::read(file, number, &processes[number]));
    }
    std::fs::remove_dir_all(&folder).unwrap();
    let sights = [const { Vec::new() }; KEYS];
    History { processes, calls, sights, marks: Marks::default(), end }
}

/// The violations in the histories of processes that were not killed.
fn violations(histories: &[&str]) -> Vec<String> {
    let processes = histories.iter().map(|_| process(FROM, None)).collect();
    checks::check(&forged(processes, histories, END)).violations
}

#[track_caller]
fn finds(histories: &[&str], what: &str) {
    let violations = violations(histories);
    let found = violations.iter().any(|text| text.trim_start_matches(MARKER).starts_with(what));
    assert!(found, "{what}: {violations:#?}");
}

#[track_caller]
fn finds_nothing(histories: &[&str]) {
    let violations = violations(histories);
    assert!(violations.is_empty(), "{violations:#?}");
}

/// A sighting in the middle of each second.
fn sights(seconds: std::ops::Range<u64>, token: Option<&str>) -> Vec<Sight> {
    let sight = |second| Sight {
        before: at(second) + Duration::from_millis(500),
        after: at(second) + Duration::from_millis(500),
        holder: token.map(|token| Holder { pid: 7, token: token.to_owned() }),
    };
    seconds.map(sight).collect()
}

#[test]
fn holders_that_take_turns_and_waits_that_end_in_time_are_fine() {
    let next = "
        2001 call lock churn0 1000 -
        2008 done 0 6 @3001
        2009 enter
        2010 leave
        2011 call unlock churn0 0 0
        2012 done 0 0 0 \n2020 call lock churn0 1000 10
        2030 done 2 0 0 \n2040 call lock churn0 1000 -
        2041 cancel @2040
        2042 done 8 0 0 ";
    finds_nothing(&[HOLDER, next]);
}

#[test]
fn what_is_not_safe_is_found_by_the_checker_of_all_histories() {
    let next = |ms: u64, fence: u64| {
        format!(
            "1999 call lock churn0 1000 -\n{ms} done 0 {fence} @2999\n2020 call unlock churn0 0 0\n2021 done 0 0 0 "
        )
    };
    finds_nothing(&[HOLDER, &next(2006, 6)]);
    finds(&[HOLDER, &next(2005, 6)], "two valid holds");
    finds(&[HOLDER, &next(2006, 4)], "the fence did not rise");
    finds(&[HOLDER, &next(2006, 5)], "two grants have the fence 5");
    finds(&[&HOLDER.replace("2007 done 0", "2007 done 6")], "lost before its deadline");
    finds(&[&HOLDER.replace("2007 done 0", "2007 done 5")], "an answer that this call cannot have");
    let failed = HOLDER.replace("2007 done 0 0 0 ", "2007 done -3 0 0 No answer came.");
    finds(&[&failed], "a failure, and nothing was wrong");
    finds_nothing(&[&HOLDER.replace("@3000", "@2007").replace("2007 done 0", "2007 done 6")]);
}

#[test]
fn waits_that_end_wrongly_are_found_by_the_checker_of_all_histories() {
    let wait = |limit: &str, ms: u64, answer: &str| {
        format!("2000 call lock churn0 1000 {limit}\n{ms} done {answer}")
    };
    let found = |history: String, what: &str| finds(&[&history], what);
    found(wait("100", 2099, "2 0 0 "), "timed out before its time");
    found(wait("-", 9000, "2 0 0 "), "timed out before its time");
    found(wait("-", 2010, "8 0 0 "), "interrupted, and nobody had cancelled it");
    found(wait("-", 2010, "1 0 0 "), "an answer that this call cannot have");
    found(wait("-", 2010, "-2 0 0 Gone."), "a failure, and nothing was wrong");
    found(wait("100", 4101, "2 0 0 "), "hung");
    let slow = "-2 0 0 The server took longer to answer than the lease lasts; nothing is held.";
    found(wait("-", 2049, slow), "refused as too slow, and the grant was not slow");
    finds_nothing(&[&wait("-", 2050, slow)]);
    finds_nothing(&[&wait("100", 4100, "2 0 0 ")]);
    let cancelled = "2000 call lock churn0 1000 -\n2100 cancel @2000\n4101 done 8 0 0 ";
    finds(&[cancelled], "hung");
    finds(&["2000 call lock churn0 1000 -\n2100 cancel @2000"], "hung");
}

#[test]
fn a_lock_that_is_free_while_somebody_waits_is_found() {
    let waits = |ms: u64| format!("2000 call lock churn0 1000 -\n{ms} done 0 6 @{}", ms + 1000);
    finds(&[HOLDER, &waits(7008)], "free while somebody waited");
    finds_nothing(&[HOLDER, &waits(7007)]);
    // By the server another process had it meanwhile.
    let processes = vec![process(FROM, None), process(FROM, Some((3, 3)))];
    let mut history = forged(processes, &[&waits(9000)], END);
    assert_eq!(checks::check(&history).violations.len(), 1);
    history.sights[0] = sights(2..6, Some("t"));
    let findings = checks::check(&history);
    assert!(findings.violations.is_empty(), "{:?}", findings.violations);
    assert_eq!(findings.free[0].length, at(9) - history.sights[0][3].after);
}

#[test]
fn a_holder_on_the_server_that_is_not_inside_is_found() {
    let mut history = forged(vec![process(FROM, None)], &[HOLDER], END);
    history.sights[0] = sights(2..5, Some("t"));
    let findings = checks::check(&history);
    let [violation] = &findings.violations[..] else { panic!("{:?}", findings.violations) };
    assert!(violation.starts_with("held by a living process that was not inside"), "{violation}");
    history.processes[0].killed = Some((at(3), at(3)));
    assert!(checks::check(&history).violations.is_empty());
}

#[test]
fn a_wait_that_begins_between_the_kill_and_its_effect_takes_no_time() {
    let processes = vec![process(5, Some((5, 9)))];
    let history = forged(processes, &["6000 call lock churn0 1000 -"], at(9));
    let waits = history.waits();
    assert_eq!((waits[0].call.began, waits[0].ended), (at(6), at(6)));
    let findings = checks::check(&history);
    assert!(findings.violations.is_empty() && findings.free.is_empty());
    assert!(summary::of(&history, &findings).contains("longest wait 0ns"));
}

#[test]
fn a_killed_holder_is_not_taken_for_a_later_process_with_the_same_pid() {
    let mut history = forged(vec![process(1, Some((2, 2))), process(9, None)], &[], at(10));
    history.sights[0] = sights(2..6, Some("t"));
    let findings = checks::check(&history);
    assert!(findings.violations.is_empty(), "{:?}", findings.violations);
}

#[test]
#[should_panic(expected = "ends within a line")]
fn a_history_that_ends_within_a_line_is_that_of_a_killed_process() {
    let file = std::env::temp_dir().join(format!("memlock-churn-cut-off-{}", std::process::id()));
    std::fs::write(&file, "2000000000 0 call lo").unwrap();
    assert!(history::read(file.clone(), 0, &process(FROM, Some((3, 3)))).is_empty());
    let read = std::panic::catch_unwind(|| history::read(file.clone(), 0, &process(FROM, None)));
    std::fs::remove_file(&file).unwrap();
    if let Err(panic) = read {
        std::panic::resume_unwind(panic);
    }
}

#[test]
#[should_panic(expected = "a process unlocked what it had not locked")]
fn a_release_of_nothing_is_found() {
    violations(&["2000 call unlock churn0 0 0\n2001 done 0 0 0 "]);
}

#[test]
fn keys_are_told_apart() {
    let other = HOLDER.replace(&name(0), &name(1));
    finds_nothing(&[HOLDER, &other]);
}
