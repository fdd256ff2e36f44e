//! The order of waiters, beyond that of `tests/conformance/waiting.rs`.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::wait::entries::MOST_OVERTAKEN;
use memlock_core::{Client, Permit, Request, Semaphore, Wait};
use memlock_tests::doors::WaitingThread;
use memlock_tests::frozen::Frozen;
use memlock_tests::launch::until;

use super::{Bench, LEASE, PATIENCE};

/// Waits for its request in a thread of its own, reports the acquisition, and releases when it is
/// asked to.
struct Crew<'a> {
    bench: &'a Bench,
    permits: u32,
    semaphore: fn(&Bench, u32) -> Semaphore,
    got: Sender<(&'static str, Permit)>,
}

impl Crew<'_> {
    fn waits(&self, name: &'static str, request: Request) {
        self.waits_with((self.semaphore)(self.bench, self.permits), name, request);
    }

    fn waits_with(&self, semaphore: Semaphore, name: &'static str, request: Request) {
        let got = self.got.clone();
        let (before, waiter) = (self.bench.queue().len(), WaitingThread::default());
        let its = waiter.clone();
        thread::spawn(move || {
            its.is_this_one();
            let permit =
                semaphore.acquire_with(request, &Wait::at_most(PATIENCE)).unwrap().done().unwrap();
            let _ = got.send((name, permit));
        });
        until("it waits", || self.bench.queue().len() == before + 1 && waiter.is_asleep());
    }
}

impl Bench {
    pub(super) fn queue(&self) -> Vec<String> {
        let queue = self.server.plain().get("semaphore:s%wait").unwrap_or_default();
        let queue = String::from_utf8(queue).unwrap();
        queue.lines().map(str::to_owned).collect()
    }

    /// Until the record shows that a waiter reserves free permits for itself.
    fn until_reserved(&self) {
        until("permits are reserved", || {
            let record = self.server.plain().get("semaphore:s").unwrap_or_default();
            String::from_utf8_lossy(&record).contains(" gathering=")
        });
    }

    /// The record, its TTL, and the server's time as memlock reads it from both.
    fn record(&self) -> (String, u32, u64) {
        let mut plain = self.server.plain();
        let text = String::from_utf8(plain.get("semaphore:s").unwrap()).unwrap();
        let ttl: u32 = plain.command("mg semaphore:s t")["HD t".len()..].parse().unwrap();
        let expires: u64 = text.split(' ').nth(3).unwrap().parse().unwrap();
        (text, ttl, expires - u64::from(ttl))
    }

    /// Until when permits are reserved, if they have been without a gap, given that they were
    /// until this time. On a busy machine a reservation may run out before it is written again.
    fn reserved_since(&self, until: u64) -> Option<u64> {
        let (_, next) = self.reservation()?;
        (self.record().2 < until).then_some(next)
    }

    /// Which waiter reserves free permits for itself, and until when.
    fn reservation(&self) -> Option<(String, u64)> {
        let (text, ..) = self.record();
        let (_, said) = text.lines().next()?.split_once(" gathering=")?;
        let words: Vec<&str> = said.split([':', ' ']).take(3).collect();
        Some((words[0].to_owned(), words[2].parse().unwrap()))
    }
}

fn of(permits: u32, priority: i64) -> Request {
    Request { permits, priority, ages: true }
}

/// Wakes the waiter of this line of the queue, as a releaser does.
fn wake(line: &str) {
    let [address, id] = line.split('#').take(2).collect::<Vec<_>>()[..] else { panic!("{line}") };
    let waker = UdpSocket::bind("127.0.0.1:0").unwrap();
    waker.send_to(format!("memlock/1 {id}").as_bytes(), address).unwrap();
}

fn all(semaphore: &Semaphore, permits: u32) -> Permit {
    semaphore.acquire_with(of(permits, 0), &Wait::NEVER).unwrap().done().unwrap()
}

#[test]
fn a_waiter_that_was_overtaken_often_enough_comes_next() {
    let bench = Bench::new();
    let (got, gets) = mpsc::channel();
    let mut held = all(&bench.semaphore(1), 1);
    let crew = Crew { bench: &bench, permits: 1, semaphore: Bench::frozen, got };
    crew.waits("old", of(1, -1));
    crew.waits("patient", Request { permits: 1, priority: -2, ages: false });
    crew.waits("high", of(1, 7));
    for turn in 1..=MOST_OVERTAKEN {
        crew.waits("high", of(1, 7));
        drop(held);
        let (name, permit) = gets.recv_timeout(PATIENCE).unwrap();
        assert_eq!(name, "high", "turn {turn}");
        held = permit;
        let overtaken = |line: &String| line.ends_with(&format!("#{turn}"));
        until("it was counted", || bench.queue().len() == 3 && bench.queue().iter().any(overtaken));
    }
    drop(held);
    let order: Vec<_> = (0..3).map(|_| gets.recv_timeout(PATIENCE).unwrap().0).collect();
    assert_eq!(order, ["old", "high", "patient"]);
}

/// True if that is certain; false if the reservation may have run out meanwhile on a busy machine.
fn is_not_overtaken_by_waiters_for_one() -> bool {
    let bench = Bench::new();
    let (got, gets) = mpsc::channel();
    let semaphore = bench.semaphore(3);
    let mut held: Vec<Permit> = (0..3).map(|_| all(&semaphore, 1)).collect();
    let crew = Crew { bench: &bench, permits: 3, semaphore: Bench::semaphore, got };
    crew.waits("three", of(3, 0));
    // The entry in the queue comes before the reservation.
    bench.until_reserved();
    let clock = Frozen::running();
    let client = Client::with_clock(&bench.server.url(), Arc::<Frozen>::clone(&clock)).unwrap();
    crew.waits_with(client.semaphore("s", 3, LEASE).unwrap(), "one", of(1, 0));
    let Some((_, mut reserved)) = bench.reservation() else { return false };
    drop(held.pop());
    drop(held.pop());
    // Neither a waiter behind it in the queue, nor a newcomer, nor one that inspects on its own.
    let mut is_overtaken = bench.semaphore(3).try_acquire().unwrap().is_some();
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2500) {
        is_overtaken |= gets.recv_timeout(Duration::from_millis(50)).is_ok();
        let Some(until) = bench.reserved_since(reserved) else { return false };
        assert!(!is_overtaken);
        reserved = until;
    }
    // It presumes that a waiter is dead which does not take what is reserved for it, as one does that
    // does not run for 300 ms.
    clock.stop();
    if bench.reserved_since(reserved).is_none() || gets.try_recv().is_ok() {
        return false;
    }
    drop(held.pop());
    let (first, three) = gets.recv_timeout(PATIENCE).unwrap();
    assert_eq!((first, three.permits()), ("three", 3));
    drop(three);
    assert_eq!(gets.recv_timeout(PATIENCE).unwrap().0, "one");
    true
}

#[test]
fn a_waiter_for_many_is_not_overtaken_by_waiters_for_one() {
    until("it is certain", is_not_overtaken_by_waiters_for_one);
}

#[test]
fn a_waiter_for_one_is_not_kept_off_by_one_behind_it_that_wants_several() {
    let bench = Bench::new();
    let (got, gets) = mpsc::channel();
    let semaphore = bench.semaphore(3);
    let (two, one) = (all(&semaphore, 2), all(&semaphore, 1));
    // It died, and had no listener: so no waiter is woken before it has been waited for in vain.
    let dead = "-#00000000000000dd#0#0#3#0\n";
    assert!(bench.server.plain().add("semaphore:s%wait", dead, 300));
    let crew = Crew { bench: &bench, permits: 3, semaphore: Bench::semaphore, got };
    crew.waits("one", of(1, 0));
    crew.waits("two", of(2, 0));
    // It has looked at the record by now, and would have written there. A reservation lasts for five
    // seconds, and is written again as long as its waiter waits.
    let is_reserved = || bench.record().0.contains(" gathering=");
    assert!(!is_reserved(), "{}", bench.record().0);
    drop(one);
    let (name, one) = gets.recv_timeout(PATIENCE).unwrap();
    assert_eq!(name, "one");
    drop((one, two));
    assert_eq!(gets.recv_timeout(PATIENCE).unwrap().0, "two");
}

#[test]
fn as_many_are_woken_as_there_is_room_for() {
    let bench = Bench::new();
    let (got, gets) = mpsc::channel();
    let held = all(&bench.semaphore(4), 4);
    let crew = Crew { bench: &bench, permits: 4, semaphore: Bench::frozen, got };
    for name in ["one", "two", "three"] {
        crew.waits(name, of(1, 0));
    }
    crew.waits("two at once", of(2, 0));
    drop(held);
    let mut have: Vec<_> = (0..3).map(|_| gets.recv_timeout(PATIENCE).unwrap()).collect();
    assert!(have.iter().all(|(name, _)| *name != "two at once"));
    drop(have.pop());
    assert_eq!(gets.recv_timeout(PATIENCE).unwrap().0, "two at once");
}

#[test]
fn the_rest_of_what_was_gathered_goes_to_those_behind() {
    let bench = Bench::new();
    let (got, gets) = mpsc::channel();
    let semaphore = bench.semaphore(5);
    let held = all(&semaphore, 2);
    let crew = Crew { bench: &bench, permits: 5, semaphore: Bench::frozen, got };
    crew.waits("four", of(4, 0));
    // Otherwise three permits are free for the other.
    bench.until_reserved();
    crew.waits("one", of(1, 0));
    drop(held);
    let mut have: Vec<_> = (0..2).map(|_| gets.recv_timeout(PATIENCE).unwrap()).collect();
    have.sort_by_key(|(name, _)| *name);
    assert_eq!(have.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["four", "one"]);
}

#[test]
fn a_waiter_that_gathers_and_gives_up_leaves_all_of_it_to_those_behind() {
    let bench = Bench::new();
    let (got, gets) = mpsc::channel();
    let client = bench.client();
    let (_held, more) = (all(&bench.semaphore(4), 2), all(&bench.semaphore(4), 2));
    let cancel = client.cancel_handle();
    thread::scope(|scope| {
        let gatherer = scope.spawn(|| {
            let semaphore = client.semaphore("s", 4, super::LEASE).unwrap();
            semaphore.acquire_with(of(4, 0), &Wait::FOREVER.unless_cancelled(&cancel)).unwrap()
        });
        until("it waits", || bench.queue().len() == 1);
        bench.until_reserved();
        let crew = Crew { bench: &bench, permits: 4, semaphore: Bench::frozen, got };
        crew.waits("one", of(1, 0));
        crew.waits("another", of(1, 0));
        drop(more);
        cancel.cancel();
        let have: Vec<_> = (0..2).map(|_| gets.recv_timeout(PATIENCE).unwrap()).collect();
        drop(have);
        assert!(matches!(gatherer.join().unwrap(), memlock_core::Waited::Interrupted));
    });
    // Nor does it keep newcomers off any more.
    assert!(bench.semaphore(4).try_acquire().unwrap().is_some());
}

#[test]
fn a_holder_that_was_woken_in_vain_blocks_no_other_waiter() {
    let bench = Bench::new();
    let (got, gets) = mpsc::channel();
    let semaphore = bench.semaphore(2);
    let mut held = [all(&semaphore, 1), all(&semaphore, 1)];
    let crew = Crew { bench: &bench, permits: 2, semaphore: Bench::frozen, got };
    crew.waits("first", of(1, 0));
    // It finds no room, removes its entry, since no releaser has, and joins again.
    let line = bench.queue().remove(0);
    wake(&line);
    until("it has joined again", || matches!(&bench.queue()[..], [now] if *now != line));
    crew.waits("second", of(1, 0));
    let _ = held[0].release().unwrap();
    let first = gets.recv_timeout(PATIENCE).unwrap();
    assert_eq!(first.0, "first");
    // It has its permit, and only a wake-up can reach the other one.
    let _ = held[1].release().unwrap();
    assert_eq!(gets.recv_timeout(PATIENCE).unwrap().0, "second");
}

/// True if that is certain; false if the reservation may have run out meanwhile on a busy machine.
fn keeps_its_reservation_while_it_wakes_another() -> bool {
    let bench = Bench::new();
    let (got, gets) = mpsc::channel();
    let semaphore = bench.semaphore(3);
    let _held = [all(&semaphore, 1), all(&semaphore, 1), all(&semaphore, 1)];
    let crew = Crew { bench: &bench, permits: 3, semaphore: Bench::semaphore, got: got.clone() };
    crew.waits("three", of(3, 0));
    bench.until_reserved();
    Crew { semaphore: Bench::frozen, got, ..crew }.waits("high", of(1, 5));
    let queue = bench.queue();
    let line = queue.iter().find(|line| line.contains("#0#0#3")).unwrap();
    // A permit comes back, and no waiter is woken.
    let Some((waiter, until)) = bench.reservation() else { return false };
    let (text, ttl, _) = bench.record();
    let (rest, _) = text.trim_end().rsplit_once('\n').unwrap();
    assert!(bench.server.plain().set("semaphore:s", format!("{rest}\n"), ttl));
    // It is woken in vain, and joins behind the other waiter, which only it can wake.
    wake(line);
    let (name, permit) = gets.recv_timeout(PATIENCE).unwrap();
    assert_eq!(name, "high");
    let reservation = bench.reservation();
    if bench.record().2 >= until {
        return false;
    }
    assert_eq!(reservation.map(|(waiter, _)| waiter), Some(waiter));
    drop(permit);
    let newcomer = bench.semaphore(3).try_acquire().unwrap();
    let is_certain = bench.record().2 < until;
    assert!(newcomer.is_none() || !is_certain, "a newcomer has overtaken it");
    is_certain
}

#[test]
fn a_waiter_for_many_that_wakes_another_on_its_way_keeps_its_reservation() {
    until("it is certain", keeps_its_reservation_while_it_wakes_another);
}
