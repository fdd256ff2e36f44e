//! Locks on members in this process that can be made to fail.

mod held_on;
mod late;
mod stopped;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::clock::SystemClock;
use crate::error::ErrorKind;
use crate::store::memory::Memory;
use crate::store::recovery::{Admitted, Guard};
use crate::{Client, Extension, Lock, Release};

const LEASE: Duration = Duration::from_secs(20);

/// A server that can be cut off.
#[derive(Debug)]
struct Member {
    store: Arc<Memory>,
    name: String,
    is_down: AtomicBool,
    loses_requests: AtomicBool,
    loses_replies: AtomicBool,
    /// From the request of this number on, replies are lost.
    loses_from: AtomicUsize,
    requests: AtomicUsize,
    /// It recovers in another life.
    abstains: AtomicBool,
    loses_adds: AtomicBool,
    /// By how many seconds its clock is ahead.
    ahead: AtomicUsize,
    /// By how many milliseconds its clock is late until it replies: what it stores ends too early.
    stale: AtomicUsize,
    /// How many milliseconds it takes to answer.
    slow: AtomicUsize,
}

impl Member {
    fn new(store: Arc<Memory>, name: String) -> Arc<Member> {
        Arc::new(Member {
            store,
            name,
            is_down: AtomicBool::new(false),
            loses_requests: AtomicBool::new(false),
            loses_replies: AtomicBool::new(false),
            loses_from: AtomicUsize::new(usize::MAX),
            requests: AtomicUsize::new(0),
            abstains: AtomicBool::new(false),
            loses_adds: AtomicBool::new(false),
            ahead: AtomicUsize::new(0),
            stale: AtomicUsize::new(0),
            slow: AtomicUsize::new(0),
        })
    }
}

/// The same for a lease that is shorter by this much.
fn ending_earlier(op: Op<'_>, by: Duration) -> Op<'_> {
    let earlier = |expiry| match expiry {
        Expiry::After(lease) => Expiry::After(lease.saturating_sub(by)),
        other => other,
    };
    match op {
        Op::Add { key, value, expiry, returns, admission } => {
            Op::Add { key, value, expiry: earlier(expiry), returns, admission }
        }
        Op::CompareAndSet { key, version, value, expiry, returns } => {
            Op::CompareAndSet { key, version, value, expiry: earlier(expiry), returns }
        }
        other => other,
    }
}

thread_local! {
    /// For how long the next request of this thread waits for its reply.
    static STALL: Cell<Option<Duration>> = const { Cell::new(None) };
}

impl Store for Member {
    fn run(&self, route: Route, ops: &[Op<'_>]) -> std::result::Result<Vec<Reply>, Failure> {
        let lost = |sent| Failure { error: Error::unreachable("Gone."), sent };
        let number = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
        if self.is_down.load(Ordering::SeqCst) {
            return Err(lost(false));
        }
        if self.loses_requests.load(Ordering::SeqCst) {
            return Err(lost(true));
        }
        if let Some(stall) = STALL.take() {
            std::thread::sleep(stall);
        }
        if self.loses_adds.load(Ordering::SeqCst)
            && ops.iter().any(|op| matches!(op, Op::Add { .. }))
        {
            return Err(lost(true));
        }
        let abstains = self.abstains.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(self.slow.load(Ordering::SeqCst) as u64));
        let stale = Duration::from_millis(self.stale.load(Ordering::SeqCst) as u64);
        let ops: Vec<Op<'_>> = ops.iter().map(|op| ending_earlier(*op, stale)).collect();
        let ops = &ops[..];
        if !self.loses_replies.load(Ordering::SeqCst) {
            // A server that replies runs, and so does its clock from then on.
            self.stale.store(0, Ordering::SeqCst);
        }
        let admitted = Admitted::new(ops, Epoch::new(0, 7), abstains);
        let ran = admitted.run(|ops| self.store.run(route, ops))?;
        let loses_it = number >= self.loses_from.load(Ordering::SeqCst);
        if loses_it || self.loses_replies.load(Ordering::SeqCst) {
            Err(lost(true))
        } else {
            Ok(ran)
        }
    }

    fn guarantees(&self) -> Guarantees {
        self.store.guarantees()
    }

    fn recovery(&self, _route: Route) -> Option<Recovery> {
        self.abstains.load(Ordering::SeqCst).then(|| Recovery {
            epoch: Epoch::new(0, 7),
            age: Duration::ZERO,
            left: Duration::from_secs(40),
        })
    }

    fn time(&self, _route: Route) -> Option<Duration> {
        Some(Duration::from_secs(
            SystemClock.unix_seconds() + self.ahead.load(Ordering::SeqCst) as u64,
        ))
    }

    fn nodes(&self) -> Vec<Node> {
        vec![Node {
            name: self.name.clone(),
            title: format!("memory at {}", self.name),
            is_container: false,
            timeout: Duration::from_secs(1),
        }]
    }
}

struct Bench {
    members: Vec<Arc<Member>>,
}

impl Bench {
    fn new(number: usize) -> Bench {
        let member = |place| {
            let guard = Some(Guard::new(Duration::from_secs(60)).unwrap());
            let suspicious_delay = Some(Duration::from_millis(50));
            let guarantees =
                Guarantees { guard, suspicious_delay, ..crate::store::memory::GUARANTEES };
            let store = Arc::new(Memory::like(guarantees, Arc::new(SystemClock)));
            Member::new(store, format!("m{place}"))
        };
        Bench { members: (0..number).map(member).collect() }
    }

    /// The same servers, as a client on another host sees them.
    fn elsewhere(&self) -> Bench {
        let member =
            |member: &Arc<Member>| Member::new(Arc::clone(&member.store), member.name.clone());
        Bench { members: self.members.iter().map(member).collect() }
    }

    fn quorum(&self) -> Result<Quorum> {
        let members = self.members.iter().map(|member| Arc::clone(member) as Arc<dyn Store>);
        Quorum::new(members.collect(), Arc::new(SystemClock))
    }

    fn open(&self) -> Client {
        Client::with_store(Arc::new(self.quorum().unwrap()), Arc::new(SystemClock))
    }

    fn requests(&self) -> Vec<usize> {
        self.members.iter().map(|member| member.requests.swap(0, Ordering::SeqCst)).collect()
    }

    /// What a server has, by the key.
    fn all_are_down(&self, down: bool) {
        self.members.iter().for_each(|member| member.is_down.store(down, Ordering::SeqCst));
    }

    fn has(&self, member: usize, key: &str) -> bool {
        let key = crate::name::Keyspace::default().lock(key.as_bytes());
        let ran = self.members[member].store.run(Route::of(&key), &[Op::get(&key)]).unwrap();
        matches!(ran[0], Reply::Value(_))
    }
}

#[test]
fn a_free_lock_takes_one_round_trip_and_its_release_one() {
    let bench = Bench::new(3);
    let client = bench.open();
    let mutex = client.mutex("m", LEASE).unwrap();
    // The first time, the counters of fences are created.
    assert_eq!(mutex.try_lock().unwrap().unwrap().unlock().unwrap(), Release::Released);
    bench.requests();
    let mut lock = mutex.try_lock().unwrap().unwrap();
    assert_eq!(bench.requests(), [1, 1, 1]);
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert_eq!(bench.requests(), [1, 1, 1]);
    assert!((0..3).all(|member| !bench.has(member, "m")));
}

#[test]
fn only_one_client_holds_a_lock_and_fences_rise() {
    let bench = Bench::new(5);
    let (one, two) = (bench.open(), bench.open());
    let mut last = 0;
    for round in 0..20 {
        let (first, second) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let mut lock = first.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
        assert!(second.mutex("m", LEASE).unwrap().try_lock().unwrap().is_none());
        assert!(lock.fence() > last, "{} {last}", lock.fence());
        last = lock.fence();
        assert!(lock.check().unwrap());
        assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
}

#[test]
fn a_minority_may_be_down_at_any_time() {
    let bench = Bench::new(3);
    let client = bench.open();
    let mutex = client.mutex("m", LEASE).unwrap();
    let mut last = 0;
    for down in 0..3 {
        bench.members[down].is_down.store(true, Ordering::SeqCst);
        let mut lock = mutex.try_lock().unwrap().unwrap();
        assert!(lock.fence() > last);
        last = lock.fence();
        bench.members[down].is_down.store(false, Ordering::SeqCst);
        bench.members[(down + 1) % 3].is_down.store(true, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1010));
        assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        bench.members[(down + 1) % 3].is_down.store(false, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1010));
    }
}

#[test]
fn a_majority_that_is_down_is_an_error_that_names_the_servers() {
    let bench = Bench::new(3);
    for member in &bench.members[1..] {
        member.is_down.store(true, Ordering::SeqCst);
    }
    let error = bench.open().mutex("m", LEASE).unwrap().try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("m0, m1, m2"), "{error}");
    assert!(!bench.has(0, "m"), "its vote was removed");
}

#[test]
fn a_vote_whose_reply_was_lost_is_removed_later() {
    let bench = Bench::new(3);
    let client = bench.open();
    let mutex = client.mutex("m", LEASE).unwrap();
    bench.members[2].loses_replies.store(true, Ordering::SeqCst);
    let mut lock = mutex.try_lock().unwrap().unwrap();
    assert!(bench.has(2, "m"));
    bench.members[2].loses_replies.store(false, Ordering::SeqCst);
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    std::thread::sleep(Duration::from_millis(1010));
    assert_eq!(mutex.try_lock().unwrap().unwrap().unlock().unwrap(), Release::Released);
    assert!((0..3).all(|member| !bench.has(member, "m")));
}

/// A lock that a client of its own holds.
fn hold(bench: &Bench) -> Lock {
    bench.open().mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap()
}

/// The member is started anew, or is flushed.
fn drop_vote(bench: &Bench, member: usize, name: &str) {
    let key = crate::name::Keyspace::default().lock(name.as_bytes());
    let store = &bench.members[member].store;
    let Reply::Value(item) = store.run(Route::of(&key), &[Op::get(&key)]).unwrap().remove(0) else {
        panic!("it has none")
    };
    store.run(Route::of(&key), &[Op::Delete { key: &key, version: item.version }]).unwrap();
}

/// A member that did not answer is asked again after this time.
fn pass() {
    std::thread::sleep(Duration::from_millis(1050));
}

#[test]
fn a_vote_that_counts_is_not_removed_as_one_of_a_lost_request() {
    let here = Bench::new(3);
    let there = here.elsewhere();
    let (client, other) = (here.open(), there.open());
    let lease = Duration::from_secs(3);
    here.members[2].loses_requests.store(true, Ordering::SeqCst);
    let mut lock = client.mutex("m", lease).unwrap().try_lock().unwrap().unwrap();
    here.members[2].loses_requests.store(false, Ordering::SeqCst);
    pass();
    // From now on the votes of the two others count.
    here.members[1].is_down.store(true, Ordering::SeqCst);
    assert_eq!(lock.extend(lease).unwrap(), Extension::Extended);
    pass();
    // Every call looks for leftover votes.
    drop(client.mutex("other", lease).unwrap().try_lock().unwrap());
    let mutex = other.mutex("m", lease).unwrap();
    while !lock.remaining().is_zero() {
        let got = mutex.try_lock().unwrap();
        let left = lock.remaining();
        assert!(got.is_none() || left.is_zero(), "twice, {left:?} too early");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_lock_is_seen_by_its_holder_though_a_vote_of_it_may_arrive_late() {
    let bench = Bench::new(3);
    let client = bench.open();
    bench.members[2].loses_requests.store(true, Ordering::SeqCst);
    let mutex = client.mutex("m", LEASE).unwrap();
    let mut lock = mutex.try_lock().unwrap().unwrap();
    assert!(mutex.owner().unwrap().is_some());
    bench.members[2].loses_requests.store(false, Ordering::SeqCst);
    bench.members[2].loses_replies.store(true, Ordering::SeqCst);
    pass();
    // The member gets a vote, whose reply is lost.
    assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
    assert!(bench.has(2, "m"));
    bench.members[2].loses_replies.store(false, Ordering::SeqCst);
    pass();
    for has in [false, true] {
        assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
        assert_eq!(bench.has(2, "m"), has, "it is removed, and then added anew");
    }
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert!((0..3).all(|member| !bench.has(member, "m")));
}

#[test]
fn a_check_calls_no_lock_lost_whose_votes_cannot_be_read() {
    let bench = Bench::new(3);
    bench.members[1].is_down.store(true, Ordering::SeqCst);
    let mutex = bench.open().mutex("m", LEASE).unwrap();
    let mut lock = mutex.try_lock().unwrap().unwrap();
    bench.members[1].is_down.store(false, Ordering::SeqCst);
    pass();
    bench.members[2].is_down.store(true, Ordering::SeqCst);
    assert_eq!(lock.check().map_err(|error| error.kind()), Err(ErrorKind::Unreachable));
    assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
    assert_eq!(lock.check(), Ok(true));
}

#[test]
fn putting_back_shortens_no_lease() {
    let bench = Bench::new(3);
    let quorum = bench.quorum().unwrap();
    let key = crate::name::Keyspace::default().lock(b"m");
    let value = b"memlock/1 000000000000000000000000000000aa host 1 1";
    let add = |admission, seconds| {
        let expiry = Expiry::After(Duration::from_secs(seconds));
        let returns = crate::store::Returns::Fence;
        quorum
            .run(Route::of(&key), &[Op::Add { key: &key, value, expiry, returns, admission }])
            .unwrap()
    };
    let kept = || match &quorum.run(Route::of(&key), &[Op::get(&key)]).unwrap()[0] {
        Reply::Value(item) => item.remaining.unwrap(),
        other => panic!("{other:?}"),
    };
    add(Admission::Grant, 20);
    for _ in 0..2 {
        add(Admission::Reclaim(EPOCH), 2);
        assert!(kept() > Duration::from_secs(15), "{:?}", kept());
    }
    add(Admission::Reclaim(EPOCH), 30);
    assert!(kept() > Duration::from_secs(25), "{:?}", kept());
}

#[cfg(feature = "admin")]
#[test]
fn a_member_that_is_young_or_has_a_wrong_clock_is_told() {
    let bench = Bench::new(3);
    let client = bench.open();
    let told = |client: &Client| -> Vec<Option<bool>> {
        assert_eq!(client.mutex("m", LEASE).unwrap().owner().unwrap(), None);
        (0..4).map(|node| client.abstention(node).map(|it| it.passes)).collect()
    };
    assert_eq!(told(&client), [None; 4]);
    bench.members[0].abstains.store(true, Ordering::SeqCst);
    bench.members[2].ahead.store(3600, Ordering::SeqCst);
    assert_eq!(told(&client), [Some(true), None, Some(false), None]);
    let why = client.abstention(2).unwrap().why;
    assert!(why.contains("clock of") && why.contains("60 min"), "{why}");
}

#[test]
fn who_finds_the_votes_split_removes_its_own_or_gets_the_lock() {
    let bench = Bench::new(3);
    let clients: Vec<Client> = (0..4).map(|_| bench.open()).collect();
    let holds = AtomicUsize::new(0);
    let total = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                let mutex = client.mutex("m", LEASE).unwrap();
                for _ in 0..50 {
                    let mut lock = mutex.lock_for(LEASE).unwrap().unwrap();
                    assert_eq!(holds.fetch_add(1, Ordering::SeqCst), 0);
                    total.fetch_add(1, Ordering::SeqCst);
                    holds.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(lock.unlock().unwrap(), Release::Released);
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 200);
}

#[test]
fn only_an_odd_number_of_members_with_a_guard_is_a_quorum() {
    for number in [0, 1, 2, 4] {
        assert!(Bench::new(number).quorum().is_err(), "{number}");
    }
    let members = (0..3).map(|_| Arc::new(Memory::new(Arc::new(SystemClock))) as Arc<dyn Store>);
    let error = Quorum::new(members.collect(), Arc::new(SystemClock)).unwrap_err();
    assert!(error.to_string().contains("guard=60s"), "{error}");
}

#[test]
fn what_a_quorum_has_not_is_refused_with_what_has_it() {
    let client = Bench::new(3).open();
    for error in [
        client.semaphore("s", 1, LEASE).unwrap_err(),
        client.distinct_list("l").map(drop).unwrap_err(),
        client.counter("c").map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("postgresql://"), "{error}");
    }
}

/// The member that did not answer has to lose the vote that it may have; the others have not.
#[test]
fn the_holder_sees_its_own_lock_though_a_reply_was_lost() {
    let bench = Bench::new(3);
    let client = bench.open();
    let mutex = client.mutex("m", LEASE).unwrap();
    bench.members[2].loses_replies.store(true, Ordering::SeqCst);
    let lock = mutex.try_lock().unwrap().unwrap();
    assert_eq!(mutex.owner().unwrap().unwrap().token(), lock.token().to_string());
}

/// A vote without a reply is removed later. One that was added again, and has counted since, is not
/// taken for it.
#[test]
fn a_vote_that_counts_is_not_removed_as_a_leftover() {
    let bench = Bench::new(3);
    let client = bench.open();
    bench.members[2].loses_requests.store(true, Ordering::SeqCst);
    let mut lock = client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    bench.members[2].loses_requests.store(false, Ordering::SeqCst);
    let away = || std::thread::sleep(Duration::from_millis(1010));
    away();
    for _ in 0..3 {
        assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
    }
    // Now this member is the second of two, if it has a vote.
    bench.members[1].is_down.store(true, Ordering::SeqCst);
    if let Ok(extended) = lock.extend(LEASE) {
        assert_eq!(extended, Extension::Extended);
        away();
        assert!(client.mutex("other", LEASE).unwrap().try_lock().unwrap().is_some());
        assert!(bench.has(2, "m"), "a vote that the lock needs was removed");
    }
}
