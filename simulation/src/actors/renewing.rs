//! What the tasks of a run do with what they keep.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use memlock_core::{Notice, Release, RenewOptions, Renewal};

use super::actor::Actor;
use super::context::{duration, here, must_be_trouble, nap, object, say};
use super::registry::{Registry, Treasure, treasures};
use crate::adapters::until;
use crate::held::Held;
use crate::time::{MILLI, Nanos, SECOND};
use crate::world::{self, with};

/// Something that this task keeps.
struct Mine {
    token: String,
    hold: u64,
    lease: Nanos,
    kept: Arc<Renewal>,
}

/// Tells the judge what the holders of all that a process keeps would believe now.
pub(crate) fn look_at(registry: &Registry, process: usize) {
    for (token, kept) in treasures(registry) {
        let end = until(process, kept.would_remain());
        with(|world| world.oracle.believes(&token, end, world.now, &world.server));
    }
}

/// What a child finds of its parent's is not its own.
pub(crate) fn inherit(registry: &Registry) {
    for (token, kept) in treasures(registry) {
        say(|| format!("the child looks at what its parent keeps as {token}"));
        let found =
            (kept.is_held(), kept.lost(), kept.check(), kept.wait_lost(Duration::from_secs(1)));
        if !matches!(
            (found, kept.release()),
            ((false, None, Ok(false), None), Ok(Release::NotHeld))
        ) {
            object(format!("a child was told that it keeps {token}"));
        }
    }
}

/// The renewer tells something.
fn told(token: &str, notice: Notice) {
    let (_, process, _) = here();
    say(|| format!("the holder of {token} is told {notice:?}"));
    let end = match notice {
        Notice::AtRisk(left) => until(process, left),
        Notice::Lost(_) => 0,
    };
    with(|world| {
        let stopped = world.processes[process].paused_until;
        world.oracle.told(token, notice, end, world.now, stopped, &world.server);
    });
}

impl Actor {
    /// Keeps it for a while, and lets go.
    pub(crate) fn renew(&mut self, held: Held, hold: u64, lease: Nanos) {
        let (_, process, now) = here();
        let token = held.token().to_string();
        let max_hold = self
            .chance
            .permille(350)
            .then(|| duration(self.chance.spread(50 * MILLI, 12 * SECOND)));
        let longest = max_hold.map(|longest| until(process, longest));
        say(|| format!("keeps {token}, for {max_hold:?} at most"));
        with(|world| world.oracle.begins_to_keep(hold, lease, longest, now));
        let name = token.clone();
        let tell =
            Some(Box::new(move |notice| told(&name, notice)) as Box<dyn Fn(Notice) + Send + Sync>);
        let kept = match held.renew(RenewOptions { max_hold, on_notice: tell }) {
            Ok(kept) => Arc::new(kept),
            Err(error) => return object(format!("it could not be kept: {error}")),
        };
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        registry.push(Treasure { token: token.clone(), kept: Arc::downgrade(&kept) });
        drop(registry);
        let mine = Mine { token, hold, lease, kept };
        for _ in 0..6 {
            match self.chance.within(0..10) {
                0..=3 => {
                    let length = self.chance.spread(MILLI, 2 * lease);
                    nap(length);
                }
                4 => nap(lease + SECOND),
                5..=6 => self.wait_for_the_loss(&mine),
                7 => check(&mine),
                8 => look(&mine),
                _ => break,
            }
        }
        self.let_go_of_kept(mine);
    }

    fn wait_for_the_loss(&mut self, mine: &Mine) {
        let limit = self.chance.spread(MILLI, 2 * mine.lease);
        let (_, process, _) = here();
        let end = until(process, duration(limit));
        let lost = mine.kept.wait_lost(duration(limit));
        let (_, _, now) = here();
        say(|| {
            format!(
                "waits for the loss of {} for {:.3} s, and is told {lost:?}",
                mine.token,
                limit as f64 / 1e9
            )
        });
        let late = now.saturating_sub(end);
        if lost.is_none() && now + MILLI < end {
            object("a wait for the loss ended before its limit".to_owned());
        } else if with(|world| world.scenario.calm) && late > 30 * MILLI {
            object(format!("a wait for the loss ended {:.3} s too late", late as f64 / 1e9));
        }
        look(mine);
    }

    fn let_go_of_kept(&mut self, mine: Mine) {
        let calm = with(|world| world.scenario.calm);
        if self.chance.permille(300) {
            wait_for_a_renewal(mine.lease);
        }
        let Mine { token, hold, kept, .. } = mine;
        let way = self.chance.within(u64::from(calm)..20);
        for _ in 0..3 {
            let (_, process, begun) = here();
            with(|world| {
                world.oracle.pauses_using(hold, begun, true);
                world.oracle.lets_go(&token, true);
            });
            if way < 3 {
                break;
            }
            let released = kept.release();
            say(|| format!("releasing {token}, which was kept, is answered {released:?}"));
            let (_, _, now) = here();
            match released {
                Ok(released) => {
                    with(|world| {
                        match released {
                            Release::Released => world.oracle.told_released(hold, &world.server),
                            Release::Lost => {
                                world.oracle.was_lost_before(&token, now, &world.server)
                            }
                            Release::NotHeld => {
                                world.oracle.object("a holder was told that it keeps nothing");
                            }
                        }
                        world.oracle.has_let_go(&token, now);
                    });
                    self.release_kept_again(&kept, released);
                    break;
                }
                Err(error) => self.failed(hold, begun, &error),
            }
            let end = until(process, kept.would_remain());
            with(|world| {
                world.oracle.uses(hold, end);
                world.oracle.lets_go(&token, false);
            });
            let pause = self.chance.spread(MILLI, 2 * SECOND);
            nap(pause);
        }
        with(|world| {
            world.oracle.pauses_using(hold, world.now, true);
            world.oracle.lets_go(&token, true);
        });
        match (way, Arc::try_unwrap(kept)) {
            (0, Ok(kept)) => kept.abandon(),
            (_, kept) => drop(kept),
        }
        let (_, _, now) = here();
        with(|world| {
            world.oracle.has_let_go(&token, now);
            world.oracle.forgets(hold);
        });
        // What was lost stays on the server for a while, which the end of a calm run is not to
        // find.
        if calm {
            nap(4 * SECOND);
        }
    }

    fn release_kept_again(&mut self, kept: &Renewal, released: Release) {
        if self.chance.permille(200) {
            let again = kept.release();
            if kept.is_held()
                || !matches!(again, Ok(again) if again == Release::NotHeld || again == released)
            {
                object(format!("what was released is still kept: {again:?}"));
            }
        }
    }
}

/// Until one is under way, if one is soon.
fn wait_for_a_renewal(lease: Nanos) {
    let (task, process, now) = here();
    with(|world| world.oracle.renewers.lurks(task, process));
    world::sleep_until(now + lease / 2);
    with(|world| world.oracle.renewers.lurks_no_more(process));
}

/// Asks the server whether it is there.
fn check(mine: &Mine) {
    let (_, _, begun) = here();
    let there = mine.kept.check();
    say(|| format!("checking {} is answered {there:?}", mine.token));
    match there {
        Ok(true) => with(|world| world.oracle.was_there(&mine.token, begun)),
        Ok(false) if mine.kept.lost().is_none() => {
            object(format!("{} was said not to be there, and is not lost", mine.token));
        }
        Ok(false) => look(mine),
        Err(error) => must_be_trouble("checking", &error),
    }
}

/// Looks at it, which is no I/O.
fn look(mine: &Mine) {
    let lost = mine.kept.lost();
    let (_, _, now) = here();
    if mine.kept.is_held() == lost.is_some() {
        object(format!("{} is held and lost, or neither of them", mine.token));
    }
    if let Some(loss) = lost {
        with(|world| world.oracle.learns(&mine.token, loss, now, &world.server));
    }
}
