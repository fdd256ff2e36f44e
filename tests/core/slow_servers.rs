//! A server that is slow to answer may have stood still, and its clock with it. The time that its
//! grants have left is read back then; and read again if that answer is slow, too.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::store::memcached;
use memlock_core::store::memory::Memory;
use memlock_core::store::{Op, Reply, Route, Store};
use memlock_core::{Client, Extension, Lock, RenewOptions};
use memlock_tests::intercepted::{Replies, intercepted};

const LEASE: Duration = Duration::from_secs(5);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// How one request is answered: after how long; and by how many seconds less than it seemed so far
/// everything is kept.
type Answer = (Duration, u64);

const PROMPT: Answer = (Duration::ZERO, 0);
const SLOW: Answer = (Duration::from_millis(100), 0);

/// How the next requests are answered.
type Answers = Mutex<VecDeque<Answer>>;

fn answered(answers: &Answers, inner: &dyn Store, route: Route, ops: &[Op<'_>]) -> Replies {
    let (time, less) = {
        let mut answers = answers.lock().unwrap();
        let waits_for_a_look = answers.front().is_some_and(|&(_, less)| less > 0);
        let fits = !waits_for_a_look || matches!(ops, [Op::Get { .. }]);
        fits.then(|| answers.pop_front()).flatten().unwrap_or(PROMPT)
    };
    let mut replies = inner.run(route, ops)?;
    for reply in &mut replies {
        if let Reply::Value(item) = reply {
            item.remaining =
                item.remaining.map(|left| left.saturating_sub(Duration::from_secs(less)));
        }
    }
    thread::sleep(time);
    Ok(replies)
}

struct World {
    client: Client,
    other: Client,
    answers: Arc<Answers>,
}

impl World {
    fn new() -> World {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let answers = Arc::new(Answers::default());
        let next = Arc::clone(&answers);
        let memory = Memory::like(memcached::GUARANTEES, Arc::clone(&clock));
        let store = intercepted(Arc::new(memory), move |inner, route, ops| {
            answered(&next, inner, route, ops)
        });
        let client = || Client::with_store(Arc::clone(&store), Arc::clone(&clock));
        World { client: client(), other: client(), answers }
    }

    fn answers(&self, answers: &[Answer]) {
        self.answers.lock().unwrap().extend(answers);
    }

    /// So that what the client knows of the semaphore is of before, and it looks.
    fn others_use_it(&self) {
        drop(self.other.semaphore("s", 2, LEASE).unwrap().acquire().unwrap());
    }

    /// Waits until all answers are on their way.
    fn is_renewed_anew(&self) {
        let began = Instant::now();
        while !self.answers.lock().unwrap().is_empty() {
            assert!(began.elapsed() < PATIENCE, "the server was not asked again");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What is certainly left of a lease whose end was asked for by two looks, the first of which was
/// answered slowly, and untruly. The server keeps it for so many of its seconds, of which the last
/// two may be over in no time; or else as long as before.
fn left(
    kept: u64,
    before: Duration,
    grant: &[Answer],
    hold: impl Fn(&World, &dyn Fn()) -> Duration,
) {
    for (second, stood) in [((Duration::ZERO, 4), 0), ((SLOW.0, 3), 300)] {
        let world = World::new();
        // Where it is renewed anew, because little is left of it, that takes its time.
        let answers = [grant, &[SLOW, second, (PATIENCE / 20, 0)]].concat();
        let left = hold(&world, &|| world.answers(&answers));
        assert!(world.answers.lock().unwrap().len() <= 1, "the server was not asked again");
        let longest = Duration::from_millis((kept - 2 - second.1) * 1000 - stood).max(before);
        assert!(left <= longest, "{left:?} after {second:?}");
    }
}

#[test]
fn a_slow_look_at_a_slow_grant_is_repeated() {
    left(7, Duration::ZERO, &[SLOW], |world, begin| {
        let mutex = world.client.mutex("m", LEASE).unwrap();
        begin();
        mutex.try_lock().unwrap().unwrap().remaining()
    });
    left(8, Duration::ZERO, &[SLOW, PROMPT], |world, begin| {
        let semaphore = world.client.semaphore("s", 2, LEASE).unwrap();
        world.others_use_it();
        begin();
        semaphore.acquire().unwrap().remaining()
    });
}

#[test]
fn a_slow_look_at_a_slow_extension_is_repeated() {
    left(7, Duration::ZERO, &[SLOW], |world, begin| {
        let mut lock = world.client.mutex("m", LEASE).unwrap().lock().unwrap();
        begin();
        assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
        lock.remaining()
    });
    left(8, Duration::ZERO, &[SLOW, PROMPT], |world, begin| {
        let mut permit = world.client.semaphore("s", 2, LEASE).unwrap().acquire().unwrap();
        world.others_use_it();
        begin();
        assert_eq!(permit.extend(LEASE).unwrap(), Extension::Extended);
        permit.remaining()
    });
}

#[test]
fn a_slow_look_at_a_slow_renewal_is_repeated() {
    // A lease is renewed after 0.9 to 1 third of it.
    let before = LEASE.mul_f64(0.7);
    left(7, before, &[SLOW], |world, begin| {
        let lock = world.client.mutex("m", LEASE).unwrap().lock().unwrap();
        begin();
        let kept = lock.renew(RenewOptions::default()).unwrap();
        world.is_renewed_anew();
        kept.remaining()
    });
    left(8, before, &[SLOW, PROMPT], |world, begin| {
        let permit = world.client.semaphore("s", 2, LEASE).unwrap().acquire().unwrap();
        begin();
        let kept = permit.renew(RenewOptions::default()).unwrap();
        world.is_renewed_anew();
        kept.remaining()
    });
}

/// Each of them costs two round trips and more.
#[test]
fn what_was_left_behind_on_a_slow_server_does_not_hold_up_a_call_for_long() {
    const MANY: usize = 40;
    let world = World::new();
    let lock =
        |number: usize| world.client.mutex(format!("m{number}"), LEASE).unwrap().lock().unwrap();
    let locks: Vec<Lock> = (0..12).map(lock).collect();
    locks.into_iter().for_each(Lock::abandon);
    let left = |world: &World| world.answers.lock().unwrap().len();
    world.answers(&[SLOW; MANY]);
    let other = world.client.mutex("other", LEASE).unwrap();
    let _ = other.try_lock().unwrap();
    let requests = MANY - left(&world);
    assert!(requests < MANY / 2, "{requests}");
    world.answers.lock().unwrap().clear();
    // Later contacts take off the others.
    let is_free = |number: usize| {
        world.other.mutex(format!("m{number}"), LEASE).unwrap().owner().unwrap().is_none()
    };
    let began = Instant::now();
    while !(0..12).all(is_free) {
        assert!(began.elapsed() < PATIENCE);
        let _ = other.try_lock().unwrap();
        thread::sleep(Duration::from_millis(1));
    }
}
