//! What one packet renews: a lock, or all permits of one semaphore.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Held, RenewalEntry};
use crate::clock::Moment;
use crate::context::Context;
use crate::fork;
use crate::mutation::{self, Mutation};
use crate::mutex::{self, Lock};
use crate::owner::Token;
use crate::semaphore;
use crate::store::{Failure, Op, Reply, Route};

pub(super) enum Batch {
    Lock(Arc<RenewalEntry>, Box<mutex::LockRenewal>),
    Permits(Vec<(Arc<RenewalEntry>, Token)>, semaphore::PermitRenewals),
}

impl Batch {
    /// `None` when there is nothing to renew.
    pub(super) fn new(entry: &Arc<RenewalEntry>) -> Option<Batch> {
        let in_doubt = entry.state().in_doubt;
        match entry.held().as_mut()? {
            Held::Lock(lock) => {
                Some(Batch::Lock(Arc::clone(entry), Box::new(lock.renewal(in_doubt)?)))
            }
            Held::Permit(permit) => {
                let entries = vec![(Arc::clone(entry), permit.token())];
                Some(Batch::Permits(entries, permit.renewal()?))
            }
        }
    }

    /// The same from the beginning, after it failed.
    pub(super) fn anew(&self) -> Option<Batch> {
        match self {
            Batch::Lock(entry, _) => Batch::new(entry),
            Batch::Permits(entries, _) => {
                let mut entries = entries.iter().map(|(entry, _)| entry);
                let mut batch = entries.find_map(Batch::new)?;
                entries.for_each(|entry| _ = batch.join(entry));
                Some(batch)
            }
        }
    }

    /// Takes another hold along, if it is of the same semaphore.
    pub(super) fn join(&mut self, entry: &Arc<RenewalEntry>) -> bool {
        let Batch::Permits(entries, renewals) = self else { return false };
        match entry.held().as_mut() {
            Some(Held::Permit(permit)) if renewals.is_of(permit) => {
                if renewals.join(permit) {
                    entries.push((Arc::clone(entry), permit.token()));
                }
                true
            }
            _ => false,
        }
    }

    /// Whether a renewal of it has failed since the last one that succeeded.
    pub(super) fn is_overdue(&self) -> bool {
        match self {
            Batch::Lock(entry, _) => entry.state().overdue,
            Batch::Permits(entries, _) => entries.iter().any(|(entry, _)| entry.state().overdue),
        }
    }

    pub(super) fn context(&self) -> &Context {
        match self {
            Batch::Lock(entry, _) => &entry.target.context,
            // It begins with one, and is dropped with the last.
            Batch::Permits(entries, _) => &entries[0].0.target.context,
        }
    }

    pub(super) fn route(&self) -> Route {
        match self {
            Batch::Lock(_, renewal) => renewal.route,
            Batch::Permits(_, renewals) => renewals.route(),
        }
    }

    /// Whether the old leases last, and nobody has let go meanwhile or held it for as long as is
    /// allowed: otherwise no further request leaves. Those of several that may be renewed go along
    /// with the next round.
    pub(super) fn may_go_on(&self) -> bool {
        let now = self.context().clock().now();
        let lasts = |deadline| now < deadline || mutation::has(Mutation::KeepPastTheEnd);
        match self {
            Batch::Lock(entry, renewal) => lasts(renewal.old_deadline) && is_wanted(entry),
            Batch::Permits(entries, renewals) => {
                renewals.permits.iter().all(|permit| lasts(permit.old_deadline))
                    && entries.iter().all(|(entry, _)| is_wanted(entry))
            }
        }
    }

    pub(super) fn op(&self) -> Op<'_> {
        match self {
            Batch::Lock(_, renewal) => renewal.op(),
            Batch::Permits(_, renewals) => renewals.op(),
        }
    }

    /// Takes in a reply. True when there is another step to take.
    pub(super) fn take(&mut self, reply: &Reply, sent: Moment, came: Moment) -> bool {
        match self {
            Batch::Lock(entry, renewal) => match renewal.take(reply, sent, came) {
                mutex::Progress::NotYet => true,
                mutex::Progress::Gone => {
                    // Unless its owner has released it meanwhile.
                    if entry.is_renewed() {
                        entry.gone();
                    }
                    false
                }
                mutex::Progress::Until { deadline, version, value } => {
                    if let Some(Held::Lock(lock)) = entry.held().as_mut() {
                        Lock::renewed(lock, deadline, version, value);
                    }
                    entry.renewed();
                    false
                }
            },
            Batch::Permits(entries, renewals) => match renewals.take(reply, sent) {
                semaphore::Progress::All => {
                    renewed_all(entries, renewals);
                    false
                }
                semaphore::Progress::Gone(gone) => {
                    lose(entries, &gone);
                    !entries.is_empty()
                }
            },
        }
    }

    /// Whether somebody else was faster to write the semaphore.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Batch::Permits(_, renewals) if renewals.is_refused())
    }

    /// Renews permits together with what else this process wants of their semaphore.
    pub(super) fn combine(&mut self) -> std::result::Result<(), Failure> {
        let Batch::Permits(entries, renewals) = self else { return Ok(()) };
        let of_whom = entries.clone();
        let wanted = move |token: Token| {
            let entry = of_whom.iter().find(|(_, its)| *its == token).map(|(entry, _)| entry);
            entry.is_some_and(|entry| is_wanted(entry))
        };
        let combined = renewals.combine(Arc::new(wanted));
        match &combined {
            _ if fork::is_astray() => {}
            Ok(gone) => {
                lose(entries, gone);
                entries.retain(|(_, token)| {
                    renewals.permits.iter().any(|permit| permit.token == *token)
                });
                renewed_all(entries, renewals);
            }
            Err(failure) => entries.iter().for_each(|(entry, _)| entry.not_renewed(failure.sent)),
        }
        combined.map(|_| ())
    }

    /// The step failed. `sent`: but it may have been carried out.
    pub(super) fn failed(&self, sent: bool) {
        match self {
            Batch::Lock(entry, _) if sent && mutation::has(Mutation::KeepLostReplyIsLoss) => {
                entry.gone()
            }
            Batch::Lock(entry, renewal) => entry.not_renewed(sent && renewal.writes()),
            Batch::Permits(entries, renewals)
                if sent && renewals.writes() && mutation::has(Mutation::KeepHopeRenewed) =>
            {
                renewed_all(entries, renewals);
            }
            Batch::Permits(entries, renewals) => {
                for (entry, _) in entries {
                    entry.not_renewed(sent && renewals.writes());
                }
            }
        }
    }
}

/// Whether nobody has let go, nor held it for as long as is allowed.
fn is_wanted(entry: &RenewalEntry) -> bool {
    let is_renewed = entry.is_renewed() && !entry.let_go.load(Ordering::Acquire);
    (is_renewed || mutation::has(Mutation::KeepWhatWasLetGo)) && !entry.is_at_its_longest()
}

/// These are not there any more: unless their owners have released them meanwhile, they are lost.
fn lose(entries: &mut Vec<(Arc<RenewalEntry>, Token)>, gone: &[Token]) {
    for (entry, _) in entries.extract_if(.., |(_, token)| gone.contains(token)) {
        if entry.is_renewed() {
            entry.gone();
        }
    }
}

/// All of them have their new lease.
fn renewed_all(entries: &[(Arc<RenewalEntry>, Token)], renewals: &semaphore::PermitRenewals) {
    for (entry, token) in entries.iter().take_while(|_| !fork::is_astray()) {
        let renewed = renewals.permits.iter().find(|permit| permit.token == *token);
        if let (Some(renewed), Some(Held::Permit(permit))) = (renewed, entry.held().as_mut()) {
            permit.renewed(renewed.deadline);
        }
        entry.renewed();
    }
}
