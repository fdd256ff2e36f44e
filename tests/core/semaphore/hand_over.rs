//! The waiters of one process: one of them is in the queue for all, and what their process releases
//! is handed off to them.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use memlock_core::clock::Clock;
use memlock_core::store::{Op, Route, Store};
use memlock_core::{Client, Permit, Release, Request, Semaphore, Wait};
use memlock_tests::assert_safe;
use memlock_tests::cost::usual_cost;
use memlock_tests::doors::WaitingThread;
use memlock_tests::frozen::Frozen;
use memlock_tests::intercepted::{Replies, intercepted};
use memlock_tests::launch::until;

use super::{Bench, LEASE, PATIENCE};
use crate::bench::{lost, on_memory};
use crate::waiting::bench::connect;

/// A thread that waits for permits.
struct InLine(Receiver<Permit>);

/// Waits behind those of its process that already do.
fn wait(semaphore: &Semaphore, request: Request, take: impl FnOnce(Permit) + Send + 'static) {
    let (semaphore, waiter) = (semaphore.clone(), WaitingThread::default());
    let its = waiter.clone();
    thread::spawn(move || {
        its.is_this_one();
        let got = semaphore.acquire_with(request, &Wait::at_most(PATIENCE));
        take(got.unwrap().done().unwrap());
    });
    until("it waits", || waiter.is_asleep());
}

impl InLine {
    fn new(semaphore: &Semaphore, request: Request) -> InLine {
        let (got, gets) = mpsc::channel();
        wait(semaphore, request, move |permit| _ = got.send(permit));
        InLine(gets)
    }

    #[track_caller]
    fn gets(&self) -> Permit {
        self.0.recv_timeout(PATIENCE).unwrap()
    }

    /// Its permit, if it has one at once.
    fn has(&self) -> Option<Permit> {
        self.0.recv_timeout(Duration::from_millis(100)).ok()
    }
}

fn in_line(semaphore: &Semaphore) -> InLine {
    InLine::new(semaphore, Request::default())
}

fn release(mut permit: Permit) {
    assert_eq!(permit.release().unwrap(), Release::Released);
}

#[test]
fn a_permit_is_handed_off_in_one_batch_with_a_token_and_a_lease_of_its_own() {
    let bench = Bench::new();
    // On a slow machine, a slow reply is checked by one more command.
    assert_eq!(usual_cost(|| hand_over_to_all(&bench)), 3, "put, queue, record");
}

/// The commands of the dearest hand-over but for the first and the last.
fn hand_over_to_all(bench: &Bench) -> u64 {
    let client = Client::with_clock(&bench.server.url(), Frozen::clock()).unwrap();
    let semaphore = client.semaphore("s", 1, LEASE).unwrap();
    let short = client.semaphore("s", 7, LEASE / 2).unwrap();
    let mut holder = semaphore.acquire().unwrap();
    let waiters = [&semaphore, &short, &semaphore, &semaphore, &semaphore].map(in_line);
    assert_eq!(bench.queue().len(), 1, "one of them is in the queue for all");
    let mut costs = Vec::new();
    for (waiter, lease) in waiters.iter().zip([LEASE, LEASE / 2, LEASE, LEASE, LEASE]) {
        let token = holder.token();
        let before = bench.server.commands();
        release(holder);
        holder = waiter.gets();
        costs.push(bench.server.commands() - before);
        assert_safe!(holder.token() != token, "two holders have one token");
        let remaining = holder.remaining();
        assert!(remaining <= lease && remaining > lease - Duration::from_secs(5), "{remaining:?}");
    }
    assert!(short.report_mismatch().is_some(), "it has learned the number of permits");
    let status = semaphore.status().unwrap().unwrap();
    assert_eq!(status.holders[0].token, holder.token());
    assert_eq!((status.available, status.holders.len()), (0, 1));
    until("the last one takes their entry off", || bench.queue().is_empty());
    release(holder);
    // Before the first the record is read, and after the last the process leaves the queue.
    costs[1..4].iter().copied().max().unwrap()
}

#[test]
fn a_waiter_of_another_process_gets_every_second_permit() {
    let bench = Bench::new();
    let (ours, other) = (bench.frozen(1), bench.frozen(1));
    let mut holder = ours.acquire().unwrap();
    let (got, gets) = mpsc::channel();
    for _ in 0..9 {
        let got = got.clone();
        wait(&ours, Request::default(), move |permit| _ = got.send((false, permit)));
    }
    wait(&other, Request::default(), move |permit| _ = got.send((true, permit)));
    let mut turns = 0;
    loop {
        release(holder);
        let (is_other, permit) = gets.recv_timeout(PATIENCE).unwrap();
        holder = permit;
        if is_other {
            break;
        }
        turns += 1;
    }
    // The first release knows of no other waiter, and hands off, as every second one does after it. The
    // others are for the queue, in which this process is the first.
    assert_eq!(turns, 4);
    drop(holder);
}

/// A process of two permits with three waiters, of which one has been handed a permit, and the waiter
/// of another process with this request, which the process knows by now.
fn known_to_wait(bench: &Bench, request: Request) -> ([InLine; 3], InLine, [Permit; 2]) {
    let ours = bench.frozen(2);
    let [one, two] = [ours.acquire().unwrap(), ours.acquire().unwrap()];
    let waiters = [in_line(&ours), in_line(&ours), in_line(&ours)];
    let other = InLine::new(&bench.frozen(2), request);
    release(one);
    let handed = waiters[0].gets();
    (waiters, other, [handed, two])
}

#[test]
fn a_waiter_of_higher_priority_comes_before_those_of_the_process_that_releases() {
    let bench = Bench::new();
    let high = Request { priority: 1, ..Request::default() };
    let (_waiters, other, held) = known_to_wait(&bench, high);
    let [_handed, two] = held;
    release(two);
    release(other.gets());
}

#[test]
fn a_waiter_for_several_gathers_what_another_process_releases() {
    let bench = Bench::new();
    let several = Request { permits: 2, ..Request::default() };
    let (waiters, other, held) = known_to_wait(&bench, several);
    let [handed, two] = held;
    // It is behind the entry of the process, for which the next waiter has it now.
    release(two);
    let second = waiters[1].gets();
    release(handed);
    assert!(waiters[2].has().is_none());
    release(second);
    assert_eq!(other.gets().permits(), 2);
}

#[test]
fn what_was_handed_off_without_a_reply_is_taken_back() {
    const ALL: u8 = 0;
    const NO_REPLY: u8 = 1;
    const SILENT: u8 = 2;
    let clock = Frozen::clock();
    let the_clock: Arc<dyn Clock> = Arc::<Frozen>::clone(&clock);
    let state = Arc::new(AtomicU8::new(ALL));
    let its = Arc::clone(&state);
    let run = move |server: &dyn Store, route: Route, ops: &[Op<'_>]| -> Replies {
        let writes = matches!(ops[0], Op::CompareAndSet { .. });
        match its.load(Ordering::SeqCst) {
            ALL => server.run(route, ops),
            NO_REPLY if !writes => server.run(route, ops),
            NO_REPLY => {
                its.store(SILENT, Ordering::SeqCst);
                let _ = server.run(route, ops);
                Err(lost())
            }
            _ => Err(lost()),
        }
    };
    let (client, witness): (Client, Client) = on_memory(&the_clock, run);
    let semaphore = client.semaphore("s", 1, LEASE).unwrap();
    let mut held = semaphore.acquire().unwrap();
    let waiter = in_line(&semaphore);
    state.store(NO_REPLY, Ordering::SeqCst);
    assert!(held.release().is_err());
    let holders = || witness.semaphore("s", 1, LEASE).unwrap().status().unwrap().unwrap().holders;
    let token = holders()[0].token;
    assert_ne!(token, held.token(), "it was handed off, and nobody knows");
    assert!(waiter.has().is_none());
    state.store(ALL, Ordering::SeqCst);
    // The next contact with the server takes it off, and wakes the waiter.
    release_lock(&client);
    let permit = waiter.gets();
    assert_safe!(permit.token() != token, "it may be taken off yet");
    assert_eq!(holders().iter().map(|it| it.token).collect::<Vec<_>>(), [permit.token()]);
    release(permit);
}

fn release_lock(client: &Client) {
    drop(client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap());
}

#[test]
fn a_wake_up_that_comes_during_a_hand_off_is_for_the_next_in_line() {
    let bench = Bench::new();
    let store = connect(&bench.server);
    let others = Arc::new(Mutex::new(None::<Permit>));
    let its = Arc::clone(&others);
    let store = intercepted(store, move |server, route, ops| {
        let replies = server.run(route, ops);
        let is_put =
            matches!(ops[0], Op::CompareAndSet { key, .. } if key.as_str() == "semaphore:s");
        if is_put && let Some(permit) = its.lock().unwrap().take() {
            // The waiter at the head of the line is woken for this one, and is handed the other.
            release(permit);
        }
        replies
    });
    let ours = Client::with_store(store, Frozen::clock()).semaphore("s", 2, LEASE).unwrap();
    let (held, other) = (ours.acquire().unwrap(), bench.semaphore(2).acquire().unwrap());
    let waiters = [in_line(&ours), in_line(&ours)];
    *others.lock().unwrap() = Some(other);
    release(held);
    let permits = waiters.each_ref().map(InLine::gets);
    assert!(others.lock().unwrap().is_none());
    permits.into_iter().for_each(release);
}

#[test]
fn permits_that_are_released_together_are_handed_off_together() {
    let bench = Bench::new();
    let semaphore = bench.frozen(5);
    let all = Request { permits: 5, ..Request::default() };
    let held = semaphore.acquire_with(all, &Wait::NEVER).unwrap().done().unwrap();
    let waiters = [(); 5].map(|()| in_line(&semaphore));
    let before = bench.server.commands();
    release(held);
    let permits = waiters.each_ref().map(InLine::gets);
    let commands = bench.server.commands() - before;
    // One after the other, they take some ten commands each.
    assert!(commands < 20, "{commands} commands");
    permits.into_iter().for_each(release);
}
