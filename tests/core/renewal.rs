//! Leases that are renewed: what `tests/conformance/renewal.rs`, on real servers and clocks, cannot
//! bring about. Most of this is in a world with a clock of its own, where the test decides what
//! becomes of each step of the renewal thread.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use memlock_core::clock::Clock;
use memlock_core::store::{Op, Reply, Store};
use memlock_core::{
    Client, ErrorKind, Extension, Guard, Lock, Loss, Notice, Release, RenewOptions, Renewal,
    Request, Wait,
};
use memlock_tests::frozen::Frozen;
use memlock_tests::intercepted::Replies;
use memlock_tests::launch::until;
use memlock_tests::proxy::{Fault, Proxy};
use memlock_tests::server::Memcached;
use memlock_tests::url;

use crate::bench::{KINDS, Kind, away, lost, on_memory};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);
/// A lease is due by then.
const THIRD: Duration = Duration::from_secs(11);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Carries out the renewal thread's step of that number; the last argument runs it on the server.
type Fate = dyn Fn(usize, &dyn Fn() -> Replies) -> Replies + Send + Sync;

/// A store in memory, and a clock that stands still until the test advances it.
struct World {
    clock: Arc<Frozen>,
    client: Client,
    witness: Client,
    steps: Arc<Steps>,
}

struct Steps {
    fate: Mutex<Arc<Fate>>,
    begun: AtomicUsize,
    /// How many records the renewal thread has written, or tried to.
    written: AtomicUsize,
    /// Whether requests of all other threads are lost.
    refuses_others: AtomicBool,
}

impl World {
    fn new() -> World {
        let clock = Frozen::clock();
        let the_clock: Arc<dyn Clock> = Arc::<Frozen>::clone(&clock);
        let steps = Arc::new(Steps {
            fate: Mutex::new(Arc::new(|_, run| run())),
            begun: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
            refuses_others: AtomicBool::new(false),
        });
        let its = Arc::clone(&steps);
        let run = move |server: &dyn Store, route, ops: &[Op<'_>]| {
            if thread::current().name() != Some("memlock-renewer") {
                let refuses = its.refuses_others.load(Ordering::SeqCst);
                return if refuses { Err(away()) } else { server.run(route, ops) };
            }
            let writes = ops.iter().filter(|op| matches!(op, Op::CompareAndSet { .. })).count();
            its.written.fetch_add(writes, Ordering::SeqCst);
            let fate = Arc::clone(&its.fate.lock().unwrap());
            fate(its.begun.fetch_add(1, Ordering::SeqCst), &|| server.run(route, ops))
        };
        let (client, witness) = on_memory(&the_clock, run);
        World { clock, client, witness, steps }
    }

    /// Counts the steps anew, and decides about them.
    fn each_step(
        &self,
        fate: impl Fn(usize, &dyn Fn() -> Replies) -> Replies + Send + Sync + 'static,
    ) {
        *self.steps.fate.lock().unwrap() = Arc::new(fate);
        self.steps.begun.store(0, Ordering::SeqCst);
    }

    /// Has each step take place, and end when the gate is open.
    fn each_step_waits_for(&self, gate: &Arc<Mutex<()>>) {
        let gate = Arc::clone(gate);
        self.each_step(move |_, run| {
            let replies = run();
            drop(gate.lock());
            replies
        });
    }

    #[track_caller]
    fn is_at_step(&self, number: usize) {
        until("it is at that step", || self.steps.begun.load(Ordering::SeqCst) >= number);
    }

    /// Until the renewal thread has come to the end of the round that it is in.
    fn ends_its_round(&self) {
        let (lost, notices) = self.renewed("lost", None);
        force(self, "lost");
        assert!(!lost.check().unwrap());
        assert_eq!(notice(&notices), Notice::Lost(Loss::Gone));
    }

    fn written(&self) -> usize {
        self.steps.written.load(Ordering::SeqCst)
    }

    /// Lets time pass, which the renewal thread notices.
    fn passes(&self, time: Duration) {
        self.clock.advance(time);
        self.is_looked_at();
    }

    /// A lease that begins to be renewed has the renewal thread inspect all leases.
    fn is_looked_at(&self) {
        let other = Kind::Lock.hold(&self.client, "other", 1000 * LEASE);
        assert_eq!(renewed(other).release().unwrap(), Release::Released);
    }

    fn renewed(&self, name: &str, max_hold: Option<Duration>) -> (Renewal, Receiver<Notice>) {
        let (tell, notices) = mpsc::channel();
        let tell = Box::new(move |notice| _ = tell.send(notice));
        let renew = RenewOptions { max_hold, on_notice: Some(tell) };
        (Kind::Lock.hold(&self.client, name, LEASE).renew(renew).unwrap(), notices)
    }
}

fn renewed(held: Box<dyn Guard>) -> Renewal {
    held.renew(RenewOptions::default()).unwrap()
}

fn notice(notices: &Receiver<Notice>) -> Notice {
    notices.recv_timeout(PATIENCE).expect("nothing is reported")
}

#[test]
fn permits_of_one_semaphore_are_renewed_together() {
    let world = World::new();
    let semaphore = world.client.semaphore("s", 5, LEASE).unwrap();
    let take = |permits| {
        let request = Request { permits, ..Request::default() };
        semaphore.acquire_with(request, &Wait::NEVER).unwrap().done().unwrap()
    };
    let renewals = [take(2), take(3)].map(|permit| renewed(Box::new(permit)));
    world.passes(THIRD);
    let is_renewed = |renewal: &Renewal| renewal.remaining() > LEASE - SECOND;
    until("both are renewed", || renewals.iter().all(is_renewed));
    assert_eq!(world.written(), 1);
    assert!(renewals.iter().all(|renewal| renewal.is_held() && renewal.fence().is_none()));
    for renewal in renewals {
        assert_eq!(renewal.release().unwrap(), Release::Released);
        assert_eq!(renewal.release().unwrap(), Release::NotHeld);
        assert!(!renewal.is_held() && renewal.lost().is_none());
    }
}

/// The holder would rely on it for the lease of the extension, and the server would drop it much
/// sooner.
#[test]
fn what_was_extended_is_renewed_for_the_lease_of_the_extension() {
    for kind in KINDS {
        let world = World::new();
        let mut held = kind.hold(&world.client, "m", LEASE);
        assert_eq!(held.extend(10 * LEASE).unwrap(), Extension::Extended);
        let renewal = renewed(held);
        world.passes(THIRD);
        assert!(renewal.remaining() < 10 * LEASE - 10 * SECOND, "it is not due yet");
        world.passes(10 * THIRD);
        until("it is renewed", || renewal.remaining() > 10 * LEASE - SECOND);
        world.passes(9 * LEASE);
        until("it is renewed again", || renewal.remaining() > 9 * LEASE);
        assert!(!kind.is_free(&world.witness, "m"), "{kind:?}");
    }
}

#[test]
fn the_longest_time_ends_in_the_course_of_a_renewal_and_its_holder_is_warned() {
    let (world, gate) = (World::new(), Arc::default());
    let closed = Mutex::lock(&gate).unwrap();
    world.each_step_waits_for(&gate);
    let (renewal, notices) = world.renewed("m", Some(THIRD + SECOND));
    world.passes(THIRD);
    world.is_at_step(1);
    world.clock.advance(2 * SECOND);
    drop(closed);
    assert!(matches!(notice(&notices), Notice::AtRisk(left) if left > LEASE / 2));
    world.passes(LEASE);
    assert_eq!(renewal.wait_lost(PATIENCE), Some(Loss::MaxHold));
}

#[test]
fn a_renewal_is_not_tried_again_after_the_longest_time() {
    let (world, gate) = (World::new(), Arc::<Mutex<()>>::default());
    let (closed, its) = (gate.lock().unwrap(), Arc::clone(&gate));
    world.each_step(move |_, _| {
        drop(its.lock());
        Ok(vec![Reply::VersionMismatch])
    });
    let (renewal, notices) = world.renewed("m", Some(THIRD + SECOND));
    world.passes(THIRD);
    world.is_at_step(1);
    world.clock.advance(2 * SECOND);
    drop(closed);
    assert!(matches!(notice(&notices), Notice::AtRisk(_)));
    world.passes(LEASE);
    assert_eq!(renewal.wait_lost(PATIENCE), Some(Loss::MaxHold));
    assert_eq!(world.written(), 1);
}

#[test]
fn what_is_let_go_in_the_course_of_a_renewal_is_not_renewed() {
    for abandoned in [true, false] {
        let (world, gate) = (World::new(), Arc::default());
        let closed = Mutex::lock(&gate).unwrap();
        world.each_step_waits_for(&gate);
        let renewal = renewed(Kind::Permit.hold(&world.client, "s", LEASE));
        // Others use it, so that it looks first, and would write then.
        let semaphore = world.witness.semaphore("s", 1, LEASE).unwrap();
        assert!(semaphore.resize(2).unwrap().is_some());
        world.passes(THIRD);
        world.is_at_step(1);
        let before = world.written();
        if abandoned {
            renewal.abandon();
        } else {
            // It could not be released.
            world.steps.refuses_others.store(true, Ordering::SeqCst);
            assert_eq!(renewal.release().unwrap_err().kind(), ErrorKind::Unreachable);
            world.steps.refuses_others.store(false, Ordering::SeqCst);
        }
        drop(closed);
        thread::sleep(Duration::from_millis(200));
        assert_eq!(world.written(), before);
    }
}

#[test]
fn the_risk_is_reported_and_then_the_loss_once() {
    let world = World::new();
    let (renewal, notices) = world.renewed("m", None);
    world.each_step(|_, _| Err(away()));
    world.passes(THIRD);
    world.is_at_step(1);
    assert!(notices.try_recv().is_err(), "there is time yet");
    world.passes(THIRD / 2);
    assert!(
        matches!(notice(&notices), Notice::AtRisk(left) if left <= LEASE / 2 && left > LEASE / 3)
    );
    assert!(renewal.is_held());
    world.passes(LEASE / 2);
    assert_eq!(notice(&notices), Notice::Lost(Loss::Expired));
    assert_eq!((renewal.is_held(), renewal.lost()), (false, Some(Loss::Expired)));
    world.is_looked_at();
    assert!(notices.try_recv().is_err());
}

#[test]
fn an_outage_that_ends_in_time_costs_nothing() {
    let fates: [&'static Fate; 3] =
        [&|_, _| Err(lost()), &|_, run| run().and(Err(lost())), &|_, _| Err(away())];
    for kind in KINDS {
        let world = World::new();
        let renewal = renewed(kind.hold(&world.client, "m", LEASE));
        for fate in fates {
            world.each_step(move |step, run| if step == 0 { fate(step, run) } else { run() });
            world.passes(THIRD);
            world.is_at_step(1);
            world.ends_its_round();
            // It is tried again by then.
            world.passes(SECOND);
            until("it is renewed", || renewal.remaining() > LEASE - SECOND);
        }
        assert!(renewal.check().unwrap() && renewal.lost().is_none());
        assert_eq!(renewal.release().unwrap(), Release::Released);
        assert!(kind.is_free(&world.witness, "m"));
    }
}

#[test]
fn a_renewal_that_was_held_up_makes_no_permit_live_longer_than_its_lease_explains() {
    let world = World::new();
    let renewal = renewed(Kind::Permit.hold(&world.client, "s", LEASE));
    // The server reads its clock late, as after connecting slowly or a stop of the process.
    let clock = Arc::clone(&world.clock);
    world.each_step(move |step, run| {
        if step == 0 {
            clock.advance(5 * SECOND / 2);
        }
        run()
    });
    world.passes(THIRD);
    until("it is renewed", || renewal.remaining() > LEASE - 5 * SECOND);
    let semaphore = world.witness.semaphore("s", 1, LEASE).unwrap();
    let holders = semaphore.status().unwrap().unwrap().holders;
    assert!(holders[0].remaining <= LEASE + 2 * SECOND, "{holders:?}");
}

#[test]
fn a_renewal_that_makes_the_lease_no_longer_does_not_end_the_danger() {
    let world = World::new();
    let (renewal, notices) = world.renewed("m", None);
    world.each_step(|_, _| Err(away()));
    world.passes(THIRD);
    world.is_at_step(1);
    world.passes(THIRD / 2);
    assert!(matches!(notice(&notices), Notice::AtRisk(_)));
    // The risk is reported before the lease is tried to be renewed.
    world.ends_its_round();
    let clock = Arc::clone(&world.clock);
    world.each_step(move |step, run| {
        let mut replies = run()?;
        match (step, &mut replies[..]) {
            // So late that the server may have stood still,
            (0, [Reply::Stored(_)]) => clock.advance(SECOND / 10),
            // and it has: by its clock there is hardly any time left.
            (1, [Reply::Value(item)]) => item.remaining = Some(4 * SECOND),
            _ => return Err(away()),
        }
        Ok(replies)
    });
    world.passes(2 * SECOND);
    world.is_at_step(2);
    world.passes(LEASE);
    assert_eq!(notice(&notices), Notice::Lost(Loss::Expired), "the risk is reported once");
    assert!(!renewal.is_held());
}

#[test]
fn a_loss_is_reported_by_the_renewal_thread_whatever_finds_it() {
    let world = World::new();
    let (tell, notices) = mpsc::channel();
    let tell = move |notice| _ = tell.send((notice, thread::current().name().map(str::to_owned)));
    let renew = RenewOptions { max_hold: None, on_notice: Some(Box::new(tell)) };
    let renewal = Kind::Lock.hold(&world.client, "m", LEASE).renew(renew).unwrap();
    force(&world, "m");
    assert!(!renewal.check().unwrap());
    let (notice, thread) = notices.recv_timeout(PATIENCE).unwrap();
    assert_eq!((notice, thread.as_deref()), (Notice::Lost(Loss::Gone), Some("memlock-renewer")));
}

fn force(world: &World, name: &str) {
    let mutex = world.witness.mutex(name, LEASE).unwrap();
    let token = mutex.owner().unwrap().unwrap().token();
    assert!(mutex.force_unlock(&token).unwrap());
}

#[test]
fn a_loss_that_is_found_while_another_is_cleaned_up_is_reported_too() {
    let (world, gate) = (World::new(), Arc::default());
    let closed = Mutex::lock(&gate).unwrap();
    world.each_step_waits_for(&gate);
    let both = ["a", "b"].map(|name| (name, world.renewed(name, None)));
    for (name, (renewal, _)) in &both {
        force(&world, name);
        assert!(!renewal.check().unwrap());
        world.is_at_step(1);
    }
    drop(closed);
    for (_, (_, notices)) in &both {
        assert_eq!(notice(notices), Notice::Lost(Loss::Gone));
    }
}

/// All are notified before the renewal thread asks the server about any, and while it does, a look
/// waits for no I/O.
#[test]
fn a_server_that_stands_still_holds_up_neither_the_news_nor_the_answer() {
    let (world, gate) = (World::new(), Arc::default());
    let all = ["a", "b", "c"].map(|name| world.renewed(name, None));
    world.each_step(|_, _| Err(away()));
    world.passes(THIRD);
    world.is_at_step(1);
    let closed = Mutex::lock(&gate).unwrap();
    world.each_step_waits_for(&gate);
    world.passes(LEASE);
    world.is_at_step(1);
    for (renewal, notices) in &all {
        let notices: Vec<Notice> = notices.try_iter().collect();
        assert!(notices.contains(&Notice::Lost(Loss::Expired)), "{notices:?}");
        assert_eq!((renewal.is_held(), renewal.lost()), (false, Some(Loss::Expired)));
    }
    // A caller that is faster than the renewal thread asks the server on its own.
    assert_eq!(all[2].0.release().unwrap(), Release::Lost);
    drop(closed);
}

#[test]
fn a_check_at_a_silent_server_blocks_no_other_thread() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let renewal = renewed(Kind::Lock.hold(&client, "m", LEASE * 10));
    server.pause();
    let (begins, begun) = mpsc::channel();
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            begins.send(()).unwrap();
            renewal.check()
        });
        begun.recv_timeout(PATIENCE).unwrap();
        thread::sleep(Duration::from_millis(50));
        // If it waited for the other one, that would have ended.
        assert!(renewal.is_held() && renewal.lost().is_none() && !asking.is_finished());
        server.resume();
        assert!(asking.join().unwrap().unwrap());
    });
}

#[test]
fn a_wait_for_the_loss_ends_with_the_release() {
    let world = World::new();
    let renewal = Arc::new(renewed(Kind::Lock.hold(&world.client, "m", LEASE)));
    let (done, ended) = mpsc::channel();
    let waiting = Arc::clone(&renewal);
    thread::spawn(move || _ = done.send(waiting.wait_lost(100 * PATIENCE)));
    thread::sleep(Duration::from_millis(50));
    assert_eq!(renewal.release().unwrap(), Release::Released);
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(None));
}

#[test]
fn all_that_was_abandoned_is_taken_off_at_the_next_contact_for_another_lock() {
    let world = World::new();
    let names: Vec<String> = (0..6).map(|number| format!("m{number}")).collect();
    let lock = |name: &String| world.client.mutex(name, LEASE).unwrap().lock().unwrap();
    names.iter().map(lock).for_each(Lock::abandon);
    Kind::Permit.hold(&world.client, "s", LEASE).abandon();
    let (renewal, notices) = world.renewed("renewed", None);
    renewal.abandon();
    until("all are taken off", || {
        drop(Kind::Lock.hold(&world.client, "other", LEASE));
        let is_free = |name: &String| Kind::Lock.is_free(&world.witness, name);
        names.iter().all(is_free)
            && is_free(&"renewed".to_owned())
            && Kind::Permit.is_free(&world.witness, "s")
    });
    assert!(notices.try_recv().is_err());
}

/// The renewal marks the record anew, with which the holder would forget that there are waiters.
#[test]
fn a_waiter_is_woken_although_the_lease_was_renewed_meanwhile() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let renewal = renewed(Kind::Lock.hold(&client, "m", 9 * SECOND));
    // The waiter's clock stands still: only a wake-up message can wake it.
    let other = Client::with_clock(&server.url(), Frozen::clock()).unwrap();
    let (done, got) = mpsc::channel();
    thread::spawn(move || {
        let lock = other.mutex("m", LEASE).unwrap().lock().unwrap();
        // When the test has failed, the channel has no receiver.
        let _ = done.send(lock);
    });
    // The mark tells the holder that there are waiters. The next renewal must keep it.
    let mut plain = server.plain();
    until("it is marked", || plain.get("lock:m").is_some_and(|record| record.ends_with(b" rings")));
    let marked = plain.gets("lock:m").unwrap().2;
    until("it is renewed", || plain.gets("lock:m").unwrap().2 != marked);
    assert_eq!(renewal.release().unwrap(), Release::Released);
    drop(got.recv_timeout(PATIENCE).expect("it was not woken"));
}

/// All are due at once, and no time passes in which anything would be tried again.
#[test]
fn a_silent_server_is_asked_once_for_all_and_costs_no_lease_of_another_server() {
    let servers = [Memcached::start(), Memcached::start()];
    let proxy = Proxy::start(servers[0].address());
    let url = format!("memcached://{},{}?io_timeout=10s", proxy.address(), servers[1].address());
    let clock = Frozen::clock();
    let client = Client::with_clock(&url, Arc::<Frozen>::clone(&clock)).unwrap();
    let (mut silent, mut other, mut later) = (Vec::new(), Vec::new(), None);
    for (number, kind) in (0..20).flat_map(|number| KINDS.map(|kind| (number, kind))) {
        let held = kind.hold(&client, &number.to_string(), LEASE);
        let key = if kind == Kind::Lock { "lock" } else { "semaphore" };
        if servers[0].plain().get(&format!("{key}:{number}")).is_some() {
            silent.push(renewed(held));
        } else if let Some(before) = later.replace(held) {
            other.push(renewed(before));
        }
    }
    assert!(silent.len() > 6 && other.len() > 6, "each has some");
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    proxy.decide(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Some(Fault::DropRequest)
    });
    clock.advance(THIRD);
    // The renewal thread begins a round.
    let _later = renewed(later.unwrap());
    until("the others are renewed", || other.iter().all(|one| one.remaining() > LEASE - SECOND));
    until("the silent one is asked", || asked.load(Ordering::SeqCst) > 0);
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked < 6, "{asked} requests in vain for {} leases", silent.len());
    assert!(silent.iter().all(|one| one.is_held() && one.remaining() < LEASE - SECOND));
    // Nothing waits for it any more.
    proxy.refuse(true);
}

/// All are due at once, as above.
#[test]
fn a_lease_that_the_url_refuses_costs_no_other_lease() {
    let server = Memcached::with_args(&["-o", "temporary_ttl=62,no_slab_reassign"]);
    let url = url::with(&server.url(), "evictions=refuse");
    let clock = Frozen::clock();
    let client = Client::with_clock(&url, Arc::<Frozen>::clone(&clock)).unwrap();
    let hold = |name: &str, lease| renewed(Kind::Lock.hold(&client, name, lease));
    let refused = hold("refused", 60 * SECOND);
    let others: Vec<_> = (0..9).map(|number| hold(&number.to_string(), 30 * SECOND)).collect();
    assert_eq!(server.plain().command("lru temp_ttl 40"), "OK");
    // Settings are read again before something is refused.
    let error = Kind::Lock.attempt(&client, "one more", 63 * SECOND).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    clock.advance(20 * SECOND);
    // The renewal thread begins a round.
    let _later = hold("later", 30 * SECOND);
    until("the others are renewed", || others.iter().all(|one| one.remaining() > 29 * SECOND));
    assert!(refused.is_held() && refused.remaining() <= 40 * SECOND);
}

#[test]
fn what_a_full_server_refuses_to_renew_costs_no_other_lease() {
    are_renewed_beside_refused(20, 9 * SECOND);
}

#[test]
#[ignore = "real time: make prove"]
fn very_many_that_a_full_server_refuses_to_renew_cost_no_other_lease() {
    are_renewed_beside_refused(100, 3 * SECOND);
}

/// Locks and permits are renewed beside so many locks that a full server refuses to renew.
fn are_renewed_beside_refused(many: usize, lease: Duration) {
    // Of a full memcached each class of sizes is full by itself.
    let server = Memcached::with_args(&["-M", "-m", "2", "-o", "no_slab_reassign"]);
    let client = Client::connect(&server.url()).unwrap();
    let lock = |name: &str| renewed(Kind::Lock.hold(&client, name, lease));
    let long = |number: usize| format!("{number:0150}");
    let refused: Vec<Renewal> = (0..many).map(|number| lock(&long(number))).collect();
    let others = ["1", "2", "3"].map(lock);
    let permit = renewed(Kind::Permit.hold(&client, "s", lease));
    let mut plain = server.plain();
    let key = format!("lock:{}", long(0));
    let (length, width) = (plain.get(&key).unwrap().len(), key.len());
    let fill = |number| format!("set {number:0width$} 0 0 {length}\r\n{}", "x".repeat(length));
    let answer = (0..).map(|number| plain.command(&fill(number))).find(|answer| answer != "STORED");
    assert!(answer.unwrap().contains("out of memory"));
    for _ in 0..2 {
        let mut version = |key: &str| plain.gets(key).map(|(_, _, version)| version);
        let keys = ["lock:1", "lock:2", "lock:3", "semaphore:s"];
        let before = keys.map(&mut version);
        let is_renewed = |(key, before): (&str, &Option<u64>)| {
            version(key).is_some_and(|now| Some(now) != *before)
        };
        let mut left: Vec<_> = keys.into_iter().zip(&before).collect();
        let mut is_renewed = is_renewed;
        until("all others are renewed", || {
            left.retain(|&one| !is_renewed(one));
            left.is_empty()
        });
    }
    assert!(others.iter().chain([&permit]).all(|renewal| renewal.lost().is_none()));
    let lost = refused.iter().filter(|renewal| renewal.wait_lost(PATIENCE) == Some(Loss::Expired));
    assert_eq!(lost.count(), many, "no room for them");
}
