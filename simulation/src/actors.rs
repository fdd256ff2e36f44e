//! What the tasks of a run do: take turns with mutexes, insert into lists, and tell the judge what
//! they were told.

use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use memlock_core::clock::Moment;
use memlock_core::{
    Client, DistinctList, Error, ErrorKind, Extension, Lock, Release, Wait, Waited,
};

use crate::chance::Chance;
use crate::held::Held;
use crate::oracle::waits::Refusal;
use crate::scenario::Scenario;
use crate::time::{MICRO, MILLI, Nanos, SECOND};
use crate::world::{self, with};
use permits::Items;
use renewing::Registry;

pub(crate) mod permits;
pub(crate) mod renewing;

/// Where a thread keeps what it holds: a child finds it there.
pub(crate) type Pocket = Arc<StdMutex<Option<Held>>>;

pub(crate) const LEASES: [Nanos; 6] =
    [SECOND, 1300 * MILLI, 2 * SECOND, 3 * SECOND, 5 * SECOND, 12 * SECOND];
const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
const SESSION: &str = "s";
const STEP: Nanos = 25 * MILLI;

pub(crate) struct Actor {
    pub(crate) client: Client,
    pub(crate) chance: Chance,
    pub(crate) pocket: Pocket,
    pub(crate) items: Items,
    pub(crate) registry: Registry,
}

/// The task that runs now, its process, and the time.
pub(crate) fn here() -> (usize, usize, Nanos) {
    with(|world| {
        let task = world.current.unwrap_or_default();
        (task, world.tasks[task].process, world.now)
    })
}

pub(crate) fn say(what: impl FnOnce() -> String) {
    if with(|world| world.story.told) {
        let what = what();
        with(|world| world.say(|_| what));
    }
}

pub(crate) fn object(what: String) {
    with(|world| world.oracle.object(what));
}

/// Where all keep in step: until a step's beginning, and a moment more.
pub(crate) fn in_step(length: Nanos) -> Nanos {
    with(|world| match world.scenario.in_step {
        true => {
            (world.now + length).div_ceil(STEP) * STEP - world.now
                + world.chance.within(0..300 * MICRO)
        }
        false => length,
    })
}

pub(crate) fn nap(length: Nanos) {
    let end = with(|world| world.now) + in_step(length);
    while with(|world| world.now < end) && world::sleep_until(end) {}
}

pub(crate) fn duration(nanos: Nanos) -> Duration {
    Duration::from_nanos(nanos)
}

/// When that is by the world's time.
pub(crate) fn in_world(moment: Moment) -> Nanos {
    let (_, process, _) = here();
    with(|world| {
        let host = world.processes[process].host;
        world.world_time(host, moment.since_boot().as_nanos() as Nanos)
    })
}

impl Actor {
    /// What a thread does in its life.
    pub(crate) fn live(mut self) {
        let (turns, mutexes, lists, semaphores) = with(|world| {
            let Scenario { turns, mutexes, lists, ref semaphores, .. } = world.scenario;
            (turns, mutexes, lists, semaphores.permille)
        });
        let mut list = None;
        for _ in 0..turns {
            if self.chance.permille(300) {
                let rest = self.chance.spread(10 * MICRO, 3 * SECOND);
                nap(rest);
            }
            if semaphores > 0 && self.chance.permille(semaphores) {
                self.permit_turn();
            } else if lists && self.chance.permille(600) {
                self.insert(&mut list);
            } else {
                let name = format!("m{}", self.chance.within(0..mutexes));
                self.turn(&name);
            }
        }
    }

    /// What a child does first: it tries to use what its parent holds.
    pub(crate) fn inherit(self, parents: &Pocket) {
        if let Ok(mut pocket) = parents.try_lock()
            && let Some(held) = pocket.as_mut()
        {
            say(|| "the child unlocks what its parent holds".to_owned());
            if !held.remaining().is_zero() {
                object("a child was told that its parent's lock is its own".to_owned());
            }
            match (held.extend(Duration::from_secs(2)), held.release()) {
                (Ok(Extension::NotHeld), Ok(Release::NotHeld)) => {}
                other => object(format!(
                    "a child's steps with its parent's lock were answered {other:?}"
                )),
            }
        }
        self.live();
    }

    fn turn(&mut self, name: &str) {
        let lease = self.chance.pick(&LEASES);
        let rush = with(|world| world.scenario.rush.is_some());
        let limit = match self.chance.within(0..20) {
            _ if rush => None,
            0..=3 => None,
            4..=8 => Some(0),
            _ => Some(in_step(self.chance.spread(20 * MILLI, 7 * SECOND))),
        };
        let mutex = match self.client.mutex(name, duration(lease)) {
            Ok(mutex) => mutex,
            Err(error) => return object(format!("a mutex was refused: {error}")),
        };
        let wait = limit.map_or(Wait::FOREVER, |limit| Wait::at_most(duration(limit)));
        let (task, process, now) = here();
        say(|| format!("asks for {name}, lease {:.1} s, limit {limit:?}", lease as f64 / 1e9));
        with(|world| world.oracle.asks(task, process, &format!("lock:{name}"), limit, now));
        let refusal = match mutex.lock_with(&wait) {
            Ok(Waited::Done(lock)) => return self.hold(lock, lease),
            Ok(Waited::Busy) => Refusal::Busy,
            Ok(Waited::TimedOut) => Refusal::TimedOut,
            Ok(Waited::Interrupted) => Refusal::Interrupted,
            Err(error) => {
                say(|| format!("error: {error}"));
                match error.kind() {
                    ErrorKind::Unreachable => Refusal::Unreachable,
                    ErrorKind::Unknown => Refusal::Unknown,
                    _ => Refusal::Other,
                }
            }
        };
        say(|| format!("is told {refusal:?}"));
        with(|world| {
            let held_up = world.held_up(process);
            world.oracle.refused(task, refusal, world.now, held_up, &world.server);
        });
    }

    fn hold(&mut self, lock: Lock, lease: Nanos) {
        let until = in_world(lock.deadline());
        let (task, _, now) = here();
        say(|| {
            format!(
                "has it as {} with fence {} for {:.6} s",
                lock.token(),
                lock.fence(),
                until.saturating_sub(now) as f64 / 1e9
            )
        });
        let hold = with(|world| {
            world.oracle.granted(task, lock.token().to_string(), lock.fence(), until, now)
        });
        self.make_use_of(Held::Lock(lock), hold, until, lease);
    }

    /// Holds it for a while, or keeps it, and lets go.
    pub(crate) fn make_use_of(&mut self, held: Held, hold: u64, until: Nanos, lease: Nanos) {
        let often = with(|world| world.scenario.kept_permille);
        if often > 0 && self.chance.permille(often) {
            if !self.chance.permille(250) {
                return self.renew(held, hold, lease);
            }
            *self.pocket() = Some(held);
            // What is kept may have another lease by now than it was acquired with.
            let Some(extended) = self.extend(hold) else { return };
            let Some(lease) = extended else { return self.let_go(hold) };
            let Some(held) = self.pocket().take() else { return };
            return self.renew(held, hold, lease);
        }
        let (_, _, now) = here();
        *self.pocket() = Some(held);
        if let Some(length) = with(|world| world.scenario.rush) {
            nap(length);
            return self.let_go(hold);
        }
        let length = match self.chance.within(0..10) {
            0..=2 => 0,
            3..=6 => self.chance.spread(100 * MICRO, 80 * MILLI),
            // To the very end.
            7 => until.saturating_sub(now),
            _ => self.chance.spread(80 * MILLI, 4 * SECOND),
        };
        nap(length);
        while self.chance.permille(250) {
            if self.extend(hold).is_none() {
                return;
            }
            let length = self.chance.spread(MILLI, 5 * SECOND);
            nap(length);
        }
        self.let_go(hold);
    }

    /// Takes what is in the pocket out for a while: a child that is made meanwhile does not find
    /// it.
    fn pocket(&self) -> std::sync::MutexGuard<'_, Option<Held>> {
        self.pocket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease that it was extended by, if it was. `None` when there is nothing to hold any more.
    fn extend(&mut self, hold: u64) -> Option<Option<Nanos>> {
        let mut held = self.pocket().take()?;
        let lease = if self.chance.permille(400) { SECOND } else { self.chance.pick(&LEASES) };
        let (task, process, begun) = here();
        with(|world| {
            world.oracle.semaphores.leases(process, task, begun, lease);
            world.oracle.pauses_using(hold, begun, false);
        });
        let extended = held.extend(duration(lease));
        say(|| format!("extending by {:.1} s is answered {extended:?}", lease as f64 / 1e9));
        let (_, _, now) = here();
        match extended {
            Ok(Extension::Extended) => {}
            Ok(Extension::Lost) => {
                with(|world| world.oracle.told_lost(hold, now, &world.server));
                return None;
            }
            Ok(Extension::NotHeld) => object("a holder was told that it holds nothing".to_owned()),
            Err(ref error) => self.failed(hold, begun, error),
        }
        let until = in_world(held.deadline());
        with(|world| world.oracle.uses(hold, until));
        *self.pocket() = Some(held);
        Some(extended.is_ok().then_some(lease))
    }

    pub(crate) fn failed(&self, hold: u64, begun: Nanos, error: &Error) {
        with(|world| {
            world.oracle.tally.errors += 1;
            if world.scenario.calm {
                world.oracle.object(format!("nothing went wrong, and yet: {error}"));
            }
        });
        match error.kind() {
            ErrorKind::Unreachable => with(|world| world.oracle.told_unchanged(hold, begun)),
            ErrorKind::Unknown => {}
            _ => object(format!("a holder's step failed for no reason that can be: {error}")),
        }
    }

    fn let_go(&mut self, hold: u64) {
        let Some(mut held) = self.pocket().take() else { return };
        // What was abandoned stays until its lease ends, which a calm run does not wait for.
        let way = self.chance.within(if with(|world| world.scenario.calm) { 1 } else { 0 }..20);
        for _ in 0..3 {
            let (_, _, begun) = here();
            with(|world| world.oracle.pauses_using(hold, begun, true));
            if way < 3 {
                break;
            }
            let released = held.release();
            say(|| format!("unlocking is answered {released:?}"));
            let (_, _, now) = here();
            match released {
                Ok(Release::Released) => {
                    with(|world| world.oracle.told_released(hold, &world.server));
                    return self.release_again(held);
                }
                Ok(Release::Lost) => {
                    return with(|world| world.oracle.told_lost(hold, now, &world.server));
                }
                Ok(Release::NotHeld) => {
                    object("a holder was told that it holds nothing".to_owned())
                }
                Err(error) => self.failed(hold, begun, &error),
            }
            let until = in_world(held.deadline());
            with(|world| world.oracle.uses(hold, until));
            let pause = self.chance.spread(MILLI, 2 * SECOND);
            nap(pause);
        }
        let (_, _, now) = here();
        with(|world| world.oracle.pauses_using(hold, now, true));
        say(|| if way == 0 { "abandons it" } else { "drops it" }.to_owned());
        if way == 0 {
            held.abandon()
        } else {
            drop(held)
        }
        with(|world| world.oracle.forgets(hold));
    }

    /// Permits are given back twice now and then: that must not make more of them.
    fn release_again(&mut self, mut held: Held) {
        if held.is_permit() && self.chance.permille(200) {
            match (held.release(), held.extend(Duration::from_secs(1))) {
                (Ok(Release::NotHeld), Ok(Extension::NotHeld)) => {}
                other => object(format!("what was released is still held: {other:?}")),
            }
        }
    }

    fn insert(&mut self, list: &mut Option<(DistinctList, Option<String>)>) {
        if list.is_none() || self.chance.permille(100) {
            let lasting = if self.chance.permille(800) {
                120 * SECOND
            } else {
                self.chance.spread(SECOND, 5 * SECOND)
            };
            *list = self.set_up(duration(lasting));
        }
        let Some((handle, joined)) = list else { return };
        let tear_downs = with(|world| world.scenario.tear_downs);
        if tear_downs && self.chance.permille(150) {
            let before = with(|world| world.oracle.lists.generation(SESSION));
            let torn = handle.tear_down();
            say(|| format!("tearing down is answered {torn:?}"));
            if matches!(torn, Ok(true)) && joined.is_some() && before != *joined {
                object("a session was torn down by a handle that belongs to another".to_owned());
            }
            if let (Ok(_), Some(joined)) = (&torn, &joined)
                && with(|world| world.oracle.lists.generation(SESSION).as_ref() == Some(joined))
            {
                object("a session was torn down, and is still there".to_owned());
            }
            return;
        }
        let key = self.chance.pick(&KEYS);
        let (task, process, _) = here();
        let Some(joined) = joined.clone() else { return };
        let before = with(|world| {
            let now = world.oracle.lists.generation(SESSION);
            world.oracle.lists.begins(task, process, &joined, key);
            now
        });
        let answer = handle.insert(key);
        say(|| format!("inserting {key} is answered {answer:?}"));
        with(|world| {
            let lists = &mut world.oracle.lists;
            if before.as_ref() != Some(&joined) && matches!(answer, Ok(Some(_))) {
                lists.object(format!("{key} went into a session that was over"));
            }
            lists.answered(task, &joined, key, answer.as_ref().ok().copied());
            world.oracle.tally.inserts += 1;
        });
        if let Err(error) = answer {
            let calm = with(|world| world.scenario.calm);
            if calm || !matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Unknown) {
                object(format!("an insert failed for no reason that can be: {error}"));
            }
        }
    }

    /// A handle, and the generation it belongs to, when that is certain.
    fn set_up(&mut self, lasting: Duration) -> Option<(DistinctList, Option<String>)> {
        let mut handle = match self.client.distinct_list(SESSION) {
            Ok(handle) => handle,
            Err(error) => {
                object(format!("a list was refused: {error}"));
                return None;
            }
        };
        let (task, ..) = here();
        let made = || with(|world| world.oracle.lists.made_by(task));
        let (before, made_before) = (with(|world| world.oracle.lists.generation(SESSION)), made());
        let set_up = handle.set_up(lasting);
        let after = with(|world| world.oracle.lists.generation(SESSION));
        say(|| format!("setting a list up is answered {set_up:?}"));
        let certain = match set_up {
            Ok(memlock_core::SetUp::Joined) if before == after => after,
            // An earlier try of the same call may have come late.
            Ok(memlock_core::SetUp::Created) if made() == made_before + 1 => {
                after.filter(|after| with(|world| world.oracle.lists.is_by(after, task)))
            }
            _ => None,
        };
        set_up.ok().map(|_| (handle, certain))
    }
}
