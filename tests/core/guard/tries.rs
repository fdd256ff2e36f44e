//! Calls that acquire during the recovery: a try says for how long yet, and a wait waits on.

use std::thread;
use std::time::Duration;

use super::{Bench, GUARD, PATIENCE, hold};
use memlock_core::{Answer, ErrorKind, Request, Wait, Waited};

/// The numbers before ` s` in the sentence: how old the server is, and how long it takes yet.
fn seconds(sentence: &str) -> Vec<u64> {
    let words: Vec<&str> = sentence.split([' ', ',', '.']).collect();
    let pairs = words.windows(2).filter(|pair| pair[1] == "s");
    pairs.filter_map(|pair| pair[0].parse().ok()).collect()
}

#[track_caller]
fn says_the_times(bench: &Bench, sentence: &str, subject: &str) {
    assert!(sentence.contains(subject), "{sentence}");
    assert!(sentence.contains(&bench.proxy.address()) && sentence.ends_with('.'), "{sentence}");
    let left = *seconds(sentence).last().unwrap();
    assert!((1..=GUARD.as_secs() + 1).contains(&left), "{sentence}");
    assert!(sentence.contains(" ago"), "{sentence}");
}

#[test]
fn a_try_says_how_old_the_server_is_and_how_long_it_takes_yet() {
    let bench = Bench::fresh();
    let client = bench.client();
    let mutex = client.mutex("m", GUARD).unwrap();
    let Err(report) = mutex.lock_or_report(&Wait::NEVER).unwrap() else { panic!("granted") };
    assert_eq!(report.answer(), Answer::Recovering);
    says_the_times(&bench, &report.sentence(), "lock \"m\"");
    let semaphore = client.semaphore("s", 5, GUARD).unwrap();
    let Err(report) = semaphore.acquire_or_report(Request::default(), &Wait::NEVER).unwrap() else {
        panic!("granted")
    };
    assert_eq!(report.answer(), Answer::Recovering);
    says_the_times(&bench, &report.sentence(), "semaphore \"s\"");
    assert!(matches!(mutex.lock_with(&Wait::NEVER).unwrap(), Waited::Recovering));
    assert!(mutex.try_lock().unwrap().is_none() && semaphore.try_acquire().unwrap().is_none());
    assert_eq!(bench.server.plain().get("lock:m"), None);
}

/// Both numbers change in step with the clock.
#[test]
fn the_times_of_the_sentence_add_up_to_the_guard() {
    let bench = Bench::fresh();
    let mutex = bench.client().mutex("m", GUARD).unwrap();
    let mut before = u64::MAX;
    for _ in 0..2 {
        let Err(report) = mutex.lock_or_report(&Wait::NEVER).unwrap() else { panic!("granted") };
        let sentence = report.sentence().into_owned();
        let left = *seconds(&sentence).last().unwrap();
        let age = seconds(&sentence).first().copied().filter(|_| seconds(&sentence).len() == 2);
        let sum = age.unwrap_or(0) + left;
        assert!((GUARD.as_secs()..=GUARD.as_secs() + 1).contains(&sum), "{sentence}");
        assert!(left < before, "{sentence}");
        before = left;
        thread::sleep(Duration::from_millis(1500));
    }
}

/// The waiter has its place in the queue from before.
#[test]
fn a_wait_that_began_before_the_crash_goes_on() {
    let bench = Bench::start();
    let (one, two) = (bench.client(), bench.client());
    let held = hold(&one, "m");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| hold(&two, "m"));
        bench.await_waiter("lock:m");
        bench.restart();
        drop(held);
        assert!(!waiter.is_finished());
        bench.ages();
        assert!(waiter.join().unwrap().check().unwrap());
    });
}

#[test]
fn a_wait_that_is_shorter_than_the_recovery_times_out() {
    let bench = Bench::fresh();
    let client = bench.client();
    let mutex = client.mutex("m", GUARD).unwrap();
    let limit = Duration::from_millis(300);
    let Err(report) = mutex.lock_or_report(&Wait::at_most(limit)).unwrap() else {
        panic!("granted")
    };
    assert_eq!(report.answer(), Answer::TimedOut, "{report}");
    let semaphore = client.semaphore("s", 1, GUARD).unwrap();
    let waited = semaphore.acquire_with(Request::default(), &Wait::at_most(limit)).unwrap();
    assert!(matches!(waited, Waited::TimedOut));
}

#[test]
fn a_wait_during_the_recovery_can_be_cancelled() {
    let bench = Bench::fresh();
    let client = bench.client();
    for semaphore in [false, true] {
        let cancelled = thread::scope(|scope| {
            let waiter = scope.spawn(|| match semaphore {
                false => client.mutex("m", GUARD).unwrap().lock().map(|_| ()),
                true => client.semaphore("s", 1, GUARD).unwrap().acquire().map(|_| ()),
            });
            bench.await_waiter(if semaphore { "semaphore:s" } else { "lock:m" });
            client.cancel_waits();
            waiter.join().unwrap()
        });
        assert_eq!(cancelled.unwrap_err().kind(), ErrorKind::Interrupted);
    }
}

#[test]
fn a_server_that_is_older_than_the_guard_gives_at_once() {
    let bench = Bench::start();
    // A client that knows nothing of it yet.
    let client = bench.client();
    assert!(client.mutex("m", GUARD).unwrap().try_lock().unwrap().is_some());
    assert!(client.semaphore("s", 1, GUARD).unwrap().try_acquire().unwrap().is_some());
}

/// A holder whose client has seen nothing of the restart yet, and an idle client.
#[test]
fn a_client_that_was_idle_across_the_crash_grants_itself_nothing() {
    let bench = Bench::start();
    let client = bench.client();
    drop(hold(&client, "m"));
    bench.restart();
    let tried = client.mutex("m", GUARD).unwrap().lock_with(&Wait::NEVER).unwrap();
    assert!(matches!(tried, Waited::Recovering), "{tried:?}");
    bench.ages();
    assert!(client.mutex("m", GUARD).unwrap().lock_for(PATIENCE).unwrap().is_some());
}
