//! The checker finds what is wrong in forged histories, and nothing in right ones.

use std::collections::HashMap;
use std::time::Duration;

use super::*;
use crate::history::{Forged, Span};
use crate::safety::MARKER;

mod semaphores;
mod waits;

const SEMAPHORES: [Semaphore; 2] =
    [Semaphore { name: "p0", permits: 2, most: 1 }, Semaphore { name: "p1", permits: 4, most: 3 }];

/// Checks these histories, each of a process.
fn verdict_of(histories: &[&str], facts: &Facts) -> Verdict {
    let processes = histories.iter().enumerate();
    let calls = processes.flat_map(|(process, history)| Forged::of(history).calls(process));
    check(&calls.collect::<Vec<_>>(), facts)
}

fn facts() -> Facts {
    Facts {
        sound: true,
        punctual: true,
        now: Duration::from_secs(100),
        bound: Duration::from_secs(4),
        semaphores: &SEMAPHORES,
        ..Facts::default()
    }
}

fn span(from: u64, to: u64) -> Span {
    Span { from: Duration::from_millis(from), to: Duration::from_millis(to) }
}

fn lossy(from: u64, to: u64) -> Facts {
    Facts { losses: vec![span(from, to)], ..facts() }
}

#[track_caller]
fn finds(verdict: &Verdict, what: &str) {
    assert!(
        verdict.violations.iter().any(|text| text.trim_start_matches(MARKER).starts_with(what)),
        "{what:?} is not in {verdict:#?}"
    );
}

#[track_caller]
fn finds_nothing(verdict: &Verdict) {
    assert!(verdict.violations.is_empty() && verdict.hung.is_empty(), "{verdict:#?}");
}

const HOLDER: &str = "
    10 call lock m0 1000 0
    11 done 0 5 @1010
    12 enter
    500 leave
    501 call unlock m0 0 0
    502 done 0 0 0 ";

#[test]
fn two_that_take_turns_are_fine() {
    let next = "
        100 call lock m0 1000 1000
        503 done 0 6 @1503
        504 enter
        505 call extend m0 1000 0
        506 done 0 0 @1505
        600 leave
        601 call unlock m0 0 0
        602 done 0 0 0 ";
    let busy = "
        200 call lock m0 1000 0
        201 done 1 0 0 
        210 call lock m0 1000 100
        311 done 2 0 0 ";
    finds_nothing(&verdict_of(&[HOLDER, next, busy], &facts()));
}

#[test]
fn overlapping_holds_are_found_unless_the_server_lost_the_first_one() {
    let other = "
        20 call lock m0 1000 0
        21 done 0 6 @1020
        22 call unlock m0 0 0
        23 done 0 0 0 ";
    finds(&verdict_of(&[HOLDER, other], &facts()), "two valid holds");
    finds(&verdict_of(&[HOLDER, other], &lossy(30, 31)), "two valid holds");
    finds(&verdict_of(&[HOLDER, other], &lossy(1, 2)), "two valid holds");
    let verdict = verdict_of(&[HOLDER, other], &lossy(15, 16));
    assert_eq!(verdict.losses.len(), 1, "{verdict:#?}");
    assert!(
        !verdict.violations.iter().any(|text| text.contains("two valid holds")),
        "{verdict:#?}"
    );
}

#[test]
fn breaches_of_safety_are_marked_and_nothing_else_is() {
    let other = "20 call lock m0 1000 0\n21 done 0 5 @1020";
    let found = verdict_of(&[HOLDER, other], &facts()).violations;
    assert!(found.len() > 2 && found.iter().all(|text| text.starts_with(MARKER)), "{found:#?}");
    let early = "10 call lock m0 1000 500\n400 done 2 0 0 ";
    let found = verdict_of(&[HOLDER, early], &facts()).violations;
    assert!(matches!(&found[..], [one] if one.starts_with("timed out before")), "{found:#?}");
}

#[test]
fn a_grant_that_is_told_after_the_server_lost_it_is_a_loss() {
    let late = "
        10 call lock m0 1000 0
        110 done 0 5 @1010
        120 call unlock m0 0 0
        121 done 6 0 0 ";
    let other = "
        100 call lock m0 1000 0
        101 done 0 6 @1100";
    let verdict = verdict_of(&[late, other], &lossy(50, 51));
    finds_nothing(&verdict);
    assert_eq!(verdict.losses.len(), 2, "{verdict:#?}");
    finds(&verdict_of(&[late, other], &lossy(105, 106)), "two valid holds");
    finds(&verdict_of(&[late, other], &facts()), "two valid holds");
}

#[test]
fn a_killed_holder_excludes_others_until_its_deadline_and_no_longer() {
    let killed = "
        10 call lock m0 1000 0
        11 done 0 5 @1010
        12 enter";
    let next = |ms: u64| format!("{ms} call lock m0 1000 0\n{} done 0 6 @{}", ms + 1, ms + 1000);
    let facts = Facts { deaths: HashMap::from([(0, Duration::from_millis(13))]), ..facts() };
    finds(&verdict_of(&[killed, &next(900)], &facts), "two valid holds");
    finds_nothing(&verdict_of(&[killed, &next(1010)], &facts));
}

#[test]
fn a_lock_that_a_stopped_server_stored_may_be_lost() {
    let other = "
        600 call lock m0 1000 0
        601 done 0 6 @1600";
    let stopped = "
        10 call lock m0 2000 0
        211 done 0 5 @2010";
    finds(&verdict_of(&[stopped, other], &facts()), "two valid holds");
    let verdict = verdict_of(&[stopped, other], &Facts { pauses: vec![span(20, 200)], ..facts() });
    finds_nothing(&verdict);
    assert_eq!(verdict.losses.len(), 1);
    finds(
        &verdict_of(&[stopped, other], &Facts { pauses: vec![span(300, 400)], ..facts() }),
        "two valid holds",
    );
}

#[test]
fn a_fence_that_falls_or_comes_twice_is_found() {
    let next = |fence: u64| format!("600 call lock m0 1000 0\n601 done 0 {fence} @1600");
    finds(&verdict_of(&[HOLDER, &next(4)], &facts()), "the fence did not rise");
    finds(&verdict_of(&[HOLDER, &next(4)], &lossy(550, 560)), "the fence did not rise");
    finds(&verdict_of(&[HOLDER, &next(5)], &facts()), "two grants have the fence 5");
    finds_nothing(&verdict_of(&[HOLDER, &next(6)], &facts()));
}

#[test]
fn a_call_that_hangs_is_found_whether_it_ends_or_not() {
    let late = "
        1000 call lock m0 1000 500
        6000 done 2 0 0 ";
    let facts = Facts { punctual: false, ..facts() };
    assert_eq!(verdict_of(&[late], &facts).hung.len(), 1);
    assert_eq!(verdict_of(&["1000 call unlock m0 0 0"], &facts).hung.len(), 1);
    let stopped = Facts { stops: vec![(0, span(2000, 4000))], ..facts.clone() };
    finds_nothing(&verdict_of(&[late], &stopped));
    let killed = Facts { deaths: HashMap::from([(0, Duration::from_secs(3))]), ..facts };
    finds_nothing(&verdict_of(&["1000 call unlock m0 0 0"], &killed));
}

#[test]
fn an_early_loss_is_found() {
    let lost = "
        10 call lock m0 1000 0
        11 done 0 5 @1010
        500 call unlock m0 0 0
        502 done 6 0 0 ";
    finds(&verdict_of(&[lost], &facts()), "lost before its deadline");
    let verdict = verdict_of(&[lost], &lossy(300, 301));
    finds_nothing(&verdict);
    assert_eq!(verdict.losses.len(), 1);
    finds(&verdict_of(&[lost], &lossy(600, 601)), "lost before its deadline");
    finds_nothing(&verdict_of(&[&lost.replace("@1010", "@502")], &facts()));
}

#[test]
fn a_release_of_what_was_anothers_is_found() {
    let late = "
        10 call lock m0 1000 0
        11 done 0 5 @1010
        2000 call unlock m0 0 0
        2001 done 0 0 0 ";
    let between = "
        1500 call lock m0 1000 0
        1501 done 0 6 @2500
        1502 call unlock m0 0 0
        1503 done 0 0 0 ";
    finds(&verdict_of(&[late, between], &facts()), "told as released, but it was another's");
    finds_nothing(&verdict_of(&[late], &facts()));
    finds(&verdict_of(&[late, between], &lossy(20, 21)), "told as released, but it was another's");
    finds_nothing(&verdict_of(&[late, between], &Facts { punctual: false, ..lossy(20, 21) }));
}

#[test]
fn a_refusal_that_nobody_can_have_caused_is_found() {
    let busy = "
        20000 call lock m0 1000 0
        20001 done 1 0 0 ";
    finds(&verdict_of(&[HOLDER, busy], &facts()), "refused, and nobody can have held it");
    finds_nothing(&verdict_of(&[HOLDER, busy], &Facts { punctual: false, ..facts() }));
    let dying = "19900 call lock m0 1000 0";
    let killed = Facts { deaths: HashMap::from([(2, Duration::from_millis(19950))]), ..facts() };
    finds_nothing(&verdict_of(&[HOLDER, busy, dying], &killed));
    // It was handed over to a waiter that stood still.
    let waiter = "19900 call lock m0 1000 500\n22000 done 2 0 0 ";
    let still = |from, to| Facts { stops: vec![(2, span(from, to))], ..facts() };
    finds_nothing(&verdict_of(&[HOLDER, busy, waiter], &still(19950, 21999)));
    finds(
        &verdict_of(&[HOLDER, busy, waiter], &still(1, 19899)),
        "refused, and nobody can have held it",
    );
    let gone = "19900 call lock m0 1000 90\n19995 done 2 0 0 ";
    finds(
        &verdict_of(&[HOLDER, busy, gone], &still(19950, 19990)),
        "refused, and nobody can have held it",
    );
    let looked = "19900 call lock m0 1000 0\n22000 done 1 0 0 ";
    finds(
        &verdict_of(&[HOLDER, busy, looked], &still(19950, 21999)),
        "refused, and nobody can have held it",
    );
}

#[test]
fn answers_that_cannot_be_are_found() {
    let busy = "10 call lock m0 1000 500\n600 done 1 0 0 ";
    finds(&verdict_of(&[busy], &facts()), "an answer that this call cannot have");
    let early = "10 call lock m0 1000 500\n400 done 2 0 0 ";
    finds(&verdict_of(&[early], &facts()), "timed out before its time");
    let failed = "10 call unlock m0 0 0\n11 done -3 0 0 no answer";
    finds(&verdict_of(&[failed], &facts()), "a failure, and nothing was wrong");
    let not_held = HOLDER.replace("502 done 0", "502 done 5");
    finds(&verdict_of(&[&not_held], &facts()), "an answer that this call cannot have");
}

const FIRST: &str = "
    10 call setup s1 0 0
    11 done 0 0 0 
    12 call insert s1 7 0
    13 done 0 1 0 ";

fn second(answer: &str) -> String {
    format!("20 call setup s1 0 0\n21 done 4 0 0 \n22 call insert s1 7 0\n23 done {answer} ")
}

#[test]
fn a_key_has_one_first_and_one_id() {
    finds_nothing(&verdict_of(&[FIRST, &second("3 1 0")], &facts()));
    finds(&verdict_of(&[FIRST, &second("0 1 0")], &facts()), "2 were told to be first");
    finds(&verdict_of(&[FIRST, &second("3 2 0")], &facts()), "a key has two ids");
    let other_key = "20 call insert s1 8 0\n21 done 0 1 0 ";
    finds(&verdict_of(&[FIRST, other_key], &facts()), "two keys have one id");
}

#[test]
fn a_key_whose_first_one_was_told_nothing_is_found_unless_somebody_is_in_doubt() {
    let unsure = FIRST.replace("13 done 0 1 0 ", "13 done -3 0 0 ");
    let facts = Facts { sound: false, ..facts() };
    finds_nothing(&verdict_of(&[&unsure, &second("3 1 0")], &facts));
    let refused = FIRST.replace("13 done 0 1 0 ", "13 done -2 0 0 ");
    finds(
        &verdict_of(&[&refused, &second("3 1 0")], &facts),
        "a key, and nobody was told to be first",
    );
}

#[test]
fn after_a_loss_a_session_is_another_one() {
    let again = second("0 1 0").replace("done 4", "done 0");
    finds_nothing(&verdict_of(&[FIRST, &again], &lossy(14, 15)));
    finds(&verdict_of(&[FIRST, &again], &facts()), "a session was set up twice");
}

#[test]
fn a_session_that_goes_by_itself_is_found() {
    let gone = FIRST.replace("13 done 0 1 0 ", "13 done 7 0 0 ");
    finds(&verdict_of(&[&gone], &facts()), "the session was gone");
    finds_nothing(&verdict_of(&[&gone], &lossy(11, 12)));
}

#[test]
fn a_session_that_nobody_set_up_is_found() {
    finds(&verdict_of(&[&second("0 1 0")], &facts()), "a session was there that nobody had set up");
}
