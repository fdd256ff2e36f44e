//! A server that is slow to answer may have stood still, and its clock with it. The time that its
//! grants have left is read back then; and read again if that answer is slow, too.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memlock_core::clock::Clock;
use memlock_core::store::{Op, Reply, Route, Store};
use memlock_core::{Client, Extension, Guard, RenewOptions};
use memlock_tests::frozen::Frozen;
use memlock_tests::intercepted::Replies;
use memlock_tests::launch::until;

use crate::bench::{KINDS, Kind, on_memory};

const LEASE: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

/// How one request is answered: after how long; and by how many seconds less than it seemed so far
/// everything is kept.
type Answer = (Duration, u64);

const PROMPT: Answer = (Duration::ZERO, 0);
const SLOW: Answer = (Duration::from_millis(100), 0);

/// How the next requests are answered, by a clock on which no other time passes.
struct World {
    clock: Arc<Frozen>,
    client: Client,
    other: Client,
    answers: Arc<Mutex<VecDeque<Answer>>>,
}

impl World {
    fn new() -> World {
        let clock = Frozen::clock();
        let the_clock: Arc<dyn Clock> = Arc::<Frozen>::clone(&clock);
        let answers = Arc::<Mutex<VecDeque<Answer>>>::default();
        let (next, passes) = (Arc::clone(&answers), Arc::clone(&clock));
        let run = move |inner: &dyn Store, route: Route, ops: &[Op<'_>]| -> Replies {
            let (time, less) = {
                let mut answers = next.lock().unwrap();
                let waits_for_a_look = answers.front().is_some_and(|&(_, less)| less > 0);
                let fits = !waits_for_a_look || matches!(ops, [Op::Get { .. }]);
                fits.then(|| answers.pop_front()).flatten().unwrap_or(PROMPT)
            };
            let mut replies = inner.run(route, ops)?;
            for reply in &mut replies {
                if let Reply::Value(item) = reply {
                    let less = Duration::from_secs(less);
                    item.remaining = item.remaining.map(|left| left.saturating_sub(less));
                }
            }
            passes.advance(time);
            Ok(replies)
        };
        let (client, other) = on_memory(&the_clock, run);
        World { clock, client, other, answers }
    }

    fn left(&self) -> usize {
        self.answers.lock().unwrap().len()
    }
}

/// What is certainly left of a lease whose end was asked for by two looks, the first of which was
/// answered slowly, and untruly: the server keeps it for so many of its seconds less, of which the
/// last two may be over in no time. Or else as long as before.
fn is_looked_at_again(before: Duration, step: impl Fn(Kind, &World, &dyn Fn()) -> Duration) {
    for kind in KINDS {
        for (second, stood) in [((Duration::ZERO, 4), 0), ((SLOW.0, 3), 300)] {
            let world = World::new();
            // Others use it, so that what the client knows of a semaphore is of before, and it
            // looks first.
            let (first, kept) = match kind {
                Kind::Lock => (&[SLOW][..], 32),
                Kind::Permit => (&[SLOW, PROMPT][..], 33),
            };
            let answers = [first, &[SLOW, second]].concat();
            let left = step(kind, &world, &|| world.answers.lock().unwrap().extend(&answers));
            assert_eq!(world.left(), 0, "{kind:?}: the server was not asked again");
            let longest = Duration::from_millis((kept - 2 - second.1) * 1000 - stood).max(before);
            assert!(left <= longest, "{kind:?}: {left:?} after {second:?}");
        }
    }
}

fn hold(kind: Kind, world: &World) -> Box<dyn Guard> {
    kind.hold(&world.client, "m", LEASE)
}

#[test]
fn a_slow_look_at_a_slow_grant_is_repeated() {
    is_looked_at_again(Duration::ZERO, |kind, world, begin| {
        drop(hold(kind, world));
        drop(kind.hold(&world.other, "m", LEASE));
        begin();
        hold(kind, world).remaining()
    });
}

#[test]
fn a_slow_look_at_a_slow_extension_is_repeated() {
    is_looked_at_again(Duration::ZERO, |kind, world, begin| {
        let mut held = hold(kind, world);
        if kind == Kind::Permit {
            let semaphore = world.other.semaphore("m", 1, LEASE).unwrap();
            assert!(semaphore.resize(2).unwrap().is_some());
        }
        begin();
        assert_eq!(held.extend(LEASE).unwrap(), Extension::Extended);
        held.remaining()
    });
}

#[test]
fn a_slow_look_at_a_slow_renewal_is_repeated() {
    is_looked_at_again(LEASE - 11 * SECOND, |kind, world, begin| {
        let held = hold(kind, world);
        // It is due at once.
        world.clock.advance(11 * SECOND);
        begin();
        let renewal = held.renew(RenewOptions::default()).unwrap();
        until("the server is asked again", || world.left() == 0);
        renewal.remaining()
    });
}

/// Each of them costs two round trips and more.
#[test]
fn what_was_left_behind_on_a_slow_server_does_not_hold_up_a_call_for_long() {
    const MANY: usize = 40;
    let world = World::new();
    let names: Vec<String> = (0..12).map(|number| format!("m{number}")).collect();
    let held = names.iter().map(|name| Kind::Lock.hold(&world.client, name, LEASE));
    held.collect::<Vec<_>>().into_iter().for_each(Guard::abandon);
    world.answers.lock().unwrap().extend(&[SLOW; MANY]);
    drop(Kind::Lock.hold(&world.client, "other", LEASE));
    let requests = MANY - world.left();
    assert!(requests < MANY / 2, "{requests}");
    world.answers.lock().unwrap().clear();
    until("later contacts take off the others", || {
        drop(Kind::Lock.hold(&world.client, "other", LEASE));
        names.iter().all(|name| Kind::Lock.is_free(&world.other, name))
    });
}
