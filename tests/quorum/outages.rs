//! Too few members answer, or one of them is silent.

use std::thread;
use std::time::Duration;

use memlock_core::{Client, ErrorKind, Extension, Lock, Release};
use memlock_tests::launch::poll_until;
use memlock_tests::proxy::{Fault, Match};
use memlock_tests::stopwatch::Stopwatch;

use crate::{Bench, GUARD, PATIENCE, SECOND, SILENCE, Trouble, hold, hold_on_all};

/// Three attempts, in each of which three members take a connection and a reply.
const BOUND: Duration = Duration::from_secs(10);

#[track_caller]
fn names_all(bench: &Bench, error: &memlock_core::Error) {
    let text = error.to_string();
    assert!(bench.addresses().iter().all(|address| text.contains(address)), "{text}");
}

#[test]
fn a_majority_that_is_away_is_an_error_that_names_the_members_and_comes_in_time() {
    for (number, many) in [(3, 2), (3, 3), (5, 3)] {
        thread::scope(|scope| {
            for trouble in [Trouble::Killed, Trouble::Hung, Trouble::CutOff, Trouble::Refused] {
                scope.spawn(move || {
                    let bench = Bench::of(number);
                    let client = bench.client();
                    let mutex = client.mutex("m", GUARD).unwrap();
                    drop(hold(&client, "m"));
                    bench.begin(trouble, 0, many);
                    for _ in 0..3 {
                        let watch = Stopwatch::start();
                        let error = mutex.try_lock().unwrap_err();
                        let took = watch.elapsed();
                        assert!(error.is_outage(), "{trouble:?}: {error:?}");
                        names_all(&bench, &error);
                        assert!(took < BOUND, "{trouble:?}: {took:?}");
                        // What was granted was withdrawn.
                        let votes = || {
                            let none = |member: &crate::Member| member.get("lock:m").is_none();
                            bench.some(many, number - many).all(none).then_some(())
                        };
                        assert!(poll_until(PATIENCE, votes).is_some(), "{trouble:?}");
                    }
                    let error = mutex.owner().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Unreachable, "{trouble:?}: {error}");
                    names_all(&bench, &error);
                    bench.end(trouble, 0, many);
                    let lock = bench.patient().mutex("m", GUARD).unwrap().lock_for(PATIENCE);
                    let lock =
                        lock.unwrap_or_else(|error| panic!("{trouble:?} of {many}: {error}"));
                    drop(lock.expect("it works again"));
                    // Its first call may wait too short a time for an answer.
                    let mutex = client.mutex("m", GUARD).unwrap();
                    let again = poll_until(PATIENCE, || mutex.try_lock().ok().flatten());
                    drop(again.expect("it works again here, too"));
                });
            }
        });
    }
}

/// Extends the lock. On a busy machine members may answer too late, and it is tried again.
#[track_caller]
fn is_extended(lock: &mut Lock) {
    let extended = poll_until(PATIENCE, || {
        assert!(!lock.remaining().is_zero(), "the test took too long");
        lock.extend(GUARD).ok()
    });
    assert_eq!(extended, Some(Extension::Extended));
}

/// The lock is neither kept nor lost for certain, and is extended when they are back in time.
#[test]
fn a_holder_that_reaches_too_few_is_told_so_and_goes_on_when_they_are_back() {
    for trouble in [Trouble::Hung, Trouble::CutOff, Trouble::Refused] {
        let bench = Bench::of(3);
        // The failure of an extension must leave time for the next one.
        let client = bench.impatient(SILENCE / 2);
        let mut lock = hold(&client, "m");
        is_extended(&mut lock);
        bench.begin(trouble, 0, 2);
        let error = lock.extend(GUARD).unwrap_err();
        assert!(error.is_outage(), "{trouble:?}: {error}");
        names_all(&bench, &error);
        bench.end(trouble, 0, 2);
        is_extended(&mut lock);
        assert_eq!(lock.unlock().unwrap(), Release::Released, "{trouble:?}");
        drop(hold(&bench.client(), "m"));
    }
}

/// A waiter waits on while they are away, as long as its client lets it.
#[test]
fn a_waiter_outlasts_an_outage_of_the_majority() {
    let bench = Bench::of(3);
    let client = bench.patient();
    let mut lock = hold(&client, "m");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| hold(&bench.patient(), "m").fence());
        bench.await_waiter("m");
        bench.begin(Trouble::Refused, 0, 3);
        assert!(lock.unlock().is_err());
        bench.end(Trouble::Refused, 0, 3);
        let released = poll_until(PATIENCE, || lock.unlock().ok());
        assert_eq!(released, Some(Release::Released));
        assert!(waiter.join().unwrap() > lock.fence());
    });
}

/// The time of some pairs of a lock and its release, each.
fn pairs(client: &Client, time: Duration) -> Vec<Duration> {
    let mutex = client.mutex("m", GUARD).unwrap();
    let all = Stopwatch::start();
    let mut times = Vec::new();
    while all.elapsed() < time {
        let watch = Stopwatch::start();
        let mut lock = mutex.try_lock().unwrap().expect("a majority is there");
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        times.push(watch.elapsed());
    }
    times
}

/// The first call may take a time-out, later ones must not.
#[test]
fn a_member_that_hangs_costs_one_time_out() {
    for (number, hung) in [(3, 1), (5, 2)] {
        let bench = Bench::of(number);
        let client = bench.client();
        drop(hold_on_all(&bench, &client, "m"));
        for first in 0..number {
            bench.begin(Trouble::Hung, first, hung);
            let times = pairs(&client, 4 * SECOND);
            let time_out = SILENCE * 9 / 10;
            let slow: Vec<&Duration> = times.iter().filter(|&&took| took > time_out).collect();
            bench.end(Trouble::Hung, first, hung);
            assert!(slow.len() <= hung, "of {} took a time-out: {slow:?}", times.len());
        }
    }
}

#[test]
fn a_member_that_answers_again_is_used_again() {
    for trouble in [Trouble::Killed, Trouble::Hung, Trouble::CutOff, Trouble::Refused] {
        let bench = Bench::of(3);
        let client = bench.client();
        drop(hold(&client, "m"));
        bench.begin(trouble, 0, 1);
        drop(hold(&client, "m"));
        bench.end(trouble, 0, 1);
        bench.settle();
        let used = poll_until(PATIENCE, || {
            let lock = hold(&client, "m");
            (bench.count("lock:m") == 3).then_some(lock)
        });
        drop(used.expect("it is used again"));
        // And it counts: another one may be away.
        bench.begin(Trouble::Refused, 1, 1);
        drop(hold(&client, "m"));
    }
}

/// As after a restart of all, of which their clients have not heard yet.
#[test]
fn a_read_is_made_again_when_its_connections_break() {
    use memlock_tests::proxy::{Fault, Match};
    let bench = Bench::of(3);
    let client = bench.client();
    let lock = hold(&client, "m");
    let break_all = || {
        for member in &bench.members {
            member.proxy.inject(Match::Getting, Fault::CutAfterRequest);
        }
    };
    break_all();
    assert!(lock.check().unwrap());
    bench.members.iter().for_each(|member| member.proxy.clear_rules());
    break_all();
    let owner = client.mutex("m", GUARD).unwrap().owner().unwrap();
    assert_eq!(owner.unwrap().token(), lock.token().to_string());
}

/// They are waited for side by side.
#[test]
fn two_members_that_hang_cost_one_timeout() {
    let bench = Bench::of(5);
    let client = bench.client();
    drop(hold(&client, "m"));
    bench.begin(Trouble::Hung, 1, 1);
    bench.begin(Trouble::Hung, 3, 1);
    let watch = Stopwatch::start();
    let lock = client.mutex("m", GUARD).unwrap().try_lock().unwrap();
    let took = watch.elapsed();
    assert!(lock.is_some() && took < SILENCE * 9 / 5, "{took:?}");
    bench.end(Trouble::Hung, 1, 1);
    bench.end(Trouble::Hung, 3, 1);
}

/// Its replies come after the time limit: so a question that nobody waits for is answered, and each
/// call is not.
#[test]
fn a_member_that_answers_too_late_costs_less_and_less() {
    let bench = Bench::of(3);
    let client = bench.client();
    drop(hold(&client, "m"));
    bench.members[1].proxy.inject_always(Match::Any, Fault::DelayReply(SILENCE * 3 / 2));
    let mutex = client.mutex("m", GUARD).unwrap();
    let (watch, mut waits) = (Stopwatch::start(), 0);
    while watch.elapsed() < Duration::from_secs(10) {
        let call = Stopwatch::start();
        drop(mutex.try_lock().unwrap());
        waits += u32::from(call.elapsed() > SILENCE * 3 / 4);
        thread::sleep(Duration::from_millis(20));
    }
    // When it was found to be silent, and when it had answered a question once.
    assert!(waits <= 3, "{waits} calls waited for it");
    bench.members[1].proxy.clear_rules();
}

/// Each call waits for them once, side by side, and calls that follow at once hardly wait.
#[test]
fn a_majority_that_hangs_costs_each_call_about_one_time_out() {
    for (number, hung) in [(3, 2), (3, 3), (5, 3)] {
        let bench = Bench::of(number);
        let client = bench.client();
        let mut lock = hold(&client, "m");
        let mutex = client.mutex("other", GUARD).unwrap();
        bench.begin(Trouble::Hung, 0, hung);
        let took = |call: &mut dyn FnMut()| {
            let watch = Stopwatch::start();
            call();
            watch.elapsed()
        };
        // Of each kind of call one that finds it out, or waits again, and one that follows.
        let mut fails = || assert!(mutex.try_lock().is_err());
        let first = took(&mut fails);
        // The request, and reading back what became of it.
        assert!(first < SILENCE * 7 / 2, "{number} {hung}: {first:?}");
        for _ in 0..3 {
            let next = [
                took(&mut || assert!(lock.unlock().is_err())),
                took(&mut || assert!(lock.extend(GUARD).is_err())),
                took(&mut fails),
                took(&mut || assert!(mutex.owner().is_err())),
            ];
            let sum: Duration = next.iter().sum();
            assert!(sum < SILENCE * 4, "{number} {hung}: {next:?}");
        }
        bench.end(Trouble::Hung, 0, hung);
        // They are found to answer by the next calls.
        let free = poll_until(PATIENCE, || mutex.try_lock().ok().flatten());
        drop(free.expect("they answer again"));
        drop(lock);
    }
}

/// A member that hung, and answers again, is found when another one does not: the lock is kept.
#[test]
fn a_member_that_answers_again_stands_in_for_one_that_refuses() {
    for number in [3, 5] {
        let bench = Bench::of(number);
        let client = bench.impatient(SILENCE / 2);
        let mut lock = hold_on_all(&bench, &client, "m");
        let few = number / 2;
        bench.some(0, few).for_each(|member| member.proxy.black_hole(true));
        is_extended(&mut lock);
        is_extended(&mut lock);
        // What was sent meanwhile is lost, and nobody closes the connections.
        bench.some(0, few).for_each(|member| member.proxy.black_hole(false));
        bench.begin(Trouble::Refused, few, few);
        let failed = (0..).take_while(|_| lock.extend(GUARD).is_err()).take(3).count();
        assert!(failed < 3, "{number}: {:?}", lock.extend(GUARD));
        assert!(lock.check().unwrap(), "{number}");
        assert_eq!(lock.unlock().unwrap(), Release::Released, "{number}");
    }
}
