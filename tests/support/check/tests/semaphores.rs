//! Forged histories of semaphores.

use super::*;

/// A client that holds one of the two permits of p0 from 11 to 500.
const PERMITTED: &str = "
    10 call acquire p0 1000 0 1 0
    11 done 0 1 @1010
    500 call release p0 0 0
    501 done 0 0 0 ";

/// A client that acquires and releases within `PERMITTED`.
fn permitted(name: &str, from: u64, to: u64, permits: u32) -> String {
    format!(
        "{from} call acquire {name} 1000 0 {permits} 0\n{} done 0 {permits} @{}\n{to} call release {name} 0 0\n{} done 0 0 0 ",
        from + 1,
        from + 1000,
        to + 1
    )
}

#[test]
fn as_many_permits_as_there_are_may_be_out() {
    let (other, next) = (permitted("p0", 20, 30, 1), permitted("p0", 502, 510, 1));
    let busy = "25 call acquire p0 1000 0 1 0\n26 done 1 0 0 \n27 call acquire p0 1000 100 1 1\n128 done 2 0 0 ";
    let another = permitted("p1", 20, 400, 4);
    let facts = Facts { punctual: false, ..facts() };
    finds_nothing(&verdict_of(&[PERMITTED, &other, &next, busy, &another], &facts));
}

#[test]
fn more_permits_out_than_there_are_are_found_unless_the_server_lost_the_first_ones() {
    let (second, third) = (permitted("p0", 20, 400, 1), permitted("p0", 100, 200, 1));
    let all = [PERMITTED, &second, &third];
    finds(&verdict_of(&all, &facts()), "3 permits out, and there are 2");
    finds(&verdict_of(&all, &lossy(120, 130)), "3 permits out, and there are 2");
    finds(&verdict_of(&all, &lossy(1, 2)), "3 permits out, and there are 2");
    let verdict = verdict_of(&all, &lossy(50, 60));
    finds_nothing(&verdict);
    assert_eq!(verdict.losses.len(), 1, "{verdict:#?}");
    // Three of one life of the server are too many, whatever was lost before.
    let fourth = permitted("p0", 110, 200, 1);
    let fifth = permitted("p0", 120, 200, 1);
    finds(
        &verdict_of(&[PERMITTED, &third, &fourth, &fifth], &lossy(50, 60)),
        "3 permits out, and there are 2",
    );
}

#[test]
fn several_permits_count_as_many() {
    let [two, three] = [2, 3].map(|permits| permitted("p1", 20 + u64::from(permits), 400, permits));
    finds(&verdict_of(&[&two, &three], &facts()), "5 permits out, and there are 4");
    finds_nothing(&verdict_of(&[&two, &permitted("p1", 30, 400, 2)], &facts()));
    finds_nothing(&verdict_of(&[&two, &permitted("p1", 403, 450, 4)], &facts()));
}

#[test]
fn permits_of_the_killed_count_until_their_deadline_and_no_longer() {
    let killed = "10 call acquire p1 1000 0 4 0\n11 done 0 4 @1010";
    let facts = Facts { deaths: HashMap::from([(0, Duration::from_millis(13))]), ..facts() };
    finds(
        &verdict_of(&[killed, &permitted("p1", 900, 950, 1)], &facts),
        "5 permits out, and there are 4",
    );
    finds_nothing(&verdict_of(&[killed, &permitted("p1", 1010, 1020, 1)], &facts));
}

#[test]
fn permits_that_are_extended_count_until_their_new_deadline() {
    let extended = |answer: &str| {
        format!(
            "10 call acquire p1 1000 0 4 0\n11 done 0 4 @1010\n900 call prolong p1 1000 0\n901 done {answer}"
        )
    };
    let other = permitted("p1", 1100, 1200, 1);
    finds(
        &verdict_of(&[&extended("0 0 @1900"), &other], &facts()),
        "5 permits out, and there are 4",
    );
    let facts = Facts { sound: false, ..lossy(850, 860) };
    finds_nothing(&verdict_of(&[&extended("-2 0 @1010 no answer"), &other], &facts));
    finds_nothing(&verdict_of(&[&extended("6 0 0 "), &permitted("p1", 950, 960, 1)], &facts));
}

#[test]
fn permits_that_a_stopped_server_gave_may_be_lost() {
    let stopped = "10 call acquire p1 2000 0 4 0\n211 done 0 4 @2010";
    let other = permitted("p1", 600, 700, 1);
    finds(&verdict_of(&[stopped, &other], &facts()), "5 permits out, and there are 4");
    let verdict = verdict_of(&[stopped, &other], &Facts { pauses: vec![span(20, 200)], ..facts() });
    finds_nothing(&verdict);
    assert_eq!(verdict.losses.len(), 1);
}

#[test]
fn permits_that_are_lost_early_are_found() {
    let lost = PERMITTED.replace("501 done 0", "501 done 6");
    finds(&verdict_of(&[&lost], &facts()), "permits lost before their deadline");
    finds_nothing(&verdict_of(&[&lost], &lossy(300, 301)));
    finds(&verdict_of(&[&lost], &lossy(600, 601)), "permits lost before their deadline");
    let prolonged = PERMITTED.replace(
        "500 call release",
        "400 call prolong p0 1000 0\n401 done 6 0 0 \n500 call release",
    );
    finds(&verdict_of(&[&prolonged], &facts()), "permits lost before their deadline");
}

#[test]
fn permits_that_are_released_twice_are_found() {
    let again =
        |answer: i32| format!("{PERMITTED}\n502 call release p0 0 0\n503 done {answer} 0 0 ");
    finds_nothing(&verdict_of(&[&again(5)], &facts()));
    finds(&verdict_of(&[&again(0)], &facts()), "released twice, or not at all");
    finds(
        &verdict_of(&[&PERMITTED.replace("501 done 0", "501 done 5")], &facts()),
        "released twice, or not at all",
    );
    let unsure = PERMITTED
        .replace("501 done 0 0 0 ", "501 done -3 0 0 \n502 call release p0 0 0\n503 done 0 0 0 ");
    finds_nothing(&verdict_of(&[&unsure], &Facts { sound: false, ..facts() }));
}

#[test]
fn permits_that_are_leaked_are_found_by_those_who_are_refused() {
    let busy = |ms: u64, name: &str, permits: u32| {
        format!("{ms} call acquire {name} 1000 0 {permits} 0\n{} done 1 0 0 ", ms + 1)
    };
    finds(
        &verdict_of(&[PERMITTED, &busy(100, "p0", 1)], &facts()),
        "refused, and there must have been permits",
    );
    let second = permitted("p0", 20, 400, 1);
    finds_nothing(&verdict_of(&[PERMITTED, &second, &busy(100, "p0", 1)], &facts()));
    finds(
        &verdict_of(&[PERMITTED, &second, &busy(450, "p0", 1)], &facts()),
        "refused, and there must have been permits",
    );
    finds_nothing(&verdict_of(
        &[PERMITTED, &busy(100, "p0", 1)],
        &Facts { punctual: false, ..facts() },
    ));
    finds_nothing(&verdict_of(&[&permitted("p1", 20, 400, 3), &busy(100, "p1", 2)], &facts()));
    finds(
        &verdict_of(&[&permitted("p1", 20, 400, 3), &busy(100, "p1", 1)], &facts()),
        "refused, and there must",
    );
    // A waiter for several may have been reserving, for a while after it went too.
    let gathers = "50 call acquire p1 1000 100 2 0\n151 done 2 0 0 ";
    let one = permitted("p1", 20, 400, 3);
    finds_nothing(&verdict_of(&[&one, gathers, &busy(300, "p1", 1)], &facts()));
    finds(
        &verdict_of(&[&one, gathers, &busy(9000, "p1", 1)], &facts()),
        "refused, and there must have been permits",
    );
    // One was handed over to a waiter that stood still.
    let waiter = "50 call acquire p0 1000 100 1 0\n400 done 2 0 0 ";
    let still = |from, to| Facts { stops: vec![(1, span(from, to))], ..facts() };
    finds_nothing(&verdict_of(&[PERMITTED, waiter, &busy(300, "p0", 1)], &still(60, 390)));
    finds(
        &verdict_of(&[PERMITTED, waiter, &busy(300, "p0", 1)], &still(1, 40)),
        "refused, and there must have been permits",
    );
    // The killed keep theirs for their lease, and for as long as the server's clock may be behind.
    let killed = "10 call acquire p0 1000 0 1 0\n11 done 0 1 @1010\n12 call acquire p0 1000 0 1 0\n13 done 0 1 @1012";
    let dead = Facts { deaths: HashMap::from([(0, Duration::from_millis(14))]), ..facts() };
    finds_nothing(&verdict_of(&[killed, &busy(5000, "p0", 1)], &dead));
    finds(
        &verdict_of(&[killed, &busy(5100, "p0", 1)], &dead),
        "refused, and there must have been permits",
    );
}

#[test]
fn answers_that_a_semaphore_cannot_give_are_found() {
    let other = PERMITTED.replace("11 done 0 1", "11 done 0 2");
    finds(&verdict_of(&[&other], &facts()), "granted is not what was asked for");
    let busy = "10 call acquire p0 1000 500 1 0\n600 done 1 0 0 ";
    finds(&verdict_of(&[busy], &facts()), "an answer that this call cannot have");
    let early = "10 call acquire p0 1000 500 1 0\n400 done 2 0 0 ";
    finds(&verdict_of(&[early], &facts()), "timed out before its time");
    let late = "1000 call acquire p0 1000 500 1 0\n6000 done 2 0 0 ";
    assert_eq!(verdict_of(&[late], &Facts { punctual: false, ..facts() }).hung.len(), 1);
    let failed = "10 call prolong p0 1000 0\n11 done -3 0 0 no answer";
    finds(&verdict_of(&[failed], &facts()), "a failure, and nothing was wrong");
}

#[test]
fn a_semaphore_of_which_the_checker_knows_nothing_is_found() {
    finds(&verdict_of(&[&permitted("p9", 20, 30, 1)], &facts()), "a semaphore of unknown size");
}

#[test]
fn waiters_that_come_out_of_turn_are_found() {
    // Each waits from 10 on, and gets the permit that long after it; all want one, and one after
    // the other has it.
    let waiters = |priorities: [i64; 8]| {
        let line = |(place, priority): (usize, i64)| {
            let at = 100 + 10 * place as u64;
            format!(
                "10 call acquire p0 1000 1000 1 {priority}\n{at} done 0 1 @{}\n{} call release p0 0 0\n{} done 0 0 0 ",
                at + 1000,
                at + 1,
                at + 2
            )
        };
        let histories: Vec<String> = priorities.into_iter().enumerate().map(line).collect();
        verdict_of(
            &histories.iter().map(String::as_str).collect::<Vec<_>>(),
            &Facts { punctual: false, ..facts() },
        )
    };
    let fine = waiters([1, 1, 1, 0, 0, -1, -1, -1]);
    finds_nothing(&fine);
    assert_eq!(fine.turns, Turns { in_order: 21, overtaken: 0 });
    finds_nothing(&waiters([1, 1, 0, 1, 0, -1, -1, -1]));
    finds(&waiters([-1, 1, 0, 1, 0, 1, -1, -1]), "priorities are not respected");
    finds(&waiters([-1, -1, -1, 0, 0, 1, 1, 1]), "priorities are not respected");
}
