//! Changes of mutexes on the server: which process removes a token, and who the owner is
//! afterwards.

use std::collections::BTreeSet;

use super::lock::PAST;
use super::requester::Requester;
use super::state::Oracle;
use super::token::{Token, reservation_of, token_of};
use crate::server::{Cause, Change, Server};
use crate::time::Nanos;

impl Oracle {
    pub(crate) fn changed(
        &mut self,
        change: &Change,
        now: Nanos,
        by: Option<Requester>,
        server: &Server,
    ) {
        if change.key.starts_with("list:") {
            return self.lists.changed(change, by.map(|by| by.task));
        }
        if change.key.starts_with("semaphore:") {
            return self.semaphore_changed(change, now, by, server);
        }
        if !change.key.starts_with("lock:") {
            return;
        }
        if let Some(key) = change.key.strip_suffix("%wait") {
            return self.lock_queue_changed(key, change, by);
        }
        let (before, after) =
            (token_of(change.before.as_deref()), token_of(change.after.as_deref()));
        if let Some(by) = by.filter(|by| self.renewers.has(by.task))
            && change.cause == Cause::Command
            && before.as_ref().or(after.as_ref()).is_some()
        {
            self.renewer_wrote_lock(change, now, by, server);
        }
        self.note_owner(change, now);
        if before == after {
            return;
        }
        if let Some(token) = &after {
            self.check_grant_in_recovery(&change.key, token, now, server);
        }
        if let (Some(token), Some(by)) = (&after, by) {
            self.note_written(token, change, now, by, server);
        }
        if let Some(token) = &before {
            self.check_removal(token, change, by);
            if let Some(token) = self.tokens.get_mut(token) {
                token.gone = Some((now, change.cause));
            }
        }
        if change.cause == Cause::Expiry {
            let lock = self.locks.entry(change.key.clone()).or_default();
            (lock.last_expiry, lock.irregular) = (Some(now), lock.irregular + 1);
        }
    }

    /// Records a token that was written: for a grant, or to put back what its holder had.
    fn note_written(
        &mut self,
        token: &str,
        change: &Change,
        now: Nanos,
        Requester { process, task, sent }: Requester,
        server: &Server,
    ) {
        let task = token_of(change.before.as_deref()).is_none().then_some(task);
        let again = self.tokens.contains_key(token);
        let life = server.life().pid;
        let known = self.tokens.get(token).filter(|known| known.life != life);
        let is_put_back = known.is_some();
        let is_released = matches!(known.and_then(|it| it.gone), Some((_, Cause::Command)));
        for hold in self.holds.values_mut().filter(|hold| hold.token == *token) {
            (hold.forgotten, hold.is_late) =
                (false, hold.is_late || is_put_back && (1..now).contains(&hold.until));
        }
        let (candidates, ends, gone) = (BTreeSet::new(), 0, None);
        let written =
            Token { process, task, candidates, ends, sent, written: now, gone, again, life };
        self.tokens.insert(token.to_owned(), written);
        if is_released {
            let key = &change.key;
            let what = format!("{key} was put back as {token}, which was released before");
            self.report_violation(what);
        }
    }

    /// A server that is younger than the guard stores only what was held before.
    pub(crate) fn check_grant_in_recovery(
        &mut self,
        key: &str,
        token: &str,
        now: Nanos,
        server: &Server,
    ) {
        let age = server.started.map_or(Nanos::MAX, |started| now.saturating_sub(started));
        let is_known = self.tokens.contains_key(token);
        if self.guard.is_some_and(|guard| age < guard) && !is_known {
            let age = age as f64 / 1e9;
            let what = format!("{key} was granted to {token} {age:.3} s after a restart");
            self.report_violation(what);
        }
    }

    /// Records the owner: a holder, or the waiter for which the mutex is reserved.
    fn note_owner(&mut self, change: &Change, now: Nanos) {
        let after = change.after.as_deref();
        let owner = token_of(after).or_else(|| reservation_of(after));
        let lock = self.locks.entry(change.key.clone()).or_default();
        lock.note_tenure(now);
        let before = lock.past.last();
        if before.map_or(owner.is_none(), |(_, before)| *before == owner) {
            return;
        }
        let freed = before.filter(|(_, owner)| owner.is_none()).map_or(now, |&(time, _)| time);
        if owner.is_some() {
            self.tally.longest_free = self.tally.longest_free.max(now - freed);
        }
        lock.past.push((now, owner));
        if lock.past.len() > PAST {
            lock.past.remove(0);
        }
    }

    fn check_removal(&mut self, token: &str, change: &Change, by: Option<Requester>) {
        for hold in self.holds.values_mut().filter(|hold| hold.token == token) {
            if change.cause == Cause::Loss {
                hold.lost = true;
            }
        }
        if change.cause != Cause::Command {
            return;
        }
        let owner = self.tokens.get(token).map(|token| token.process);
        if let (Some(owner), Some(Requester { process, .. })) = (owner, by)
            && owner != process
        {
            self.report_violation(format!(
                "process {process} removed {}, which process {owner} held as {token}",
                change.key
            ));
        }
    }
}
