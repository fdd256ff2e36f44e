//! What one packet renews: a lock, or all permits of one semaphore.

use std::sync::Arc;

use super::{Held, Hold};
use crate::client::Client;
use crate::clock::Moment;
use crate::flaw::{self, Flaw};
use crate::mutex::{self, Lock};
use crate::owner::Token;
use crate::semaphore::{self, Permit};
use crate::store::{Op, Reply, Route};

pub(super) enum Job {
    Lock(Arc<Hold>, Box<mutex::Renewal>),
    Permits(Vec<(Arc<Hold>, Token)>, semaphore::Renewals),
}

impl Job {
    /// `None` when there is nothing to renew.
    pub(super) fn new(hold: &Arc<Hold>) -> Option<Job> {
        let in_doubt = hold.course().in_doubt;
        match hold.held().as_mut()? {
            Held::Lock(lock) => Some(Job::Lock(Arc::clone(hold), Box::new(lock.renewal(in_doubt)?))),
            Held::Permit(permit) => {
                let holds = vec![(Arc::clone(hold), permit.token())];
                Some(Job::Permits(holds, permit.renewal()?))
            }
        }
    }

    /// The same from the beginning, after it failed.
    pub(super) fn anew(&self) -> Option<Job> {
        match self {
            Job::Lock(hold, _) => Job::new(hold),
            Job::Permits(holds, _) => {
                let mut holds = holds.iter().map(|(hold, _)| hold);
                let mut job = holds.find_map(Job::new)?;
                holds.for_each(|hold| _ = job.join(hold));
                Some(job)
            }
        }
    }

    /// Takes another hold along, if it is of the same semaphore.
    pub(super) fn join(&mut self, hold: &Arc<Hold>) -> bool {
        let Job::Permits(holds, renewals) = self else { return false };
        match hold.held().as_mut() {
            Some(Held::Permit(permit)) if renewals.is_of(permit) => {
                if renewals.join(permit) {
                    holds.push((Arc::clone(hold), permit.token()));
                }
                true
            }
            _ => false,
        }
    }

    /// Whether a renewal of it has failed since the last one that succeeded.
    pub(super) fn is_overdue(&self) -> bool {
        match self {
            Job::Lock(hold, _) => hold.course().overdue,
            Job::Permits(holds, _) => holds.iter().any(|(hold, _)| hold.course().overdue),
        }
    }

    pub(super) fn client(&self) -> &Client {
        match self {
            Job::Lock(hold, _) => &hold.client,
            // It begins with one, and is dropped with the last.
            Job::Permits(holds, _) => &holds[0].0.client,
        }
    }

    pub(super) fn route(&self) -> Route {
        match self {
            Job::Lock(_, renewal) => renewal.route,
            Job::Permits(_, renewals) => renewals.route(),
        }
    }

    /// Whether the old leases last, and nobody has let go meanwhile or held it for as long as is allowed: otherwise no further request
    /// leaves. Those of several that may be renewed go along with the next round.
    pub(super) fn may_go_on(&self) -> bool {
        let now = self.client().clock().now();
        let lasts = |deadline| now < deadline || flaw::has(Flaw::KeepPastTheEnd);
        let wanted =
            |hold: &Hold| (hold.is_kept() || flaw::has(Flaw::KeepWhatWasLetGo)) && !hold.is_at_its_longest();
        match self {
            Job::Lock(hold, renewal) => lasts(renewal.old_deadline) && wanted(hold),
            Job::Permits(holds, renewals) => {
                renewals.permits.iter().all(|permit| lasts(permit.old_deadline))
                    && holds.iter().all(|(hold, _)| wanted(hold))
            }
        }
    }

    pub(super) fn op(&self) -> Op<'_> {
        match self {
            Job::Lock(_, renewal) => renewal.op(),
            Job::Permits(_, renewals) => renewals.op(),
        }
    }

    /// Takes in a reply. True when there is another step to take.
    pub(super) fn take(&mut self, reply: &Reply, sent: Moment, came: Moment) -> bool {
        match self {
            Job::Lock(hold, renewal) => match renewal.take(reply, sent, came) {
                mutex::Renewed::NotYet => true,
                mutex::Renewed::Gone => {
                    // Unless its owner has released it meanwhile.
                    if hold.is_kept() {
                        hold.gone();
                    }
                    false
                }
                mutex::Renewed::Until { deadline, version, value } => {
                    if let Some(Held::Lock(lock)) = hold.held().as_mut() {
                        Lock::renewed(lock, deadline, version, value);
                    }
                    hold.renewed();
                    false
                }
            },
            Job::Permits(holds, renewals) => match renewals.take(reply, sent) {
                semaphore::Renewed::All => {
                    renewed_all(holds, renewals);
                    false
                }
                semaphore::Renewed::Gone(gone) => {
                    for (hold, _) in holds.extract_if(.., |(_, token)| gone.contains(token)) {
                        if hold.is_kept() {
                            hold.gone();
                        }
                    }
                    !holds.is_empty()
                }
            },
        }
    }

    /// The step failed. `sent`: but it may have been carried out.
    pub(super) fn failed(&self, sent: bool) {
        match self {
            Job::Lock(hold, _) if sent && flaw::has(Flaw::KeepLostReplyIsLoss) => hold.gone(),
            Job::Lock(hold, renewal) => hold.not_renewed(sent && renewal.writes()),
            Job::Permits(holds, renewals)
                if sent && renewals.writes() && flaw::has(Flaw::KeepHopeRenewed) =>
            {
                renewed_all(holds, renewals);
            }
            Job::Permits(holds, renewals) => {
                for (hold, _) in holds {
                    hold.not_renewed(sent && renewals.writes());
                }
            }
        }
    }
}

/// All of them have their new lease.
fn renewed_all(holds: &[(Arc<Hold>, Token)], renewals: &semaphore::Renewals) {
    for (hold, token) in holds {
        let renewed = renewals.permits.iter().find(|permit| permit.token == *token);
        if let (Some(renewed), Some(Held::Permit(permit))) = (renewed, hold.held().as_mut()) {
            Permit::renewed(permit, renewed.deadline);
        }
        hold.renewed();
    }
}
