//! What tasks do with distinct lists.

use std::time::Duration;

use memlock_core::{DistinctList, ErrorKind};

use super::actor::Actor;
use super::context::{duration, here, report_violation, trace};
use crate::time::SECOND;
use crate::world::with;

const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];

const SESSION: &str = "s";

impl Actor {
    pub(super) fn insert(&mut self, list: &mut Option<(DistinctList, Option<String>)>) {
        if list.is_none() || self.rng.permille(100) {
            let lasting = if self.rng.permille(800) {
                120 * SECOND
            } else {
                self.rng.spread(SECOND, 5 * SECOND)
            };
            *list = self.set_up(duration(lasting));
        }
        let Some((handle, joined)) = list else { return };
        let tear_downs = with(|world| world.scenario.tear_downs);
        if tear_downs && self.rng.permille(150) {
            let before = with(|world| world.oracle.lists.generation(SESSION));
            let torn = handle.tear_down();
            trace(|| format!("tearing down is answered {torn:?}"));
            if matches!(torn, Ok(true)) && joined.is_some() && before != *joined {
                report_violation("a handle of another session tore the session down".to_owned());
            }
            if let (Ok(_), Some(joined)) = (&torn, &joined)
                && with(|world| world.oracle.lists.generation(SESSION).as_ref() == Some(joined))
            {
                report_violation("a session was torn down, and is still there".to_owned());
            }
            return;
        }
        let key = self.rng.pick(&KEYS);
        let (task, process, _) = here();
        let Some(joined) = joined.clone() else { return };
        let before = with(|world| {
            let now = world.oracle.lists.generation(SESSION);
            world.oracle.lists.begins(task, process, &joined, key);
            now
        });
        let answer = handle.insert(key);
        trace(|| format!("inserting {key} is answered {answer:?}"));
        with(|world| {
            let lists = &mut world.oracle.lists;
            if before.as_ref() != Some(&joined) && matches!(answer, Ok(Some(_))) {
                lists.report_violation(format!("{key} was inserted into a session that was over"));
            }
            lists.answered(task, &joined, key, answer.as_ref().ok().copied());
            world.oracle.tally.inserts += 1;
        });
        if let Err(error) = answer {
            let fault_free = with(|world| world.scenario.fault_free);
            if fault_free || !matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Unknown) {
                report_violation(format!("an insert failed without a possible cause: {error}"));
            }
        }
    }

    /// Opens a list. Returns the handle, and its generation if that is certain.
    pub(super) fn set_up(&mut self, lasting: Duration) -> Option<(DistinctList, Option<String>)> {
        let mut handle = match self.client.distinct_list(SESSION) {
            Ok(handle) => handle,
            Err(error) => {
                report_violation(format!("a list was refused: {error}"));
                return None;
            }
        };
        let (task, ..) = here();
        let made = || with(|world| world.oracle.lists.made_by(task));
        let (before, made_before) = (with(|world| world.oracle.lists.generation(SESSION)), made());
        let set_up = handle.set_up(lasting);
        let after = with(|world| world.oracle.lists.generation(SESSION));
        trace(|| format!("setting a list up is answered {set_up:?}"));
        let certain = match set_up {
            Ok(memlock_core::SetUp::Joined) if before == after => after,
            // A delayed attempt of the same call may have created it.
            Ok(memlock_core::SetUp::Created) if made() == made_before + 1 => {
                after.filter(|after| with(|world| world.oracle.lists.is_by(after, task)))
            }
            _ => None,
        };
        set_up.ok().map(|_| (handle, certain))
    }
}
