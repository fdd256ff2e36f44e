//! Forged histories: the checks find what is wrong in them, and nothing in right ones.

use std::time::Duration;

use memlock_tests::history::Forged;
use memlock_tests::safety::MARKER;
use memlock_tests::stopwatch::Marks;

use super::checks;
use super::history::{self, History, Holder, Process, Sight};
use super::keys::{KEYS, name};

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
    Process { pid: 7, began: at(began), killed }
}

/// What these processes wrote: see [`Forged`].
fn forged(processes: Vec<Process>, histories: &[&str], end: Duration) -> History {
    let numbered = histories.iter().zip(&processes).enumerate();
    let calls = numbered.flat_map(|(number, (text, process))| {
        history::read(Forged::of(text).0.clone(), number, process)
    });
    let (calls, sights) = (calls.collect(), [const { Vec::new() }; KEYS]);
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
fn what_the_checker_of_all_histories_finds_is_found() {
    let next = |ms: u64| {
        format!(
            "1999 call lock churn0 1000 -\n{ms} done 0 6 @2999\n2020 call unlock churn0 0 0\n2021 done 0 0 0 "
        )
    };
    finds(&[HOLDER, &next(2005)], "two valid holds");
    finds_nothing(&[HOLDER, &next(2006)]);
    // The server has no faults, the machine may be slow, and a wait ends within two seconds.
    let wait =
        |ms: u64, answer: &str| format!("2000 call lock churn0 1000 100\n{ms} done {answer}");
    finds(&[&wait(2010, "-2 0 0 Gone.")], "a failure, and nothing was wrong");
    let slow = "-2 0 0 The server took longer to answer than the lease lasts; nothing is held.";
    finds_nothing(&[&wait(2050, slow)]);
    finds(&[&wait(4101, "2 0 0 ")], "hung");
    finds_nothing(&[&wait(4100, "2 0 0 ")]);
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
    let file = Forged::of("");
    std::fs::write(&file.0, "2000000000 0 call lo").unwrap();
    assert!(history::read(file.0.clone(), 0, &process(FROM, Some((3, 3)))).is_empty());
    let _ = history::read(file.0.clone(), 0, &process(FROM, None));
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
