//! Several clients contend for a few locks while their server is killed again and again: no two
//! hold one at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::{Client, Extension, Lock, Loss, Release, RenewOptions, Renewal, Request, Wait};
use memlock_tests::assert_safe;
use memlock_tests::chance::Chance;
use memlock_tests::server::Memcached;
use memlock_tests::url;

/// Shorter than that of the other tests, so that there is time between the kills.
const GUARD: Duration = Duration::from_secs(2);
const RUN: Duration = Duration::from_secs(24);
const CLIENTS: u64 = 6;
const NAMES: [&str; 2] = ["a", "b"];
const PERMITS: u32 = 3;

/// Something was held, from a moment after it was granted to one before it was released, or its
/// lease ended.
#[derive(Debug, Clone)]
struct Hold {
    name: &'static str,
    permits: u32,
    fence: u64,
    from: Instant,
    until: Instant,
    /// It survived a restart.
    crossed: bool,
}

struct World {
    server: Memcached,
    is_over: AtomicBool,
    kills: Mutex<Vec<Instant>>,
    holds: Mutex<Vec<Hold>>,
    lost: Mutex<Vec<String>>,
}

impl World {
    fn client(&self) -> Client {
        let url = url::with(&self.server.url(), &format!("guard={}s&outage=60s", GUARD.as_secs()));
        Client::connect(&url).unwrap()
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn killed_since(&self, from: Instant) -> bool {
        self.kills.lock().unwrap().iter().any(|&kill| kill > from)
    }

    fn note(&self, hold: Hold) {
        self.holds.lock().unwrap().push(hold);
    }

    fn lose(&self, hold: &Hold, what: &str) {
        self.lost.lock().unwrap().push(format!("{what}: {hold:?}"));
    }
}

/// Kills the server at random; sometimes twice in a row, and sometimes for longer than a lease.
fn kills(world: &World, mut chance: Chance) {
    let began = Instant::now();
    while began.elapsed() < RUN {
        // The guard and what a server hides of its age are over after some 5 s.
        thread::sleep(chance.millis(300, 7000));
        world.kills.lock().unwrap().push(Instant::now());
        world.server.kill();
        let away = if chance.below(5) == 0 { (2000, 3000) } else { (0, 500) };
        thread::sleep(chance.millis(away.0, away.1));
        world.server.restart();
    }
    world.is_over.store(true, Ordering::SeqCst);
}

/// Holds the lock for a while, by one extension after the other.
fn holds_and_extends(world: &World, lock: &mut Lock, hold: &mut Hold, chance: &mut Chance) {
    let end = Instant::now() + chance.millis(1, 2500);
    loop {
        let now = Instant::now();
        let left = lock.remaining();
        if left.is_zero() {
            return;
        }
        hold.until = now;
        if now >= end {
            return;
        }
        thread::sleep(Duration::from_millis(20).min(left));
        // In time, also if the server is away for a while.
        if lock.remaining() > GUARD - Duration::from_millis(200) {
            continue;
        }
        let still = lock.remaining();
        match lock.extend(GUARD) {
            Ok(Extension::Extended) => {}
            Ok(_) if !still.is_zero() && !lock.remaining().is_zero() => {
                return world.lose(hold, "extend");
            }
            Ok(_) => return,
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Holds what is renewed for a while, and releases it.
fn holds_renewed(world: &World, renewal: Renewal, mut hold: Hold, chance: &mut Chance) {
    let end = hold.from + chance.millis(1, 2500);
    loop {
        let now = Instant::now();
        if !renewal.is_held() {
            break;
        }
        hold.until = now;
        if now >= end {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    hold.crossed = world.killed_since(hold.from);
    if renewal.lost() == Some(Loss::Gone) {
        world.lose(&hold, "renewal");
    }
    world.note(hold);
}

fn uses_mutexes(world: &World, mut chance: Chance) {
    let client = world.client();
    while !world.is_over() {
        let name = NAMES[usize::try_from(chance.below(2)).unwrap()];
        let wait = Wait::at_most(chance.millis(1, 4000));
        let Ok(waited) = client.mutex(name, GUARD).unwrap().lock_with(&wait) else { continue };
        let Some(mut lock) = waited.done() else { continue };
        let from = Instant::now();
        let fence = lock.fence();
        let mut hold = Hold { name, permits: 1, fence, from, until: from, crossed: false };
        if chance.below(2) == 0 {
            holds_renewed(world, lock.renew(RenewOptions::default()).unwrap(), hold, &mut chance);
            continue;
        }
        holds_and_extends(world, &mut lock, &mut hold, &mut chance);
        hold.crossed = world.killed_since(from);
        world.note(hold.clone());
        let in_time = !lock.remaining().is_zero();
        if lock.unlock() == Ok(Release::Lost) && in_time && !lock.remaining().is_zero() {
            world.lose(&hold, "release");
        }
    }
}

fn uses_permits(world: &World, mut chance: Chance) {
    let client = world.client();
    let semaphore = client.semaphore("s", PERMITS, GUARD).unwrap();
    while !world.is_over() {
        let permits = u32::try_from(chance.below(2)).unwrap() + 1;
        let request = Request { permits, ..Request::default() };
        let wait = Wait::at_most(chance.millis(1, 4000));
        let Ok(waited) = semaphore.acquire_with(request, &wait) else { continue };
        let Some(permit) = waited.done() else { continue };
        let from = Instant::now();
        let hold = Hold { name: "s", permits, fence: 0, from, until: from, crossed: false };
        holds_renewed(world, permit.renew(RenewOptions::default()).unwrap(), hold, &mut chance);
    }
}

/// At no moment more permits are held than there are, and the fences of one lock rise.
fn verify(holds: &[Hold], name: &str, most: u32) {
    let of: Vec<&Hold> = holds.iter().filter(|hold| hold.name == name).collect();
    for hold in &of {
        let at_its_start = |other: &&&Hold| other.from <= hold.from && hold.from < other.until;
        let held: u32 = of.iter().filter(at_its_start).map(|other| other.permits).sum();
        let held = if hold.from < hold.until { held } else { 0 };
        assert_safe!(held <= most, "{held} of {most} are held at the start of {hold:?}: {of:#?}");
    }
    let mut in_order = of.clone();
    in_order.sort_by_key(|hold| hold.from);
    for pair in in_order.windows(2) {
        let rises = name == "s" || pair[0].fence < pair[1].fence;
        assert_safe!(rises, "fences do not rise: {pair:#?}");
    }
}

#[test]
#[ignore = "real time: make prove"]
fn no_two_hold_a_lock_while_its_server_is_killed_again_and_again() {
    let world = World {
        server: Memcached::start(),
        is_over: AtomicBool::new(false),
        kills: Mutex::default(),
        holds: Mutex::default(),
        lost: Mutex::default(),
    };
    let mut chance = Chance::of_run();
    thread::scope(|scope| {
        let world = &world;
        for _ in 0..CLIENTS {
            let [one, two] = [(); 2].map(|()| Chance(chance.number()));
            scope.spawn(move || uses_mutexes(world, one));
            scope.spawn(move || uses_permits(world, two));
        }
        let chance = Chance(chance.number());
        scope.spawn(move || kills(world, chance));
    });
    let holds = world.holds.into_inner().unwrap();
    for name in NAMES {
        verify(&holds, name, 1);
    }
    verify(&holds, "s", PERMITS);
    let lost = world.lost.into_inner().unwrap();
    assert!(lost.is_empty(), "leases that still ran were lost: {lost:#?}");
    let crossed = holds.iter().filter(|hold| hold.crossed).count();
    let kills = world.kills.into_inner().unwrap().len();
    println!("{} holds, {crossed} of them across one of {kills} kills", holds.len());
    assert!(holds.len() > 5, "there was too little to see: {}", holds.len());
}
