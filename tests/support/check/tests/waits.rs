//! Forged histories of waits: without a limit, cancelled, refused, and granted out of order.

use super::*;
use crate::stopwatch::Marks;

/// A wait without a limit that is cancelled at 500, and ends at that moment with that answer.
fn cancelled(at: u64, answer: &str) -> String {
    format!("10 call lock m0 1000 -\n500 cancel @10\n{at} done {answer}")
}

#[test]
fn a_wait_without_a_limit_may_last() {
    let held = "1 call lock m0 60000 0\n2 done 0 5 @60001 ";
    let waits = "10 call lock m0 1000 -";
    finds_nothing(&verdict_of(&[held, waits], &facts()));
    let granted = "10 call lock m0 1000 -\n60050 done 0 6 @61040 ";
    finds_nothing(&verdict_of(&[held, granted], &facts()));
    let permits = "10 call acquire p0 1000 - 1 0\n60050 done 0 1 @61040 ";
    finds_nothing(&verdict_of(&[permits], &facts()));
    let busy = "10 call lock m0 1000 -\n11 done 1 0 0 ";
    finds(&verdict_of(&[held, busy], &facts()), "an answer that this call cannot have");
}

#[test]
fn a_wait_that_ends_when_it_is_cancelled_is_fine() {
    finds_nothing(&verdict_of(&[&cancelled(500, "8 0 0 ")], &facts()));
    finds_nothing(&verdict_of(&[&cancelled(4500, "8 0 0 ")], &facts()));
    // It may be granted all the same.
    finds_nothing(&verdict_of(&[&cancelled(501, "0 5 @1010")], &facts()));
    let limited = cancelled(501, "8 0 0 ").replace("1000 -", "1000 600");
    finds_nothing(&verdict_of(&[&limited], &facts()));
    let permits = cancelled(501, "8 0 0 ").replace("lock m0 1000 -", "acquire p0 1000 - 1 0");
    finds_nothing(&verdict_of(&[&permits], &facts()));
}

#[test]
fn a_wait_that_outlasts_its_cancellation_is_found_whether_it_ends_or_not() {
    for late in [&cancelled(4501, "8 0 0 "), &cancelled(4501, "0 5 @5500")] {
        assert_eq!(verdict_of(&[late], &facts()).hung.len(), 1);
    }
    assert_eq!(verdict_of(&["10 call lock m0 1000 -\n500 cancel @10"], &facts()).hung.len(), 1);
    // The limit is earlier.
    let limited = "10 call lock m0 1000 100\n3000 cancel @10\n4200 done 8 0 0 ";
    assert_eq!(verdict_of(&[limited], &facts()).hung.len(), 1);
    let killed = Facts { deaths: HashMap::from([(0, Duration::from_secs(3))]), ..facts() };
    finds_nothing(&verdict_of(&["10 call lock m0 1000 -\n500 cancel @10"], &killed));
    // The wait before it was cancelled.
    let next = format!("{}\n600 call lock m0 1000 -\n601 cancel @10", cancelled(500, "8 0 0 "));
    finds_nothing(&verdict_of(&[&next], &facts()));
}

#[test]
fn the_bound_is_that_of_the_test_and_is_counted_by_its_stopwatch() {
    let late = &cancelled(2501, "8 0 0 ");
    let strict = Facts { bound: Duration::from_secs(2), ..facts() };
    let verdict = verdict_of(&[late], &strict);
    assert_eq!(verdict.hung.len(), 1, "{verdict:#?}");
    assert_eq!(verdict.latest, Duration::from_millis(2001));
    finds_nothing(&verdict_of(&[late], &Facts { bound: verdict.latest, ..facts() }));
    // The machine did not run the test for most of that time.
    let marks = Marks::of_ticks([1, 500, 2495, 2500, 2505].map(Duration::from_millis));
    let busy = Facts { marks, ..strict };
    let verdict = verdict_of(&[late], &busy);
    finds_nothing(&verdict);
    assert!(verdict.latest <= Duration::from_millis(20), "{verdict:#?}");
}

#[test]
fn an_interruption_without_a_cancellation_is_found() {
    let what = "interrupted, and nobody had cancelled it";
    let limited = "10 call lock m0 1000 500\n20 done 8 0 0 ";
    finds(&verdict_of(&[limited], &facts()), what);
    finds(&verdict_of(&["10 call lock m0 1000 -\n20 done 8 0 0 "], &facts()), what);
    finds(&verdict_of(&["10 call acquire p0 1000 - 1 0\n20 done 8 0 0 "], &facts()), what);
    // Before it was cancelled, though the line of the cancellation was written earlier.
    finds(&verdict_of(&[&cancelled(499, "8 0 0 ")], &facts()), what);
    // After the wait had ended.
    let stale = "10 call lock m0 1000 -\n20 done 8 0 0 \n21 cancel @10";
    finds(&verdict_of(&[stale], &facts()), what);
    // The wait before it was cancelled.
    let next = format!(
        "{}\n600 call lock m0 1000 -\n601 cancel @10\n602 done 8 0 0 ",
        cancelled(500, "8 0 0 ")
    );
    finds(&verdict_of(&[&next], &facts()), what);
    finds(&verdict_of(&[limited], &Facts { sound: false, ..facts() }), what);
}

#[test]
fn an_interruption_of_what_cannot_be_cancelled_is_found() {
    let what = "an answer that this call cannot have";
    let unlock = "10 call unlock m0 0 0\n11 cancel @10\n12 done 8 0 0 ";
    finds(&verdict_of(&[unlock], &facts()), what);
    // A wait that is cancelled answers so, and does not fail.
    finds(&verdict_of(&[&cancelled(501, "8 0 0 It was cancelled.")], &facts()), what);
}

#[test]
fn a_wait_that_times_out_too_early_is_found() {
    let what = "timed out before its time";
    finds(&verdict_of(&["10 call lock m0 1000 500\n509 done 2 0 0 "], &facts()), what);
    finds(&verdict_of(&["10 call lock m0 1000 -\n9000 done 2 0 0 "], &facts()), what);
    finds(&verdict_of(&["10 call acquire p0 1000 - 1 0\n9000 done 2 0 0 "], &facts()), what);
    finds(&verdict_of(&[&cancelled(501, "2 0 0 ")], &facts()), what);
    let unpunctual = Facts { punctual: false, ..facts() };
    finds_nothing(&verdict_of(&["10 call lock m0 1000 500\n510 done 2 0 0 "], &unpunctual));
}

#[test]
fn a_grant_that_is_refused_as_too_slow_was_slow() {
    let refused = |ms: u64| {
        let said = "The server took longer to answer than the lease lasts; nothing is held.";
        format!("10 call lock m0 1000 500\n{ms} done -2 0 0 {said}")
    };
    let busy = Facts { slow_grants: true, ..facts() };
    let unsound = Facts { sound: false, ..facts() };
    for facts in [&busy, &unsound, &facts()] {
        let verdict = verdict_of(&[&refused(59)], facts);
        finds(&verdict, "refused as too slow, and the grant was not slow");
    }
    finds_nothing(&verdict_of(&[&refused(60)], &busy));
    finds_nothing(&verdict_of(&[&refused(60)], &unsound));
    finds(&verdict_of(&[&refused(60)], &facts()), "a failure, and nothing was wrong");
    // Any other failure is one.
    let failed = "10 call lock m0 1000 500\n400 done -2 0 0 The server is gone.";
    finds(&verdict_of(&[failed], &busy), "a failure, and nothing was wrong");
    let unlock = refused(60).replace("lock m0 1000 500", "unlock m0 0 0");
    finds(&verdict_of(&[&unlock], &busy), "a failure, and nothing was wrong");
}

#[test]
fn a_fence_that_falls_while_the_next_one_waits_is_found() {
    let waits = |fence: u64| format!("400 call lock m0 1000 -\n503 done 0 {fence} @1503");
    finds_nothing(&verdict_of(&[HOLDER, &waits(6)], &facts()));
    finds(&verdict_of(&[HOLDER, &waits(4)], &facts()), "the fence did not rise");
    finds(&verdict_of(&[HOLDER, &waits(5)], &facts()), "two grants have the fence 5");
    let early = |fence: u64| format!("5 call lock m0 1000 -\n503 done 0 {fence} @1503");
    finds_nothing(&verdict_of(&[HOLDER, &early(6)], &facts()));
    finds(&verdict_of(&[HOLDER, &early(4)], &facts()), "the fence did not rise");
    // It was granted first, and the server lost it before the other one was granted.
    let verdict = verdict_of(&[HOLDER, &early(4)], &lossy(8, 9));
    finds_nothing(&verdict);
    assert_eq!(verdict.losses.len(), 1, "{verdict:#?}");
    finds(&verdict_of(&[HOLDER, &early(4)], &lossy(30, 31)), "the fence did not rise");
    // It learnt of its grant after its lease, and was never inside.
    let overslept = "5 call lock m0 400 -\n503 done 0 4 @405";
    finds_nothing(&verdict_of(&[HOLDER, overslept], &facts()));
}

#[test]
fn a_fence_is_compared_with_the_greatest_before_it() {
    let first = "3 call lock m0 1000 -\n11 done 0 7 @1010\n20 call unlock m0 0 0\n21 done 0 0 0 ";
    let second = "2 call lock m0 1000 -\n30 done 0 8 @1030\n40 call unlock m0 0 0\n41 done 0 0 0 ";
    let third = |fence: u64| format!("1 call lock m0 1000 -\n50 done 0 {fence} @1001");
    finds_nothing(&verdict_of(&[first, second, &third(9)], &facts()));
    finds(&verdict_of(&[first, second, &third(6)], &facts()), "the fence did not rise");
    let verdict = verdict_of(&[second, first, &third(7)], &facts());
    finds(&verdict, "the fence did not rise");
    finds(&verdict, "two grants have the fence 7");
}

#[test]
fn a_critical_section_without_a_lease_is_found() {
    let late = "10 call lock m0 1000 0\n1200 done 0 5 @1010\n1201 enter\n1202 leave";
    finds(&verdict_of(&[late], &facts()), "entered without a lease");
    let in_time = late.replace("1200 done", "1009 done").replace("1201 enter", "1010 enter");
    finds_nothing(&verdict_of(&[&in_time], &facts()));
}

#[test]
fn locks_of_different_names_and_threads_are_apart() {
    let other = HOLDER.replace("m0", "m1");
    finds_nothing(&verdict_of(&[HOLDER, &other], &facts()));
    finds(&verdict_of(&[HOLDER, HOLDER], &facts()), "two valid holds");
}
