//! What tasks do with semaphores.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use memlock_core::{ErrorKind, Mismatch, Permit, Request, Wait, Waited};

use super::actor::Actor;
use super::context::{check_error, duration, here, in_step, in_world, report_violation, trace};
use super::opened::Opened;
use crate::oracle::{PermitRequest, Refusal};
use crate::time::{MILLI, Nanos, SECOND};
use crate::world::with;

impl Actor {
    pub(crate) fn use_semaphore(&mut self) {
        let plan = with(|world| world.scenario.semaphores.clone());
        let which = self.rng.within(0..plan.permits.len() as u64);
        let name = format!("s{which}");
        let key = format!("semaphore:{name}");
        let Some(opened) = self.open(&name, &key, plan.resizes) else { return };
        match self.rng.within(0..100) {
            0..=5 if plan.resizes => self.resize(&opened, &key),
            6..=9 if plan.tear_downs => self.tear_down(&opened, &key),
            10..=12 => self.set_semaphore_up(&opened, &name, &key),
            13..=16 => self.status(&opened, &key),
            _ => self.acquire(&opened, &name, key, plan.several, plan.priorities),
        }
    }

    /// Returns the handle that the process already has, or opens a new one.
    fn open(&mut self, name: &str, key: &str, resizes: bool) -> Option<Opened> {
        let shelved = self.items().get(name).cloned();
        if let Some(opened) = shelved
            && self.rng.permille(800)
        {
            return Some(opened);
        }
        let number = with(|world| world.oracle.semaphores.number(key));
        let number = if self.rng.permille(850) { Some(number) } else { None };
        let (number, mismatch) =
            if resizes { self.differ(number) } else { (number, Mismatch::Refuse) };
        let lease = duration(SECOND);
        let semaphore = match number {
            Some(number) => self.client.semaphore(name, number, lease),
            None => self.client.open_semaphore(name, lease),
        };
        match semaphore {
            Ok(semaphore) => {
                let semaphore = semaphore.with_mismatch(mismatch);
                let opened = Opened { semaphore, number, mismatch };
                self.items().insert(name.to_owned(), opened.clone());
                Some(opened)
            }
            Err(error) => {
                report_violation(format!("a semaphore was refused: {error}"));
                None
            }
        }
    }

    /// Programs that are deployed one after the other know different numbers.
    fn differ(&mut self, number: Option<u32>) -> (Option<u32>, Mismatch) {
        let all = [Mismatch::Follow, Mismatch::Follow, Mismatch::Resize, Mismatch::Refuse];
        let another = self.rng.permille(300).then(|| self.rng.within(1..9) as u32);
        (number.map(|number| another.unwrap_or(number)), self.rng.pick(&all))
    }

    /// From now on the process may set the semaphore up or resize it as this handle does.
    fn uses(&self, opened: &Opened, key: &str) {
        let (_, process, _) = here();
        if let Some(number) = opened.number {
            let resizes = opened.mismatch == Mismatch::Resize;
            with(|world| world.oracle.semaphores.may_have(process, key, number, resizes));
        }
    }

    fn items(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Opened>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn acquire(
        &mut self,
        opened: &Opened,
        name: &str,
        key: String,
        several: bool,
        priorities: bool,
    ) {
        self.uses(opened, &key);
        let lease = self.lease();
        let limit = match self.rng.within(0..20) {
            0..=3 => None,
            4..=8 => Some(0),
            _ => Some(in_step(self.rng.spread(20 * MILLI, 7 * SECOND))),
        };
        let most = u64::from(with(|world| world.oracle.semaphores.number(&key)));
        let permits =
            if several && self.rng.permille(500) { self.rng.within(1..most + 1) as u32 } else { 1 };
        let priority = if priorities { self.rng.pick(&[-3, 0, 0, 1, 7]) } else { 0 };
        let request = Request { permits, priority, ages: self.rng.permille(800) };
        let semaphore = match opened.semaphore.with_lease(duration(lease)) {
            Ok(semaphore) => semaphore,
            Err(error) => return report_violation(format!("a lease was refused: {error}")),
        };
        let wait = limit.map_or(Wait::FOREVER, |limit| Wait::at_most(duration(limit)));
        let (task, process, now) = here();
        trace(|| {
            format!(
                "asks {name} for {request:?}, lease {:.1} s, limit {limit:?}",
                lease as f64 / 1e9
            )
        });
        let permit_request = PermitRequest {
            key,
            permits,
            priority,
            ages: request.ages,
            number: opened.number,
            mismatch: opened.mismatch,
            lease,
            limit,
        };
        with(|world| {
            let server_time = world.server.time();
            world.oracle.asks_for_permits(task, process, permit_request, now, server_time);
        });
        let refusal = match semaphore.acquire_with(request, &wait) {
            Ok(Waited::Done(permit)) => return self.hold_permits(permit, lease),
            Ok(Waited::Busy) => Refusal::Busy,
            Ok(Waited::TimedOut) => Refusal::TimedOut,
            Ok(Waited::Interrupted) => Refusal::Interrupted,
            Ok(Waited::Recovering) => Refusal::Recovering,
            Err(error) => {
                trace(|| format!("error: {error}"));
                match error.kind() {
                    ErrorKind::Unreachable => Refusal::Unreachable,
                    ErrorKind::Unknown => Refusal::Unknown,
                    ErrorKind::Invalid => Refusal::Invalid,
                    ErrorKind::NotFound => Refusal::NotFound,
                    _ => Refusal::Other,
                }
            }
        };
        trace(|| format!("is told {refusal:?}"));
        if matches!(refusal, Refusal::Invalid | Refusal::NotFound) {
            // The next call opens a new one.
            self.items().remove(name);
        }
        with(|world| {
            let held_up = world.held_up(process);
            world.oracle.refused_permits(task, refusal, world.now, held_up, &world.server);
        });
    }

    fn hold_permits(&mut self, permit: Permit, lease: Nanos) {
        let until = in_world(permit.deadline());
        let (task, _, now) = here();
        let (token, permits) = (permit.token().to_string(), permit.permits());
        trace(|| {
            format!("has {permits} as {token} for {:.6} s", until.saturating_sub(now) as f64 / 1e9)
        });
        let hold = with(|world| world.oracle.granted_permits(task, token, permits, until, now));
        self.use_held(Box::new(permit), hold, until, lease);
    }

    fn resize(&mut self, opened: &Opened, key: &str) {
        let number = self.rng.within(1..6) as u32;
        let (_, process, _) = here();
        with(|world| world.oracle.semaphores.resizes(process, key, number));
        let resized = opened.semaphore.resize(number);
        trace(|| format!("resizing {key} to {number} is answered {resized:?}"));
        match resized {
            Ok(Some(before)) if with(|world| !world.oracle.semaphores.ever_had(key, before)) => {
                report_violation(format!(
                    "{key} was reported to have had {before} permits, which it never had"
                ));
            }
            Ok(_) => {}
            Err(error) => check_error("resizing", &error),
        }
    }

    fn tear_down(&mut self, opened: &Opened, key: &str) {
        let (task, _, now) = here();
        with(|world| world.oracle.semaphores.tears_down(task, key, now));
        let torn = opened.semaphore.tear_down();
        trace(|| format!("tearing {key} down is answered {torn:?}"));
        if let Err(error) = torn {
            check_error("tearing down", &error);
        }
    }

    fn set_semaphore_up(&mut self, opened: &Opened, name: &str, key: &str) {
        let life = if self.rng.permille(500) {
            self.rng.spread(SECOND, 20 * SECOND)
        } else {
            3600 * SECOND
        };
        self.uses(opened, key);
        let set_up = opened.semaphore.set_up(duration(life));
        trace(|| format!("setting {key} up is answered {set_up:?}"));
        if let Err(error) = set_up {
            if error.kind() == ErrorKind::Invalid {
                self.items().remove(name);
            } else if error.kind() != ErrorKind::NotFound || opened.number.is_some() {
                check_error("setting up", &error);
            }
        }
    }

    fn status(&mut self, opened: &Opened, key: &str) {
        let (task, _, now) = here();
        with(|world| {
            let server_time = world.server.time();
            world.oracle.semaphores.watches(task, key);
            world.oracle.inspect_semaphores(now, server_time);
        });
        match opened.semaphore.status() {
            Ok(status) => {
                let seen = status.map(|status| (status.permits, status.available));
                trace(|| format!("the status of {key} is {seen:?}"));
                if !with(|world| world.oracle.semaphores.saw(task, seen)) {
                    report_violation(format!(
                        "the status of {key} was reported as {seen:?}, which it has not been since the call began"
                    ));
                }
            }
            Err(error) => check_error("reading the status", &error),
        }
    }
}
