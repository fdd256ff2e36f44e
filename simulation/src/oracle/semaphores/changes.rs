//! A semaphore's record or queue changes on the server.

use std::collections::BTreeSet;

use super::record::check_expiry;
use super::text::Record;
use crate::oracle::requester::Requester;
use crate::oracle::state::Oracle;
use crate::oracle::token::Token;
use crate::server::{Cause, Change, Server};
use crate::time::Nanos;

impl Oracle {
    pub(crate) fn semaphore_changed(
        &mut self,
        change: &Change,
        now: Nanos,
        by: Option<Requester>,
        server: &Server,
    ) {
        let key = change.key.strip_suffix("%wait").unwrap_or(&change.key);
        if key != change.key {
            self.queue_changed(key, change, now, by);
        } else {
            self.record_changed(key, change, now, by, server);
        }
        self.inspect_semaphores(now, server.time());
    }

    fn record_changed(
        &mut self,
        key: &str,
        change: &Change,
        now: Nanos,
        by: Option<Requester>,
        server: &Server,
    ) {
        let after = change.after.as_deref().map(Record::read);
        if after == Some(None) {
            return self.report_violation(format!("the record of {key} cannot be parsed"));
        }
        let after = after.flatten();
        let Some(semaphore) = self.semaphores.all.get(key) else { return };
        let before = semaphore.record.clone();
        if let (Cause::Command, Some(by)) = (change.cause, by) {
            let checked = match (&before, &after) {
                (None, Some(after)) => semaphore.may_begin(after),
                (Some(before), Some(after)) => self.may_become(key, before, after, by, server),
                (Some(_), None) => self.may_end(key, by),
                (None, None) => Ok(()),
            };
            let server_time = if self.fault_free { server.time() } else { 0 };
            let written = after
                .as_ref()
                .map_or(Ok(()), |after| check_expiry(after, change.expires, server_time));
            if let Err(what) = checked.and(written) {
                return self.report_violation(format!(
                    "process {} wrote {key} so that {what}: {after:?}",
                    by.process
                ));
            }
            if after.is_none() {
                self.tore_down(key, by);
            }
        }
        if let (Cause::Command, Some(by)) = (change.cause, by) {
            let lines =
                |record: &Option<Record>| record.as_ref().map_or(Vec::new(), |it| it.lines.clone());
            self.renewed_lines(&lines(&before), &lines(&after), by);
        }
        let server_time = server.time();
        let lost = change.cause == Cause::Loss || change.cause == Cause::Command && after.is_none();
        for line in before.iter().flat_map(|before| &before.lines) {
            if after.as_ref().is_some_and(|after| after.line(&line.token).is_some()) {
                continue;
            }
            if change.cause == Cause::Expiry && line.until > server_time {
                self.report_violation(format!(
                    "{key} was gone before its holder {} was",
                    line.token
                ));
            }
            let cause = match line.until <= server_time {
                _ if change.cause == Cause::Forgotten => Cause::Forgotten,
                _ if lost => Cause::Loss,
                true => Cause::Expiry,
                false => Cause::Command,
            };
            if let Some(token) = self.tokens.get_mut(&line.token) {
                token.gone = Some((now, cause));
            }
        }
        if lost {
            self.loses(key);
        } else if change.cause == Cause::Expiry {
            self.forgets_releases(key);
        }
        let is_new = |token: &str| before.as_ref().is_none_or(|it| it.line(token).is_none());
        let lines = after.iter().flat_map(|after| &after.lines);
        for line in lines.filter(|line| is_new(&line.token)) {
            self.check_grant_in_recovery(key, &line.token, now, server);
            for hold in self.holds.values_mut().filter(|hold| hold.token == line.token) {
                hold.forgotten = false;
            }
        }
        if let (Some(Requester { process, task, sent }), Some(after)) = (by, &after) {
            let took = self.semaphores.read_took(task, key, sent);
            let candidates: Vec<BTreeSet<usize>> = after
                .lines
                .iter()
                .map(|line| {
                    let is_known =
                        self.tokens.get(&line.token).is_some_and(|known| known.gone.is_none());
                    let by = Requester { process, task, sent };
                    let candidates =
                        self.semaphores.candidates(key, line, by).map(|(task, _)| task);
                    // What its holder puts back is for no call.
                    let is_held = self.holds.values().any(|hold| hold.token == line.token);
                    if is_known || is_held { BTreeSet::new() } else { candidates.collect() }
                })
                .collect();
            for (line, candidates) in after.lines.iter().zip(candidates) {
                let (ends, task) =
                    (server.world_time_of(line.until).saturating_sub(took), Some(task));
                let token = Token {
                    process,
                    task,
                    candidates,
                    ends,
                    sent,
                    written: now,
                    gone: None,
                    again: false,
                    life: server.life().pid,
                };
                let known = self.tokens.entry(line.token.clone()).or_insert_with(|| token.clone());
                // The same attempt continues, after a grant that it did not know of was lost.
                if known.gone.is_some() {
                    *known = token;
                }
            }
        }
        if let Some(semaphore) = self.semaphores.all.get_mut(key) {
            let reservation = |record: &Option<Record>| {
                record.as_ref().and_then(|record| record.reservation.clone())
            };
            if let (Some(by), true) = (by, reservation(&after) != reservation(&before)) {
                semaphore.reserver = reservation(&after).map(|_| by.task);
            }
            let number =
                |record: &Option<Record>| record.as_ref().map_or(0, |record| record.permits);
            let same = after.is_some() && before.is_some();
            // The holders' ends passed together with the record's: no waiter is woken then.
            let has_lines = before.as_ref().is_some_and(|before| !before.lines.is_empty());
            if change.cause == Cause::Expiry && has_lines {
                semaphore.last_expiry = Some(now);
            }
            semaphore.was_shrunk =
                same && (semaphore.was_shrunk || number(&after) < number(&before));
            semaphore.record = after;
        }
    }

    /// At the end of a fault-free run all permits are available, and no call waits.
    pub(crate) fn semaphores_at_the_end(&self, server_time: u64) -> Option<String> {
        self.semaphores.all.iter().find_map(|(key, semaphore)| {
            let lines = semaphore.record.iter().flat_map(|record| &record.lines);
            let held = lines.filter(|line| line.until > server_time).map(|line| &line.token);
            let left = held.chain(semaphore.queue.iter().map(|entry| &entry.id)).next()?;
            Some(format!("the run has ended, and {left} is left in {key}"))
        })
    }
}
