//! One round of the keeper: what is over is lost, what is in danger is told, what is due is
//! renewed. And last, because it may take its time, what is to be done on the server after a loss.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::job::Job;
use super::{Hold, Loss, Notice};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::fork;
use crate::mutation::{self, Mutation};
use crate::store::{Failure, Op};

/// How many packets a server is sent in one round at most: two, and three more where it answers
/// slowly.
const PASSES: usize = 5;
/// For how long the packets of a server that refuses some of them are halved in one round: what
/// others keep is not renewed meanwhile.
const HALVING: Duration = Duration::from_millis(250);

/// Does what is to be done now, and tells when to come again at the latest.
///
/// Callbacks and loggers may fork. In the child nothing is kept, and the mutex of a hold may stay
/// locked by a thread that is only in the parent: so after each of them the child leaves.
pub(super) fn round(holds: &[Arc<Hold>]) -> Duration {
    let here = || !fork::is_astray();
    let live: Vec<&Arc<Hold>> = holds.iter().filter(|hold| here() && hold.lives_on()).collect();
    if !here() {
        return Duration::ZERO;
    }
    let due = |ahead: fn(&Hold) -> Duration| {
        live.iter().filter(move |hold| hold.is_due(ahead(hold))).copied()
    };
    // Each costs a timeout: it is to hold up the others no more than once.
    let mut silent = BTreeSet::new();
    if due(|_| Duration::ZERO).next().is_some() {
        let mut by_server: BTreeMap<usize, Vec<Job>> = BTreeMap::new();
        // What is due soon goes along.
        for hold in due(|hold| hold.lease / 6) {
            let jobs = by_server.entry(hold.server).or_default();
            if !jobs.iter_mut().any(|job| job.join(hold)) {
                jobs.extend(Job::new(hold));
            }
        }
        // Those last that did not answer the last time.
        let mut by_server: Vec<(usize, Vec<Job>)> = by_server.into_iter().collect();
        by_server.sort_by_key(|(_, jobs)| jobs.iter().any(Job::is_overdue));
        let tried = by_server
            .into_iter()
            .filter_map(|(server, jobs)| Some((server, renew_all(jobs).err()?)));
        let failures: Vec<(usize, Error)> = tried.collect();
        // Whoever listens may take its time, so not before everything is renewed.
        for (server, error) in failures {
            if error.is_outage() {
                silent.insert(server);
            }
            log::debug!("Leases could not be renewed now, and are tried again: {error}");
        }
    }
    holds.iter().take_while(|_| here()).for_each(|hold| hold.tell_loss());
    holds.iter().take_while(|_| here()).for_each(|hold| hold.clean_up(&mut silent));
    if !here() {
        return Duration::ZERO;
    }
    live.iter()
        .filter(|hold| hold.loss().is_none())
        .map(|hold| hold.next())
        .min()
        .unwrap_or(Duration::ZERO)
}

/// Renews what one server keeps. One that it refuses, since it is full perhaps, is not to cost the
/// others their leases: so a packet of which something was refused is tried again in halves, the
/// largest first.
fn renew_all(jobs: Vec<Job>) -> Result<()> {
    let Some(client) = jobs.first().map(|job| job.client().clone()) else { return Ok(()) };
    let until = client.clock().now() + HALVING;
    let (mut packets, mut ended) = (VecDeque::from([jobs]), Ok(()));
    let mut unsent = 0;
    while let Some(mut jobs) = packets.pop_front() {
        let Err(Failure { error, sent }) = renew(&mut jobs) else { continue };
        // One that refuses every connection refuses each half, too.
        unsent += u32::from(!sent && jobs.len() > 1);
        if error.kind() != ErrorKind::Protocol || unsent > 2 || client.clock().now() >= until {
            return Err(error);
        }
        if jobs.len() > 1 {
            let rest = jobs.split_off(jobs.len() / 2);
            packets.extend([jobs, rest].map(|half| half.iter().filter_map(Job::anew).collect()));
        } else {
            ended = Err(error);
        }
    }
    ended
}

/// Renews by as few packets as that takes. Semaphores that others write at the same time come last,
/// and each by itself.
fn renew(jobs: &mut Vec<Job>) -> std::result::Result<(), Failure> {
    let mut refused = Vec::new();
    let mut renewed = renew_together(jobs, &mut refused);
    for mut job in refused {
        match renewed {
            Ok(()) => renewed = job.combine(),
            Err(_) => job.failed(false),
        }
    }
    renewed
}

fn renew_together(jobs: &mut Vec<Job>, refused: &mut Vec<Job>) -> std::result::Result<(), Failure> {
    for _ in 0..PASSES {
        if fork::is_astray() {
            return Ok(());
        }
        jobs.retain(Job::may_go_on);
        let Some(first) = jobs.first() else { return Ok(()) };
        let (client, route) = (first.client().clone(), first.route());
        let sent = client.clock().now();
        let ops: Vec<Op<'_>> = jobs.iter().map(Job::op).collect();
        match client.run(route, &ops) {
            Ok(replies) => {
                let came = client.clock().now();
                let mut replies = replies.into_iter();
                jobs.retain_mut(|job| {
                    let reply = replies.next().filter(|_| !fork::is_astray());
                    reply.is_some_and(|reply| job.take(&reply, sent, came))
                });
                refused.extend(jobs.extract_if(.., |job| job.is_refused()));
            }
            Err(failure) => {
                for job in &*jobs {
                    job.failed(failure.sent);
                }
                return Err(failure);
            }
        }
    }
    // Others write faster than we do.
    for job in &*jobs {
        job.failed(false);
    }
    Ok(())
}

impl Hold {
    /// Whether it is held yet. Tells the owner what there is to tell.
    fn lives_on(&self) -> bool {
        let now = self.now();
        let (left, is_over) = match self.held().as_ref() {
            Some(held) => (held.remaining(), held.ends() <= now),
            None => return false,
        };
        if is_over && (self.is_at_its_longest() || !mutation::has(Mutation::KeepPastTheEnd)) {
            self.note(self.why_over());
        }
        if self.loss().is_some() {
            self.tell_loss();
            return false;
        }
        let in_danger = {
            let mut course = self.course();
            let late = self.is_at_its_longest() || course.overdue && left <= self.lease / 2;
            let first = late && (!course.warned || mutation::has(Mutation::WarnTwice));
            course.warned |= late;
            first
        };
        if in_danger && !mutation::has(Mutation::NoWarning) {
            self.tell(Notice::Danger(left));
        }
        true
    }

    /// Whether it is to be renewed now, or so much later.
    fn is_due(&self, ahead: Duration) -> bool {
        !self.is_at_its_longest() && self.course().due <= self.now() + ahead
    }

    pub(super) fn is_at_its_longest(&self) -> bool {
        self.longest.is_some_and(|longest| longest <= self.now())
            && !mutation::has(Mutation::KeepBeyondMaxHold)
    }

    /// How long it can be left alone.
    fn next(&self) -> Duration {
        let Some(left) = self.held().as_ref().map(super::Held::remaining) else {
            return Duration::ZERO;
        };
        let now = self.now();
        let course = self.course();
        let mut next = left;
        if self.longest.is_none_or(|longest| longest > now) {
            next = next.min(course.due.since(now));
        }
        if let Some(longest) = self.longest.filter(|&longest| longest > now) {
            next = next.min(longest.since(now));
        }
        if course.overdue && !course.warned {
            next = next.min(left.saturating_sub(self.lease / 2));
        }
        // It came to that in the course of a round: its owner is to know.
        if self.is_at_its_longest() && !course.warned {
            next = Duration::ZERO;
        }
        // Clocks are coarse: no round for nothing.
        next + Duration::from_millis(1)
    }

    /// The server has granted a new lease, which may end no later than the old one: a server that
    /// stood still is believed only as far as its TTL goes. The danger is over once more than half
    /// of the lease is left.
    pub(super) fn renewed(&self) {
        let due = self.in_time();
        let left = self.held().as_ref().map_or(Duration::ZERO, super::Held::remaining);
        let is_over = left > self.lease / 2;
        let was_in_danger = {
            let mut course = self.course();
            (course.overdue, course.in_doubt) = (false, false);
            (course.retry, course.due) = (Duration::ZERO, due);
            let warned = course.warned;
            course.warned &= !is_over;
            warned && is_over
        };
        if was_in_danger {
            log::info!("The lease of {} is renewed again.", self.key);
        }
    }

    /// It could not be renewed now. `in_doubt`: or it was, without our knowing.
    pub(super) fn not_renewed(&self, in_doubt: bool) {
        let now = self.now();
        let mut course = self.course();
        course.overdue = true;
        course.in_doubt |= in_doubt;
        course.retry = (course.retry * 2).clamp(super::FIRST_RETRY, super::LONGEST_RETRY);
        course.due =
            now + if mutation::has(Mutation::KeepOnlyOnce) { self.lease } else { course.retry };
    }

    /// When to renew it: after a third of its lease, or somewhat less, so that not all clients do
    /// it at once. At once, if so much of it has passed already.
    pub(super) fn in_time(&self) -> Moment {
        let chance = self.client.identity().map_or(0.5, |identity| identity.fraction());
        let after =
            if mutation::has(Mutation::KeepTooLate) { self.lease * 2 } else { self.lease / 3 };
        let left = self.held().as_ref().map_or(Duration::ZERO, super::Held::remaining);
        let passed = self.lease.saturating_sub(left);
        self.now() + after.mul_f64(0.9 + 0.1 * chance).saturating_sub(passed)
    }

    pub(super) fn now(&self) -> Moment {
        self.client.clock().now()
    }

    /// It was found to be gone.
    pub(super) fn gone(&self) {
        self.note(Loss::Gone);
    }
}
