//! Changes of votes and of counters of fences on the servers.

use std::collections::BTreeSet;

use crate::oracle::requester::Requester;
use crate::oracle::state::Oracle;
use crate::oracle::token::{Token, token_of};
use crate::server::{Cause, Change, Server};
use crate::site::Site;
use crate::time::Nanos;

impl Oracle {
    /// The history of a server's votes: in a quorum each server has its own.
    pub(in crate::oracle) fn history_of(&self, key: &str, site: usize) -> String {
        if self.quorum.is_some() { format!("{key}@{site}") } else { key.to_owned() }
    }

    pub(in crate::oracle) fn vote_changed(
        &mut self,
        site: usize,
        change: &Change,
        now: Nanos,
        by: Option<Requester>,
        server: &Server,
    ) {
        if let Some(key) = change.key.strip_suffix("%wait") {
            return self.lock_queue_changed(key, change, by);
        }
        if change.key.ends_with("%fence") {
            return self.check_counter(site, change);
        }
        let (before, after) =
            (token_of(change.before.as_deref()), token_of(change.after.as_deref()));
        let commanded = change.cause == Cause::Command;
        if let Some(by) = by.filter(|by| self.renewers.has(by.task) && commanded) {
            self.renewer_voted(before.as_deref(), after.as_deref(), by);
        }
        self.note_owner(&self.history_of(&change.key, site), change, now);
        match (&before, &after) {
            (None, Some(token)) => self.vote_added(site, &change.key, token, now, by, server),
            (Some(before), Some(after)) if before != after => {
                let key = &change.key;
                self.report_violation(format!("s{site}: {key} of {before} became one of {after}"));
            }
            (Some(token), None) if commanded => self.check_vote_removal(site, change, token, by),
            _ => {}
        }
    }

    fn vote_added(
        &mut self,
        site: usize,
        key: &str,
        token: &str,
        now: Nanos,
        by: Option<Requester>,
        server: &Server,
    ) {
        let Some(quorum) = &mut self.quorum else { return };
        let life = server.life().pid;
        quorum.added.insert(token.to_owned(), now);
        let first = *quorum.votes.entry((site, token.to_owned())).or_insert(life);
        let age = server.started.map_or(Nanos::MAX, |started| now.saturating_sub(started));
        if age < quorum.guard && first == life {
            let age = age as f64 / 1e9;
            self.report_violation(format!(
                "s{site} voted for {token} on {key} {age:.3} s after a restart"
            ));
        }
        if let Some(Requester { process, task, sent }) = by {
            self.tokens.entry(token.to_owned()).or_insert(Token {
                process,
                task: Some(task),
                candidates: BTreeSet::new(),
                ends: 0,
                sent,
                written: now,
                gone: None,
                again: false,
                life,
            });
        }
    }

    /// Whether all votes are those of holders that are not just extending or releasing the mutex.
    pub(crate) fn is_quietly_held(&self, key: &str, sites: &[Site]) -> bool {
        let is_quiet = |token: String| {
            self.holds.values().any(|hold| hold.token == token && hold.using && !hold.extending)
        };
        sites.iter().filter_map(|site| token_of(site.server.value(key))).all(is_quiet)
    }

    /// An operator takes the mutex away, which those who have votes do not know yet.
    pub(crate) fn taken_away(&mut self, key: &str, now: Nanos, sites: &[Site]) {
        for token in sites.iter().filter_map(|site| token_of(site.server.value(key))) {
            if let Some(token) = self.tokens.get_mut(&token) {
                token.gone = Some((now, Cause::Loss));
            }
            self.holds
                .values_mut()
                .filter(|hold| hold.token == token)
                .for_each(|hold| hold.lost = true);
        }
    }

    /// Only its own process removes a vote.
    fn check_vote_removal(
        &mut self,
        site: usize,
        change: &Change,
        token: &str,
        by: Option<Requester>,
    ) {
        let owner = self.tokens.get(token).map(|token| token.process);
        if let (Some(owner), Some(Requester { process, .. })) = (owner, by)
            && owner != process
        {
            self.report_violation(format!(
                "s{site}: process {process} removed {} of process {owner}, {token}",
                change.key
            ));
        }
    }

    /// A counter rises, until its server forgets it.
    fn check_counter(&mut self, site: usize, change: &Change) {
        let number = |value: &Option<Vec<u8>>| -> Option<u64> {
            std::str::from_utf8(value.as_deref()?).ok()?.parse().ok()
        };
        let (before, after) = (number(&change.before), number(&change.after));
        if change.cause == Cause::Command && before > after {
            let key = &change.key;
            self.report_violation(format!("s{site}: {key} fell from {before:?} to {after:?}"));
        }
    }
}
