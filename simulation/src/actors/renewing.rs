//! What tasks do with renewals.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use memlock_core::{Guard, Notice, Release, RenewOptions, Renewal};

use super::actor::Actor;
use super::context::{check_error, duration, here, report_violation, sleep_for, trace};
use super::registry::{Registered, Registry, registered};
use crate::adapters::until;
use crate::time::{MILLI, Nanos, SECOND};
use crate::world::{self, with};

/// A renewal that belongs to this task.
struct OwnRenewal {
    token: String,
    hold: u64,
    lease: Nanos,
    renewal: Arc<Renewal>,
}

/// Reports to the oracle until when each renewal of the process would say that it is held.
pub(crate) fn inspect(registry: &Registry, process: usize) {
    for (token, renewal) in registered(registry) {
        let end = until(process, renewal.would_remain());
        with(|world| world.oracle.relies(&token, end, world.now, &world.sites));
    }
}

/// A child checks the renewals of its parent: none of them may count as held.
pub(crate) fn inherit(registry: &Registry) {
    for (token, renewal) in registered(registry) {
        trace(|| format!("the child checks its parent's renewal of {token}"));
        let found = (
            renewal.is_held(),
            renewal.lost(),
            renewal.check(),
            renewal.wait_lost(Duration::from_secs(1)),
        );
        if !matches!(
            (found, renewal.release()),
            ((false, None, Ok(false), None), Ok(Release::NotHeld))
        ) {
            report_violation(format!("a child was told that it holds its parent's {token}"));
        }
    }
}

/// The notice callback of a renewal.
fn notified(token: &str, notice: Notice) {
    let (_, process, _) = here();
    trace(|| format!("the holder of {token} is told {notice:?}"));
    let end = match notice {
        Notice::AtRisk(left) => until(process, left),
        Notice::Lost(_) => 0,
    };
    with(|world| {
        let stopped = world.processes[process].paused_until;
        world.oracle.notified(token, notice, end, world.now, stopped, &world.sites);
    });
}

impl Actor {
    /// Renews the hold for a while, and releases it.
    pub(crate) fn renew(&mut self, held: Box<dyn Guard>, hold: u64, lease: Nanos) {
        let (_, process, now) = here();
        let token = held.token().to_string();
        let max_hold =
            self.rng.permille(350).then(|| duration(self.rng.spread(50 * MILLI, 12 * SECOND)));
        let longest = max_hold.map(|longest| until(process, longest));
        trace(|| format!("renews {token}, for {max_hold:?} at most"));
        with(|world| world.oracle.begins_renewal(hold, lease, longest, now));
        let name = token.clone();
        let tell =
            Some(Box::new(move |notice| notified(&name, notice))
                as Box<dyn Fn(Notice) + Send + Sync>);
        let renewal = match held.renew(RenewOptions { max_hold, on_notice: tell }) {
            Ok(renewal) => Arc::new(renewal),
            Err(error) => return report_violation(format!("the renewal could not begin: {error}")),
        };
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        registry.push(Registered { token: token.clone(), renewal: Arc::downgrade(&renewal) });
        drop(registry);
        let own = OwnRenewal { token, hold, lease, renewal };
        for _ in 0..6 {
            match self.rng.within(0..10) {
                0..=3 => {
                    let length = self.rng.spread(MILLI, 2 * lease);
                    sleep_for(length);
                }
                4 => sleep_for(lease + SECOND),
                5..=6 => self.wait_for_the_loss(&own),
                7 => check(&own),
                8 => check_state(&own),
                _ => break,
            }
        }
        self.release_renewal(own);
    }

    fn wait_for_the_loss(&mut self, own: &OwnRenewal) {
        let limit = self.rng.spread(MILLI, 2 * own.lease);
        let (_, process, _) = here();
        let end = until(process, duration(limit));
        let lost = own.renewal.wait_lost(duration(limit));
        let (_, _, now) = here();
        trace(|| {
            format!(
                "waits for the loss of {} for {:.3} s, and is told {lost:?}",
                own.token,
                limit as f64 / 1e9
            )
        });
        let late = now.saturating_sub(end);
        if lost.is_none() && now + MILLI < end {
            report_violation("a wait for the loss ended before its limit".to_owned());
        } else if with(|world| world.scenario.fault_free) && late > 30 * MILLI {
            report_violation(format!(
                "a wait for the loss ended {:.3} s too late",
                late as f64 / 1e9
            ));
        }
        check_state(own);
    }

    fn release_renewal(&mut self, own: OwnRenewal) {
        let fault_free = with(|world| world.scenario.fault_free);
        if self.rng.permille(300) {
            wait_for_a_renewal(own.lease);
        }
        let OwnRenewal { token, hold, renewal, .. } = own;
        let way = self.rng.within(u64::from(fault_free)..20);
        for _ in 0..3 {
            let (_, process, begun) = here();
            with(|world| {
                world.oracle.pauses_using(hold, begun, true);
                world.oracle.set_releasing(&token, true);
            });
            if way < 3 {
                break;
            }
            let released = renewal.release();
            trace(|| format!("releasing the renewed {token} is answered {released:?}"));
            let (_, _, now) = here();
            match released {
                Ok(released) => {
                    with(|world| {
                        match released {
                            Release::Released => {
                                world.oracle.told_released(hold, now, &world.sites)
                            }
                            Release::Lost => {
                                world.oracle.was_lost_before(&token, now, &world.sites)
                            }
                            Release::NotHeld => {
                                world
                                    .oracle
                                    .report_violation("a holder was told that it holds nothing");
                            }
                        }
                        world.oracle.has_released(&token, now);
                    });
                    self.release_renewal_again(&renewal, released);
                    break;
                }
                Err(error) => self.failed(hold, begun, &error),
            }
            let end = until(process, renewal.would_remain());
            with(|world| {
                world.oracle.uses(hold, end);
                world.oracle.set_releasing(&token, false);
            });
            let pause = self.rng.spread(MILLI, 2 * SECOND);
            sleep_for(pause);
        }
        with(|world| {
            world.oracle.pauses_using(hold, world.now, true);
            world.oracle.set_releasing(&token, true);
        });
        match (way, Arc::try_unwrap(renewal)) {
            (0, Ok(renewal)) => renewal.abandon(),
            (_, renewal) => drop(renewal),
        }
        let (_, _, now) = here();
        with(|world| {
            world.oracle.has_released(&token, now);
            world.oracle.forgets(hold);
        });
        // What was lost may stay on the server until its lease ends. At the end of a fault-free run
        // it must be gone.
        if fault_free {
            sleep_for(4 * SECOND);
        }
    }

    fn release_renewal_again(&mut self, renewal: &Renewal, released: Release) {
        if self.rng.permille(200) {
            let again = renewal.release();
            if renewal.is_held()
                || !matches!(again, Ok(again) if again == Release::NotHeld || again == released)
            {
                report_violation(format!("a released lock is still renewed: {again:?}"));
            }
        }
    }
}

/// Waits until a renewal is under way, for half a lease at most.
fn wait_for_a_renewal(lease: Nanos) {
    let (task, process, now) = here();
    with(|world| world.oracle.renewers.awaits_renewal(task, process));
    world::sleep_until(now + lease / 2);
    with(|world| world.oracle.renewers.stops_awaiting_renewal(process));
}

/// Asks the server whether it is still held.
fn check(own: &OwnRenewal) {
    let (_, _, begun) = here();
    let there = own.renewal.check();
    trace(|| format!("checking {} is answered {there:?}", own.token));
    match there {
        Ok(true) => with(|world| world.oracle.was_there(&own.token, begun)),
        Ok(false) if own.renewal.lost().is_none() => {
            report_violation(format!(
                "a check answered that {} is gone, and it is not lost",
                own.token
            ));
        }
        Ok(false) => check_state(own),
        Err(error) => check_error("checking", &error),
    }
}

/// Checks the local state, without I/O.
fn check_state(own: &OwnRenewal) {
    let lost = own.renewal.lost();
    let (_, _, now) = here();
    if own.renewal.is_held() == lost.is_some() {
        report_violation(format!("{} is held and lost, or neither of them", own.token));
    }
    if let Some(loss) = lost {
        with(|world| world.oracle.learns(&own.token, loss, now, &world.sites));
    }
}
