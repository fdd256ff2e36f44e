//! Semaphores: the record is made anew of what the holders put back, and no permit is granted
//! beside them.

use std::thread;
use std::time::Duration;

use memlock_core::{
    Client, ErrorKind, Extension, Permit, Release, RenewOptions, Request, SetUp, Wait, Waited,
};
use memlock_tests::launch::poll_until;

use super::losses::crashes_in_a_release;
use super::notices::{LEASE as RENEWED, is_told_of_no_loss};
use super::{BRIEF, Bench, GUARD, PATIENCE, SECOND, hold};

const PERMITS: u32 = 5;

fn take(client: &Client, permits: u32) -> Permit {
    let request = Request { permits, ..Request::default() };
    let semaphore = client.semaphore("s", PERMITS, GUARD).unwrap();
    let waited = semaphore.acquire_with(request, &Wait::at_most(PATIENCE)).unwrap();
    let mut permit = waited.done().expect("they are free");
    assert_eq!(permit.extend(GUARD).unwrap(), Extension::Extended);
    permit
}

fn try_take(client: &Client, permits: u32, lease: Duration) -> Waited<Permit> {
    let request = Request { permits, ..Request::default() };
    let semaphore = client.semaphore("s", PERMITS, lease).unwrap();
    semaphore.acquire_with(request, &Wait::NEVER).unwrap()
}

fn record(bench: &Bench) -> String {
    let value = poll_until(PATIENCE, || bench.server.plain().get("semaphore:s"));
    String::from_utf8(value.expect("the semaphore is not put back")).unwrap()
}

/// The permits that the record says are held.
fn held(bench: &Bench) -> u32 {
    record(bench).lines().skip(1).map(|line| line.split(' ').nth(1).unwrap()).fold(0, |sum, n| {
        let n: u32 = n.parse().unwrap();
        sum + n
    })
}

/// Two holders put three permits back, while another client waits for three of the five until the
/// recovery's end.
fn survives(put_back: impl Fn(&mut Permit)) {
    let bench = Bench::start();
    let [one, two, three] = [(); 3].map(|()| bench.client());
    let (mut single, mut double) = (take(&one, 1), take(&two, 2));
    let tokens = [single.token(), double.token()];
    bench.restart();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&three, 3));
        bench.await_waiter("semaphore:s");
        for permit in [&mut double, &mut single] {
            put_back(permit);
        }
        let lines = record(&bench);
        let is_there = |permit: &Permit| lines.contains(&permit.token().to_string());
        assert!(is_there(&single) && is_there(&double), "{lines}");
        assert_eq!(held(&bench), 3);
        let semaphore = one.semaphore("s", PERMITS, GUARD).unwrap();
        let tried = semaphore.acquire_with(Request::default(), &Wait::NEVER).unwrap();
        assert!(matches!(tried, Waited::Recovering));
        assert_eq!([single.token(), double.token()], tokens);
        assert_eq!((single.permits(), double.permits()), (1, 2));
        assert_eq!(single.release().unwrap(), Release::Released);
        assert_eq!(held(&bench), 2);
        bench.ages();
        let got = waiter.join().unwrap();
        assert_eq!(got.permits(), 3);
    });
}

#[test]
fn extensions_put_permits_back() {
    survives(|permit| assert_eq!(permit.extend(GUARD).unwrap(), Extension::Extended));
}

#[test]
fn checks_put_permits_back_for_the_rest_of_the_lease() {
    survives(|permit| {
        let deadline = permit.deadline();
        assert!(permit.check().unwrap());
        assert_eq!(permit.deadline(), deadline);
    });
}

#[test]
fn renewals_put_permits_back_and_no_loss_is_reported() {
    let bench = Bench::start();
    let renewals: Vec<_> = [1, 2]
        .into_iter()
        .map(|permits| {
            let (tell, told) = std::sync::mpsc::channel();
            let on_notice = Some(Box::new(move |notice| _ = tell.send(notice)) as _);
            let permit = try_take(&bench.client(), permits, RENEWED).done().unwrap();
            (permit.renew(RenewOptions { max_hold: None, on_notice }).unwrap(), told)
        })
        .collect();
    for _ in 0..2 {
        bench.restart();
        let back = poll_until(PATIENCE, || (held(&bench) == 3).then_some(()));
        assert!(back.is_some(), "{}", record(&bench));
    }
    bench.ages();
    let client = bench.client();
    let tried = try_take(&client, 3, GUARD);
    assert!(matches!(tried, Waited::Busy), "three of five are held: {tried:?}");
    assert_eq!(try_take(&client, 2, GUARD).done().unwrap().release().unwrap(), Release::Released);
    for (renewal, told) in renewals {
        assert!(renewal.check().unwrap() && renewal.is_held());
        assert_eq!(renewal.release().unwrap(), Release::Released);
        is_told_of_no_loss(&told);
    }
}

/// Not with that of the time when they were granted.
#[test]
fn permits_are_put_back_into_a_semaphore_of_the_number_that_it_had() {
    let extend =
        |permit: &mut Permit| assert_eq!(permit.extend(GUARD).unwrap(), Extension::Extended);
    let check = |permit: &mut Permit| assert!(permit.check().unwrap());
    for confirm in [&extend as &dyn Fn(&mut Permit), &check] {
        let bench = Bench::start();
        let mut permit = take(&bench.client(), 1);
        let other = bench.client().semaphore("s", PERMITS, GUARD).unwrap();
        assert_eq!(other.resize(2).unwrap(), Some(PERMITS));
        confirm(&mut permit);
        bench.restart();
        confirm(&mut permit);
        assert_eq!(other.status().unwrap().unwrap().permits, 2);
    }
    let bench = Bench::start();
    let permit = try_take(&bench.client(), 1, RENEWED).done().unwrap();
    let renewal = permit.renew(RenewOptions::default()).unwrap();
    let other = bench.client().semaphore("s", PERMITS, GUARD).unwrap();
    assert_eq!(other.resize(2).unwrap(), Some(PERMITS));
    let resized = record(&bench);
    assert!(poll_until(PATIENCE, || (record(&bench) != resized).then_some(())).is_some());
    bench.restart();
    assert!(poll_until(PATIENCE, || (held(&bench) == 1).then_some(())).is_some());
    assert_eq!(other.status().unwrap().unwrap().permits, 2);
    assert_eq!(renewal.release().unwrap(), Release::Released);
}

#[test]
fn permits_that_the_server_has_forgotten_are_released() {
    let bench = Bench::start();
    let [one, two] = [(); 2].map(|()| bench.client());
    let (mut single, mut double) = (take(&one, 1), take(&two, 2));
    bench.restart();
    // There is no record; and one without the holder.
    assert_eq!(single.release().unwrap(), Release::Released);
    let mut third = Vec::new();
    assert!(double.check().unwrap());
    assert_eq!(held(&bench), 2);
    assert_eq!(double.release().unwrap(), Release::Released);
    assert_eq!(held(&bench), 0);
    let semaphore = one.semaphore("s", PERMITS, GUARD).unwrap();
    let tried = semaphore.acquire_with(Request::default(), &Wait::NEVER).unwrap();
    assert!(matches!(tried, Waited::Recovering));
    bench.ages();
    third.push(take(&one, PERMITS));
}

#[test]
fn permits_whose_lease_has_ended_are_lost() {
    let bench = Bench::start();
    let [one, two] = [(); 2].map(|()| bench.client());
    let (mut ended, kept) = (take(&one, 1), take(&two, 2));
    assert_eq!(ended.extend(BRIEF).unwrap(), Extension::Extended);
    bench.restart();
    assert!(kept.check().unwrap());
    let over = poll_until(PATIENCE, || ended.remaining().is_zero().then_some(()));
    assert!(over.is_some());
    assert!(!ended.check().unwrap());
    assert_eq!(ended.extend(GUARD).unwrap(), Extension::Lost);
    assert_eq!(ended.release().unwrap(), Release::Lost);
    assert_eq!(held(&bench), 2);
}

/// An operator tears it down after they were put back, or takes them away.
fn is_not_put_back_again(put_back: impl Fn(&mut Permit), remove: impl Fn(&Bench, &Permit)) {
    let bench = Bench::start();
    let mut permit = take(&bench.client(), 2);
    bench.restart();
    put_back(&mut permit);
    assert_eq!(held(&bench), 2);
    remove(&bench, &permit);
    assert!(!permit.check().unwrap());
    assert_eq!(permit.extend(GUARD).unwrap(), Extension::Lost);
    let record = bench.server.plain().get("semaphore:s");
    assert!(record.is_none() || held(&bench) == 0);
}

#[test]
fn permits_that_were_put_back_and_taken_away_are_not_put_back_again() {
    let tear_down = |bench: &Bench, _: &Permit| {
        assert!(bench.client().semaphore("s", PERMITS, GUARD).unwrap().tear_down().unwrap());
    };
    let force = |bench: &Bench, permit: &Permit| {
        let semaphore = bench.client().semaphore("s", PERMITS, GUARD).unwrap();
        assert!(semaphore.force_release(permit.token()).unwrap());
    };
    let extend =
        |permit: &mut Permit| assert_eq!(permit.extend(GUARD).unwrap(), Extension::Extended);
    let check = |permit: &mut Permit| assert!(permit.check().unwrap());
    is_not_put_back_again(extend, tear_down);
    is_not_put_back_again(check, tear_down);
    is_not_put_back_again(extend, force);
    is_not_put_back_again(check, force);
}

/// As for locks: the crash took nothing away that the lease did not cover.
#[test]
fn permits_that_may_have_been_released_before_the_crash_are_released_if_that_is_repeated() {
    let bench = Bench::start();
    let mut permit = take(&bench.client(), 2);
    crashes_in_a_release(&bench, || permit.release().is_err());
    assert_eq!(permit.release().unwrap(), Release::Released);
    assert_eq!(bench.server.plain().get("semaphore:s"), None);
}

/// Its holders may set it up again that the server has forgotten.
#[test]
fn a_semaphore_of_unknown_size_is_not_missing_during_the_recovery() {
    let bench = Bench::start();
    let [one, two] = [(); 2].map(|()| bench.client());
    let permit = take(&one, 2);
    bench.restart();
    let unknown = two.open_semaphore("s", GUARD).unwrap();
    let tried = unknown.acquire_with(Request::default(), &Wait::NEVER).unwrap();
    assert!(matches!(tried, Waited::Recovering), "{tried:?}");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| unknown.acquire_for(PATIENCE).unwrap().unwrap());
        bench.await_waiter("semaphore:s");
        assert!(permit.check().unwrap());
        bench.ages();
        let got = waiter.join().unwrap();
        assert_eq!(got.permits(), 1);
    });
    let status = unknown.status().unwrap().unwrap();
    assert_eq!(status.permits, PERMITS);
}

/// Nobody puts it back.
#[test]
fn a_semaphore_that_nobody_held_is_missing_after_the_recovery() {
    let bench = Bench::start();
    let client = bench.client();
    let unknown = client.open_semaphore("s", GUARD).unwrap();
    let error = unknown.acquire_for(PATIENCE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    drop(hold(&client, "m"));
    assert_eq!(unknown.try_acquire().unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_semaphore_that_is_set_up_during_the_recovery_grants_nothing_before_its_end() {
    let bench = Bench::start();
    let [one, two] = [(); 2].map(|()| bench.client());
    let permit = take(&one, 3);
    bench.restart();
    let semaphore = two.semaphore("s", PERMITS, GUARD).unwrap();
    assert_eq!(semaphore.set_up(100 * SECOND).unwrap(), SetUp::Created);
    assert_eq!(semaphore.status().unwrap().unwrap().available, 0);
    let tried = semaphore.acquire_with(Request::default(), &Wait::NEVER).unwrap();
    assert!(matches!(tried, Waited::Recovering));
    assert!(permit.check().unwrap(), "it is put back into the new record");
    assert_eq!(held(&bench), 3);
    bench.ages();
    drop(take(&two, 2));
}
