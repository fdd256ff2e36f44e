//! What one packet renews: a lock, or all permits of one semaphore.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Held, Hold};
use crate::client::Client;
use crate::clock::Moment;
use crate::fork;
use crate::mutation::{self, Mutation};
use crate::mutex::{self, Lock};
use crate::owner::Token;
use crate::semaphore::{self, Permit};
use crate::store::{Failure, Op, Reply, Route};

pub(super) enum Job {
    Lock(Arc<Hold>, Box<mutex::Renewal>),
    Permits(Vec<(Arc<Hold>, Token)>, semaphore::Renewals),
}

impl Job {
    /// `None` when there is nothing to renew.
    pub(super) fn new(hold: &Arc<Hold>) -> Option<Job> {
        let in_doubt = hold.course().in_doubt;
        match hold.held().as_mut()? {
            Held::Lock(lock) => {
                Some(Job::Lock(Arc::clone(hold), Box::new(lock.renewal(in_doubt)?)))
            }
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

    /// Whether the old leases last, and nobody has let go meanwhile or held it for as long as is
    /// allowed: otherwise no further request leaves. Those of several that may be renewed go along
    /// with the next round.
    pub(super) fn may_go_on(&self) -> bool {
        let now = self.client().clock().now();
        let lasts = |deadline| now < deadline || mutation::has(Mutation::KeepPastTheEnd);
        match self {
            Job::Lock(hold, renewal) => lasts(renewal.old_deadline) && is_wanted(hold),
            Job::Permits(holds, renewals) => {
                renewals.permits.iter().all(|permit| lasts(permit.old_deadline))
                    && holds.iter().all(|(hold, _)| is_wanted(hold))
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
                    lose(holds, &gone);
                    !holds.is_empty()
                }
            },
        }
    }

    /// Whether somebody else was faster to write the semaphore.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Job::Permits(_, renewals) if renewals.is_refused())
    }

    /// Renews permits together with what else this process wants of their semaphore.
    pub(super) fn combine(&mut self) -> std::result::Result<(), Failure> {
        let Job::Permits(holds, renewals) = self else { return Ok(()) };
        let of_whom = holds.clone();
        let wanted = move |token: Token| {
            let hold = of_whom.iter().find(|(_, its)| *its == token).map(|(hold, _)| hold);
            hold.is_some_and(|hold| is_wanted(hold))
        };
        let combined = renewals.combine(Arc::new(wanted));
        match &combined {
            _ if fork::is_astray() => {}
            Ok(gone) => {
                lose(holds, gone);
                holds.retain(|(_, token)| {
                    renewals.permits.iter().any(|permit| permit.token == *token)
                });
                renewed_all(holds, renewals);
            }
            Err(failure) => holds.iter().for_each(|(hold, _)| hold.not_renewed(failure.sent)),
        }
        combined.map(|_| ())
    }

    /// The step failed. `sent`: but it may have been carried out.
    pub(super) fn failed(&self, sent: bool) {
        match self {
            Job::Lock(hold, _) if sent && mutation::has(Mutation::KeepLostReplyIsLoss) => {
                hold.gone()
            }
            Job::Lock(hold, renewal) => hold.not_renewed(sent && renewal.writes()),
            Job::Permits(holds, renewals)
                if sent && renewals.writes() && mutation::has(Mutation::KeepHopeRenewed) =>
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

/// Whether nobody has let go, nor held it for as long as is allowed.
fn is_wanted(hold: &Hold) -> bool {
    let is_kept = hold.is_kept() && !hold.let_go.load(Ordering::Acquire);
    (is_kept || mutation::has(Mutation::KeepWhatWasLetGo)) && !hold.is_at_its_longest()
}

/// These are not there any more: unless their owners have released them meanwhile, they are lost.
fn lose(holds: &mut Vec<(Arc<Hold>, Token)>, gone: &[Token]) {
    for (hold, _) in holds.extract_if(.., |(_, token)| gone.contains(token)) {
        if hold.is_kept() {
            hold.gone();
        }
    }
}

/// All of them have their new lease.
fn renewed_all(holds: &[(Arc<Hold>, Token)], renewals: &semaphore::Renewals) {
    for (hold, token) in holds.iter().take_while(|_| !fork::is_astray()) {
        let renewed = renewals.permits.iter().find(|permit| permit.token == *token);
        if let (Some(renewed), Some(Held::Permit(permit))) = (renewed, hold.held().as_mut()) {
            Permit::renewed(permit, renewed.deadline);
        }
        hold.renewed();
    }
}
