//! What a thread reads for several of its jobs at once.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::reading::{FRESH, ReadAhead, Reading};
use crate::clock::Moment;
use crate::context::Context;
use crate::store::{Op, Route};

/// For so many jobs at least, and at most.
const JOBS: RangeInclusive<usize> = 4..=64;
/// For how long nothing is read ahead after that has failed: so much at once may be too much. And
/// after it was slow, so that what was read is soon too old.
const AFTER_FAILURE: Duration = Duration::from_secs(10);
const WHEN_SLOW: Duration = Duration::from_secs(1);

/// What was read for the jobs whose turns come next.
#[derive(Default)]
pub(super) struct Ahead {
    of_jobs: HashMap<u64, ReadAhead>,
    /// How many of the next jobs have been asked what they are about to read.
    considered: usize,
    pauses_until: Option<Moment>,
}

impl Ahead {
    /// What was read for this job, whose turn it is.
    pub(super) fn take(&mut self, number: u64, now: Moment) -> Option<ReadAhead> {
        let ahead = self.of_jobs.remove(&number)?;
        if ahead.is_fresh(now) {
            return Some(ahead);
        }
        // So is what was read for the others.
        self.pauses_until = Some(now + WHEN_SLOW);
        self.of_jobs.clear();
        self.considered = 0;
        None
    }

    /// Reads what the first jobs in `ready` are about to read, unless some of those are left for which
    /// that is done. `reading`: what this job is about to read, and where. `prepare` is called for one
    /// of the jobs of each server before that. False if a server has become silent.
    pub(super) fn read<'a>(
        &mut self,
        context: &Context,
        ready: &VecDeque<u64>,
        reading: impl Fn(u64, Moment) -> Option<(Route, Reading<'a>)>,
        prepare: impl Fn(u64),
    ) -> bool {
        if self.considered > 0 {
            self.considered -= 1;
            return true;
        }
        self.of_jobs.clear();
        // A quorum's members are asked in rounds of their own.
        if ready.len() < *JOBS.start() || context.guarantees().quorum.is_some() {
            return true;
        }
        let now = context.clock().now();
        if self.pauses_until.is_some_and(|until| now < until) {
            return true;
        }
        let mut next = ready.iter().take(*JOBS.end()).map(|&number| (number, reading(number, now)));
        // A job that does something else first does not wait for what is read for others.
        let first = match next.next() {
            Some((number, Some((route, reading)))) => (number, route, reading),
            _ => return true,
        };
        let mut of_servers: BTreeMap<usize, Vec<(u64, Route, Reading<'a>)>> = BTreeMap::new();
        let others = next.filter_map(|(number, reading)| {
            reading.map(|(route, reading)| (number, route, reading))
        });
        for (number, route, reading) in std::iter::once(first).chain(others) {
            let of_server = of_servers.entry(context.server_of(route)).or_default();
            of_server.push((number, route, reading));
        }
        self.considered = ready.len().min(*JOBS.end()) - 1;
        let mut all_answer = true;
        for of_server in of_servers.into_values() {
            let (number, route, _) = of_server[0];
            if of_server.len() < *JOBS.start() || context.is_silent(route) {
                continue;
            }
            prepare(number);
            if context.is_silent(route) {
                all_answer = false;
                continue;
            }
            let ops: Vec<Op<'_>> =
                of_server.iter().flat_map(|(.., reading)| reading.ops()).collect();
            let asked = context.clock().now();
            let ran = context.run(route, &ops);
            let after = context.clock().now();
            all_answer &= ran.is_ok() || !context.is_silent(route);
            if ran.is_err() {
                self.failed(after);
            } else if after.since(asked) > FRESH / 2 {
                self.pauses_until = Some(after + WHEN_SLOW);
            }
            let mut replies = ran.unwrap_or_default().into_iter();
            self.of_jobs.extend(
                of_server
                    .iter()
                    .map(|(number, _, reading)| (*number, reading.answered(asked, &mut replies))),
            );
        }
        all_answer
    }

    /// Reads nothing ahead for a while.
    pub(super) fn failed(&mut self, now: Moment) {
        self.pauses_until = Some(now + AFTER_FAILURE);
    }
}
