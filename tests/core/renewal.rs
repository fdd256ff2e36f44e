//! Leases that are renewed: for as long as they are wanted, never longer, and their holders are
//! notified when they end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::store::memcached;
use memlock_core::store::memory::Memory;
use memlock_core::store::{self, Failure, Op, Reply, Route, Store};
use memlock_core::{
    Client, Error, ErrorKind, Extension, Loss, Notice, Release, RenewOptions, Renewal, Request,
    Wait,
};
use memlock_tests::assert_safe_eq;
use memlock_tests::frozen::Frozen;
use memlock_tests::intercepted::{Replies, intercepted};
use memlock_tests::launch::until;
use memlock_tests::proxy::{Fault, Match, Proxy};
use memlock_tests::server::Memcached;
use memlock_tests::stopwatch::Stopwatch;

const SECOND: Duration = Duration::from_secs(1);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn telling(max_hold: Option<Duration>) -> (RenewOptions, Receiver<Notice>) {
    let (tell, told) = mpsc::channel();
    (
        RenewOptions { max_hold, on_notice: Some(Box::new(move |notice| _ = tell.send(notice))) },
        told,
    )
}

fn kept(client: &Client, name: &str, lease: Duration) -> (Renewal, Receiver<Notice>) {
    let (renew, told) = telling(None);
    (client.mutex(name, lease).unwrap().lock().unwrap().renew(renew).unwrap(), told)
}

/// Takes its time over the renewer's first step, and counts what the renewer writes.
struct Slow {
    /// How long that takes, and what is answered then, if it is not the truth.
    first: Mutex<Option<(Duration, Option<Reply>)>>,
    /// The first step also waits until this is free.
    gate: Mutex<()>,
    written: AtomicUsize,
    /// Whether other threads than the renewer's get no answer.
    refuses: AtomicBool,
}

impl Slow {
    fn run(&self, inner: &dyn Store, route: Route, ops: &[Op<'_>]) -> Replies {
        if thread::current().name() != Some("memlock-renewer") {
            let error = Error::new(ErrorKind::Unreachable, "It is away.");
            let refuses = self.refuses.load(Ordering::SeqCst);
            return if refuses {
                Err(Failure { error, sent: false })
            } else {
                inner.run(route, ops)
            };
        }
        let writes = ops.iter().filter(|op| matches!(op, Op::CompareAndSet { .. })).count();
        self.written.fetch_add(writes, Ordering::SeqCst);
        let first = self.first.lock().unwrap().take();
        let Some((time, answer)) = first else { return inner.run(route, ops) };
        let replies = match answer {
            Some(answer) => Ok(vec![answer; ops.len()]),
            None => inner.run(route, ops),
        };
        thread::sleep(time);
        drop(self.gate.lock().unwrap());
        replies
    }
}

fn slow(time: Duration, answer: Option<Reply>) -> (Client, Arc<Slow>) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let inner = Memory::like(memcached::GUARANTEES, Arc::clone(&clock));
    let (first, gate) = (Mutex::new(Some((time, answer))), Mutex::new(()));
    let (written, refuses) = (AtomicUsize::new(0), AtomicBool::new(false));
    let slow = Arc::new(Slow { first, gate, written, refuses });
    let server = Arc::clone(&slow);
    let store =
        intercepted(Arc::new(inner), move |inner, route, ops| server.run(inner, route, ops));
    (Client::with_store(store, clock), slow)
}

#[test]
fn a_lock_is_kept_beyond_its_lease_and_gone_when_it_is_released() {
    let server = Memcached::start();
    let (client, other) =
        (Client::connect(&server.url()).unwrap(), Client::connect(&server.url()).unwrap());
    let (kept, told) = kept(&client, "m", 3 * SECOND);
    let waited = other.mutex("m", 30 * SECOND).unwrap().lock_for(7 * SECOND).unwrap();
    assert!(waited.is_none() && kept.is_held() && kept.check().unwrap());
    assert_eq!(kept.release().unwrap(), Release::Released);
    assert_eq!(kept.release().unwrap(), Release::NotHeld);
    assert!(!kept.is_held() && kept.lost().is_none() && told.try_recv().is_err());
    assert!(other.mutex("m", 30 * SECOND).unwrap().try_lock().unwrap().is_some());
}

#[test]
fn what_is_kept_late_is_renewed_before_its_lease_ends() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let lock = client.mutex("m", 6 * SECOND).unwrap().lock().unwrap();
    thread::sleep(Duration::from_millis(4500));
    let kept = lock.renew(RenewOptions::default()).unwrap();
    assert_eq!(kept.wait_lost(2 * SECOND), None);
    assert!(kept.is_held());
}

#[test]
fn its_longest_time_ends_in_the_course_of_a_renewal_and_its_holder_is_warned() {
    let (client, _) = slow(Duration::from_millis(800), None);
    let (renew, told) = telling(Some(Duration::from_millis(1700)));
    let kept = client.mutex("m", 4 * SECOND).unwrap().lock().unwrap().renew(renew).unwrap();
    assert!(matches!(told.recv_timeout(PATIENCE).unwrap(), Notice::AtRisk(left) if left > SECOND));
    assert_eq!(kept.wait_lost(PATIENCE), Some(Loss::MaxHold));
}

#[test]
fn a_renewal_is_not_tried_again_after_the_longest_time() {
    let (client, slow) = slow(Duration::from_millis(800), Some(Reply::VersionMismatch));
    let (renew, told) = telling(Some(Duration::from_millis(1300)));
    let kept = client.mutex("m", 3 * SECOND).unwrap().lock().unwrap().renew(renew).unwrap();
    assert!(matches!(told.recv_timeout(PATIENCE).unwrap(), Notice::AtRisk(_)));
    assert_eq!(kept.wait_lost(PATIENCE), Some(Loss::MaxHold));
    assert_eq!(slow.written.load(Ordering::SeqCst), 1);
}

#[test]
fn what_is_abandoned_in_the_course_of_a_renewal_is_not_renewed() {
    let (client, slow) = slow(Duration::ZERO, None);
    let semaphore = client.semaphore("s", 1, SECOND).unwrap();
    let gate = slow.gate.lock().unwrap();
    let kept = semaphore.acquire().unwrap().renew(RenewOptions::default()).unwrap();
    // It looks first, and would write then.
    until("it has looked", || slow.first.lock().unwrap().is_none());
    kept.abandon();
    drop(gate);
    thread::sleep(SECOND);
    assert_eq!(slow.written.load(Ordering::SeqCst), 0);
}

#[test]
fn what_could_not_be_released_in_the_course_of_a_renewal_is_not_renewed() {
    let (client, slow) = slow(Duration::ZERO, None);
    let semaphore = client.semaphore("s", 1, SECOND).unwrap();
    let gate = slow.gate.lock().unwrap();
    let kept = semaphore.acquire().unwrap().renew(RenewOptions::default()).unwrap();
    // It looks first, and would write then.
    until("it has looked", || slow.first.lock().unwrap().is_none());
    slow.refuses.store(true, Ordering::SeqCst);
    assert_eq!(kept.release().unwrap_err().kind(), ErrorKind::Unreachable);
    slow.refuses.store(false, Ordering::SeqCst);
    drop(gate);
    thread::sleep(SECOND);
    assert_eq!(slow.written.load(Ordering::SeqCst), 0);
}

#[test]
fn permits_are_kept_and_those_of_one_semaphore_together() {
    let server = Memcached::start();
    let (client, other) =
        (Client::connect(&server.url()).unwrap(), Client::connect(&server.url()).unwrap());
    let semaphore = client.semaphore("s", 5, 3 * SECOND).unwrap();
    let take = |permits| {
        let request = Request { permits, ..Request::default() };
        semaphore.acquire_with(request, &Wait::NEVER).unwrap().done().unwrap()
    };
    let kept = [take(2), take(3)].map(|permit| permit.renew(RenewOptions::default()).unwrap());
    assert!(other.semaphore("s", 5, SECOND).unwrap().acquire_for(7 * SECOND).unwrap().is_none());
    assert!(
        kept.iter().all(|kept| kept.is_held() && kept.check().unwrap() && kept.fence().is_none())
    );
    assert!(kept.iter().all(|kept| kept.release().unwrap() == Release::Released));
    assert_eq!(semaphore.status().unwrap().unwrap().available, 5);
}

#[test]
fn who_holds_it_is_told_of_the_danger_and_then_of_the_loss() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let (kept, told) = kept(&client, "m", 4 * SECOND);
    server.kill();
    let Notice::AtRisk(left) = told.recv_timeout(PATIENCE).unwrap() else { panic!("not warned") };
    assert!(left > Duration::ZERO && left <= 2 * SECOND && kept.is_held(), "{left:?}");
    assert_eq!(kept.wait_lost(PATIENCE), Some(Loss::Expired));
    assert!(!kept.is_held());
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Notice::Lost(Loss::Expired));
    assert!(told.recv_timeout(SECOND).is_err(), "it is told once");
}

#[test]
fn an_outage_that_ends_in_time_costs_nothing() {
    let server = Memcached::start();
    let proxy = Proxy::start(server.address());
    let client = Client::connect(&format!("{}?io_timeout=300ms", proxy.url())).unwrap();
    let (kept, told) = kept(&client, "m", 6 * SECOND);
    for fault in [Fault::SwallowReply, Fault::CutAfterRequest, Fault::DropRequest] {
        let hits = proxy.hits();
        proxy.inject(Match::Swapping, fault.clone());
        assert!(proxy.wait_for_hits(hits + 1, PATIENCE), "{fault:?}");
        let renewed = Instant::now();
        while kept.remaining() < 5 * SECOND {
            assert!(renewed.elapsed() < PATIENCE && kept.is_held(), "{fault:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(kept.check().unwrap() && told.try_recv().is_err());
    assert_eq!(kept.release().unwrap(), Release::Released);
    assert!(server.plain().get("lock:m").is_none());
}

#[test]
fn what_was_taken_away_is_not_taken_back() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let (by_look, _told) = kept(&client, "look", 30 * SECOND);
    server.plain().set("lock:look", "another's", 0);
    assert!(by_look.is_held(), "nobody has looked yet");
    assert!(!by_look.check().unwrap());
    assert_eq!((by_look.is_held(), by_look.lost()), (false, Some(Loss::Gone)));
    assert_eq!(by_look.release().unwrap(), Release::Lost);

    let (by_renewal, told) = kept(&client, "renewal", 2 * SECOND);
    let permit = client.semaphore("s", 1, 2 * SECOND).unwrap().acquire().unwrap();
    let permit = permit.renew(RenewOptions::default()).unwrap();
    server.plain().set("lock:renewal", "another's", 0);
    server.plain().delete("semaphore:s");
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Notice::Lost(Loss::Gone));
    assert_eq!(permit.wait_lost(PATIENCE), Some(Loss::Gone));
    assert_safe_eq!(
        server.plain().get("lock:renewal").unwrap(),
        b"another's",
        "another holder's lock"
    );
    drop((by_renewal, permit));
    assert_safe_eq!(
        server.plain().get("lock:look").unwrap(),
        b"another's",
        "another holder's lock"
    );
}

#[test]
fn a_program_that_hangs_does_not_hold_it_for_ever() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let (renew, told) = telling(Some(3 * SECOND));
    let (began, watch) = (Instant::now(), Stopwatch::start());
    let lease = 2 * SECOND;
    let kept = client.mutex("m", lease).unwrap().lock().unwrap().renew(renew).unwrap();
    assert!(matches!(told.recv_timeout(PATIENCE).unwrap(), Notice::AtRisk(left) if left <= lease));
    assert!(began.elapsed() > Duration::from_millis(2900));
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Notice::Lost(Loss::MaxHold));
    assert!(watch.elapsed() < 6 * SECOND && !kept.is_held());
    let next = Client::connect(&server.url()).unwrap().mutex("m", 30 * SECOND).unwrap();
    assert!(next.lock_for(4 * SECOND).unwrap().is_some());
}

#[test]
fn a_waiter_is_woken_although_the_lease_was_renewed_meanwhile() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let (kept, _told) = kept(&client, "m", 2 * SECOND);
    // The waiter's clock stands still: only a wake-up message can wake it.
    let store =
        store::schemes::connect(&server.url(), &(Arc::new(SystemClock) as Arc<dyn Clock>)).unwrap();
    let other = Client::with_store(store, Frozen::clock());
    let (done, got) = mpsc::channel();
    thread::spawn(move || {
        let lock = other.mutex("m", 30 * SECOND).unwrap().lock().unwrap();
        // When the test has failed, the channel has no receiver.
        let _ = done.send(lock);
    });
    until("the other waits", || server.plain().get("lock:m%wait").is_some());
    // The mark tells the holder that there are waiters. The next renewal must keep it.
    let record = || server.plain().get("lock:m").unwrap();
    until("the lock is marked", || record().ends_with(b" rings"));
    let version = || server.plain().gets("lock:m").unwrap().2;
    let marked = version();
    while version() == marked {
        assert!(kept.is_held());
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(kept.release().unwrap(), Release::Released);
    let next = got.recv_timeout(PATIENCE).expect("it was not woken");
    drop(next);
}

#[test]
fn a_loss_is_reported_by_the_renewal_whatever_finds_it() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let (tell, told) = mpsc::channel();
    let tell = move |notice| _ = tell.send((notice, thread::current().name().map(str::to_owned)));
    let renew = RenewOptions { max_hold: None, on_notice: Some(Box::new(tell)) };
    let kept = client.mutex("m", 30 * SECOND).unwrap().lock().unwrap().renew(renew).unwrap();
    server.plain().set("lock:m", "another's", 0);
    assert!(!kept.check().unwrap());
    let (notice, thread) = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!((notice, thread.as_deref()), (Notice::Lost(Loss::Gone), Some("memlock-renewer")));
}

#[test]
fn a_server_that_stands_still_holds_up_neither_the_news_nor_the_answer() {
    let server = Memcached::start();
    let client = Client::connect(&format!("{}?io_timeout=2s", server.url())).unwrap();
    let locks = ["a", "b", "c"].map(|name| kept(&client, name, 2 * SECOND));
    server.pause();
    while locks.iter().any(|(kept, _)| kept.is_held()) {
        thread::sleep(Duration::from_millis(1));
    }
    let over = Stopwatch::start();
    assert!(locks.iter().all(|(kept, _)| kept.lost() == Some(Loss::Expired)));
    assert!(over.elapsed() < SECOND, "to ask is no I/O");
    // All are notified before the renewer asks the server about any.
    let first = Stopwatch::start();
    for (_, told) in &locks {
        while !matches!(told.recv_timeout(PATIENCE).unwrap(), Notice::Lost(Loss::Expired)) {}
    }
    assert!(first.elapsed() < Duration::from_millis(2500), "{:?}", first.elapsed());
    // A caller that is faster than the renewer, which cleans up next, asks the server on its own.
    // By then the renewer is through with the others.
    let answer = locks.iter().find_map(|(kept, _)| {
        let asked = Stopwatch::start();
        kept.release().ok().map(|released| (released, asked.elapsed()))
    });
    assert!(matches!(answer, Some((Release::Lost, time)) if time < SECOND), "{answer:?}");
    server.resume();
}

#[test]
fn a_silent_server_costs_nobody_what_another_one_keeps() {
    const LEASE: Duration = Duration::from_secs(2);
    let (silent, other) = (Memcached::start(), Memcached::start());
    let url = format!("memcached://{},{}?io_timeout=500ms", silent.address(), other.address());
    let client = Client::connect(&url).unwrap();
    let (mut lost, mut held) = (Vec::new(), Vec::new());
    let mut sort = |key: String, kept: Renewal| {
        if silent.plain().get(&key).is_some() { lost.push(kept) } else { held.push(kept) }
    };
    for number in 0..20 {
        let lock = client.mutex(format!("{number}"), LEASE).unwrap().lock().unwrap();
        sort(format!("lock:{number}"), lock.renew(RenewOptions::default()).unwrap());
        let permit = client.semaphore(format!("{number}"), 1, LEASE).unwrap().acquire().unwrap();
        sort(format!("semaphore:{number}"), permit.renew(RenewOptions::default()).unwrap());
    }
    silent.pause();
    assert!(lost.len() > 6 && held.len() > 6, "{} and {}: each has some", lost.len(), held.len());
    assert!(lost.iter().all(|kept| kept.wait_lost(PATIENCE) == Some(Loss::Expired)));
    // As long as it would take to ask for each of them on its own.
    thread::sleep(3 * LEASE);
    assert!(held.iter().all(|kept| kept.is_held() && kept.lost().is_none()));
    silent.resume();
}

#[test]
fn what_a_full_server_refuses_to_renew_costs_nobody_else_a_lease() {
    for many in [1, 100] {
        // In each round the renewer isolates the refused leases for at most a quarter of a second.
        // If the machine did not run it for so long, nothing is shown: try again. So it does in small
        // pieces, which the stopwatch does not see, on a machine that is busy.
        let mut tries = 0;
        let held = loop {
            let (began, watch) = (Instant::now(), Stopwatch::start());
            let held = are_kept_beside_refused(many);
            tries += 1;
            let ran = watch.elapsed() > began.elapsed() * 9 / 10;
            if held || tries == 10 || tries >= 3 && ran {
                break held;
            }
        };
        assert!(held, "beside {many}, {tries} times");
    }
}

/// Whether locks and permits stay held beside `many` locks that a full server refuses to renew.
fn are_kept_beside_refused(many: usize) -> bool {
    const LEASE: Duration = Duration::from_secs(3);
    // Of a full memcached each class of sizes is full by itself.
    let server = Memcached::with_args(&["-M", "-m", "2", "-o", "no_slab_reassign"]);
    let client = Client::connect(&server.url()).unwrap();
    let kept = |name: &str| kept(&client, name, LEASE).0;
    let long = |number: usize| format!("{number:0150}");
    let refused: Vec<Renewal> = (0..many).map(|number| kept(&long(number))).collect();
    let mut others: Vec<Renewal> = (0..many / 20).map(|number| kept(&number.to_string())).collect();
    let permit = client.semaphore("s", 1, LEASE).unwrap().acquire().unwrap();
    others.push(permit.renew(RenewOptions::default()).unwrap());
    let mut plain = server.plain();
    let key = format!("lock:{}", long(0));
    let (length, width) = (plain.get(&key).unwrap().len(), key.len());
    let fill = |number| format!("set {number:0width$} 0 0 {length}\r\n{}", "x".repeat(length));
    let answer = (0..).map(|number| plain.command(&fill(number))).find(|answer| answer != "STORED");
    assert!(answer.unwrap().contains("out of memory"));
    assert!(refused.iter().all(|kept| kept.wait_lost(PATIENCE) == Some(Loss::Expired)));
    thread::sleep(LEASE);
    others.iter().all(|kept| kept.is_held() && kept.lost().is_none())
}

#[test]
fn a_loss_that_is_found_while_the_keeper_cleans_up_another_is_told_too() {
    let (client, slow) = slow(Duration::from_millis(500), None);
    let both = ["a", "b"].map(|name| kept(&client, name, 30 * SECOND));
    for (name, (kept, _)) in ["a", "b"].iter().zip(&both) {
        let mutex = client.mutex(name, SECOND).unwrap();
        assert!(mutex.force_unlock(&mutex.owner().unwrap().unwrap().token()).unwrap());
        assert!(!kept.check().unwrap());
        // Until it is at the first one.
        until("it has looked", || slow.first.lock().unwrap().is_none());
    }
    for (_, told) in &both {
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Notice::Lost(Loss::Gone));
    }
}

#[test]
fn who_asks_a_silent_server_whether_it_is_held_holds_nobody_up() {
    let server = Memcached::start();
    let client = Client::connect(&format!("{}?io_timeout=2s", server.url())).unwrap();
    let (kept, _told) = kept(&client, "m", 30 * SECOND);
    server.pause();
    thread::scope(|scope| {
        let asking = scope.spawn(|| kept.check());
        thread::sleep(Duration::from_millis(200));
        let looked = Stopwatch::start();
        assert!(kept.is_held() && kept.lost().is_none());
        assert!(looked.elapsed() < SECOND, "{:?}: to look is no I/O", looked.elapsed());
        assert!(!asking.is_finished());
        server.resume();
        assert!(asking.join().unwrap().unwrap());
    });
}

#[test]
fn a_wait_for_the_loss_ends_with_the_release() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let (kept, _told) = kept(&client, "m", 30 * SECOND);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| kept.wait_lost(PATIENCE));
        thread::sleep(Duration::from_millis(50));
        let released = Stopwatch::start();
        assert_eq!(kept.release().unwrap(), Release::Released);
        assert_eq!(waiting.join().unwrap(), None);
        assert!(released.elapsed() < 5 * SECOND);
    });
}

#[test]
fn all_that_was_abandoned_is_taken_off_at_the_next_contact_for_another_lock() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let names = || (0..6).map(|number| format!("m{number}"));
    let locks = names().map(|name| client.mutex(&name, 30 * SECOND).unwrap().lock().unwrap());
    let (locks, permit) = (
        locks.collect::<Vec<_>>(),
        client.semaphore("s", 1, 30 * SECOND).unwrap().acquire().unwrap(),
    );
    locks.into_iter().for_each(memlock_core::Lock::abandon);
    permit.abandon();
    drop(client.mutex("other", SECOND).unwrap().lock().unwrap());
    let left: Vec<String> =
        names().filter(|name| server.plain().get(&format!("lock:{name}")).is_some()).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(client.semaphore("s", 1, SECOND).unwrap().status().unwrap().unwrap().available, 1);
}

#[test]
fn what_was_abandoned_is_taken_off_at_the_next_contact() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let (kept, told) = kept(&client, "m", 30 * SECOND);
    kept.abandon();
    drop(client.mutex("other", SECOND).unwrap().lock().unwrap());
    let began = Instant::now();
    while server.plain().get("lock:m").is_some() {
        assert!(began.elapsed() < PATIENCE);
        drop(client.mutex("other", SECOND).unwrap().lock().unwrap());
    }
    assert!(told.try_recv().is_err());
}

/// The holder would rely on it for the lease of the extension, and the server would drop it much
/// sooner.
#[test]
fn what_was_extended_is_kept_for_the_lease_of_the_extension() {
    const SHORT: Duration = Duration::from_millis(1500);
    const LONG: Duration = Duration::from_secs(60);
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let mutex = client.mutex("m", SHORT).unwrap();
    let mut lock = mutex.lock().unwrap();
    assert_eq!(lock.extend(LONG).unwrap(), Extension::Extended);
    let semaphore = client.semaphore("s", 1, SHORT).unwrap();
    let mut permit = semaphore.acquire().unwrap();
    assert_eq!(permit.extend(LONG).unwrap(), Extension::Extended);
    let (renew, _told) = telling(None);
    let (lock, permit) =
        (lock.renew(renew).unwrap(), permit.renew(RenewOptions::default()).unwrap());
    // A short lease would be renewed several times by then.
    thread::sleep(SHORT + SECOND / 2);
    let kept = mutex.owner().unwrap().unwrap().remaining.unwrap();
    assert!(lock.is_held() && lock.remaining() <= kept, "{:?} of {kept:?}", lock.remaining());
    let kept = semaphore.status().unwrap().unwrap().holders[0].remaining;
    assert!(permit.is_held() && permit.remaining() <= kept, "{:?} of {kept:?}", permit.remaining());
    assert_eq!(lock.release().unwrap(), Release::Released);
    assert_eq!(permit.release().unwrap(), Release::Released);
}
