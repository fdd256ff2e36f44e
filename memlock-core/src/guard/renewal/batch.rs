//! The unit of a renewal: one guard, or all guards of a process that share an item.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::entry::RenewalEntry;
use super::renewable::{Joined, PendingRenewal, Progress};
use crate::clock::Moment;
use crate::context::Context;
use crate::mutation::{self, Mutation};
use crate::owner::Token;
use crate::store::{Failure, Op, Reply, Route};

pub(super) struct Batch {
    /// Begins with one entry. The batch is dropped with the last one.
    entries: Vec<(Arc<RenewalEntry>, Token)>,
    renewal: Box<dyn PendingRenewal>,
    context: Context,
    route: Route,
}

impl Batch {
    /// `None` if there is nothing to renew.
    pub(super) fn new(entry: &Arc<RenewalEntry>) -> Option<Batch> {
        let in_doubt = entry.state().in_doubt;
        let mut held = entry.held();
        let guard = held.as_mut()?;
        let entries = vec![(Arc::clone(entry), guard.token())];
        let (context, route) = (entry.target.context.clone(), entry.target.route);
        Some(Batch { entries, renewal: guard.begin(in_doubt)?, context, route })
    }

    /// The same batch from the beginning, after it failed.
    pub(super) fn anew(&self) -> Option<Batch> {
        let mut entries = self.entries.iter().map(|(entry, _)| entry);
        let mut batch = entries.find_map(Batch::new)?;
        entries.for_each(|entry| _ = batch.join(entry));
        Some(batch)
    }

    /// Adds another entry, if it shares the item.
    pub(super) fn join(&mut self, entry: &Arc<RenewalEntry>) -> bool {
        let mut held = entry.held();
        let Some(guard) = held.as_mut() else { return false };
        match self.renewal.join(guard.as_mut()) {
            Joined::NotOfThis => false,
            Joined::Nothing => true,
            Joined::Taken => {
                self.entries.push((Arc::clone(entry), guard.token()));
                true
            }
        }
    }

    /// Whether a renewal of any entry has failed since the last success.
    pub(super) fn is_overdue(&self) -> bool {
        self.entries.iter().any(|(entry, _)| entry.state().overdue)
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn route(&self) -> Route {
        self.route
    }

    /// Whether the old leases still run, and none was released meanwhile or has reached `max_hold`.
    /// Otherwise no further request is sent; if only some of the entries are out, the others are
    /// renewed in the next round. Announces the request to the guards.
    pub(super) fn may_go_on(&self) -> bool {
        let now = self.context.clock().now();
        (self.renewal.lasts(now) || mutation::has(Mutation::KeepPastTheEnd))
            && self.entries.iter().all(|(entry, _)| is_wanted(entry) && self.announce(entry))
    }

    /// False if the guard is being released.
    fn announce(&self, entry: &RenewalEntry) -> bool {
        match entry.held().as_mut() {
            Some(guard) => self.renewal.announce(guard.as_mut()),
            None => return mutation::has(Mutation::KeepWhatWasLetGo),
        }
        true
    }

    pub(super) fn ops(&self) -> Vec<Op<'_>> {
        self.renewal.ops()
    }

    /// Handles the replies to a step. True if there is another step to take.
    pub(super) fn take(&mut self, replies: Vec<Reply>, sent: Moment, came: Moment) -> bool {
        match self.renewal.take(replies, sent, came) {
            Progress::Renewed => {
                self.renewed();
                false
            }
            Progress::InDoubt => {
                self.not_renewed(true);
                false
            }
            Progress::NotYet { gone } => {
                self.lose(&gone);
                !self.entries.is_empty()
            }
        }
    }

    /// Whether another client was faster to write the item.
    pub(super) fn is_refused(&self) -> bool {
        self.renewal.is_refused()
    }

    /// Renews the entries together with this process's other writes to the item.
    pub(super) fn combine(&mut self) -> std::result::Result<(), Failure> {
        let of_whom = self.entries.clone();
        let wanted = move |token: Token| {
            let entry = of_whom.iter().find(|(_, its)| *its == token).map(|(entry, _)| entry);
            entry.is_some_and(|entry| is_wanted(entry))
        };
        let combined = self.renewal.combine(Arc::new(wanted));
        match &combined {
            Ok(gone) => {
                self.lose(gone);
                self.entries.retain(|(_, token)| self.renewal.has(*token));
                self.renewed();
            }
            Err(failure) => self.not_renewed(failure.sent),
        }
        combined.map(|_| ())
    }

    /// Handles a failed step. `sent`: the step may have been carried out all the same.
    pub(super) fn failed(&self, sent: bool) {
        let in_doubt = sent && self.renewal.writes();
        if in_doubt && mutation::has(Mutation::KeepHopeRenewed) {
            return self.renewed();
        }
        if sent && mutation::has(Mutation::KeepLostReplyIsLoss) {
            return self.entries.iter().for_each(|(entry, _)| entry.gone());
        }
        self.not_renewed(in_doubt);
    }

    /// Records that the entries could not be renewed now. `in_doubt`: they may be renewed all the same.
    pub(super) fn not_renewed(&self, in_doubt: bool) {
        self.entries.iter().for_each(|(entry, _)| entry.not_renewed(in_doubt));
    }

    /// The renewal is given up after a step that may have renewed the entries.
    pub(super) fn leave_in_doubt(&self) {
        self.entries.iter().for_each(|(entry, _)| entry.state().in_doubt = true);
    }

    /// Records that these entries are gone. They are lost, unless their holders have released them
    /// meanwhile.
    fn lose(&mut self, gone: &[Token]) {
        for (entry, _) in self.entries.extract_if(.., |(_, token)| gone.contains(token)) {
            if entry.is_renewed() {
                entry.gone();
            }
        }
    }

    /// Gives all entries their new lease.
    fn renewed(&self) {
        for (entry, token) in &self.entries {
            if let Some(guard) = entry.held().as_mut().filter(|guard| guard.token() == *token) {
                self.renewal.apply(guard.as_mut());
            }
            entry.renewed();
        }
    }
}

/// Whether the entry was neither released nor has reached `max_hold`.
fn is_wanted(entry: &RenewalEntry) -> bool {
    let is_renewed = entry.is_renewed() && !entry.let_go.load(Ordering::Acquire);
    (is_renewed || mutation::has(Mutation::KeepWhatWasLetGo)) && !entry.is_at_its_longest()
}
