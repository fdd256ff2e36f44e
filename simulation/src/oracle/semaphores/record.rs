//! How a semaphore's record may change in one write.

use super::state::Semaphore;
use super::text::{Line, Record};
use super::timing::AFTER_THE_LEASE;
use crate::oracle::requester::Requester;
use crate::oracle::state::Oracle;
use crate::server::{Cause, Server};

impl Oracle {
    /// Checks the change from one record to the next.
    pub(super) fn may_become(
        &self,
        key: &str,
        before: &Record,
        after: &Record,
        by: Requester,
        server: &Server,
    ) -> Result<(), String> {
        let server_time = server.time();
        let owner = |token: &str| self.tokens.get(token).map(|token| token.process);
        for line in &before.lines {
            let is_owner = owner(&line.token) == Some(by.process);
            match after.line(&line.token) {
                None if !is_owner && line.until > server_time => {
                    return Err(format!(
                        "{} of another process is gone, whose end has not passed",
                        line.token
                    ));
                }
                Some(now) if now.permits != line.permits => {
                    return Err(format!("{} has another number of permits", line.token));
                }
                Some(now) if now.until != line.until && !is_owner => {
                    return Err(format!("{} of another process ends at another time", line.token));
                }
                _ => {}
            }
        }
        let took = self.semaphores.read_took(by.task, key, by.sent);
        let latest = |token: &str| {
            let renewed = self.renewals.lease_of(token);
            let lease = renewed.unwrap_or_else(|| self.semaphores.lease_at(by.process, by.sent));
            by.sent + lease + AFTER_THE_LEASE + took + lease / 5000
        };
        let is_new = |line: &&Line| before.line(&line.token).is_none();
        for line in after.lines.iter().filter(|line| before.line(&line.token) != Some(line)) {
            let late = server.world_time_of(line.until).saturating_sub(latest(&line.token));
            if late > 0 {
                let late = late as f64 / 1e9;
                return Err(format!(
                    "{} ends {late:.3} s later than its lease explains",
                    line.token
                ));
            }
        }
        let new: Vec<&Line> = after.lines.iter().filter(is_new).collect();
        if !new.is_empty() && after.given() > u64::from(after.permits) {
            return Err("more permits are held than there are".to_owned());
        }
        let again = |line: &&&Line| {
            let known = self.tokens.get(&line.token);
            known.is_some_and(|it| {
                it.process != by.process || matches!(it.gone, None | Some((_, Cause::Command)))
            })
        };
        if let Some(line) = new.iter().find(again) {
            return Err(format!("{} was written again", line.token));
        }
        self.may_take(key, before, &new, by, server_time)?;
        let Some(semaphore) = self.semaphores.all.get(key) else { return Ok(()) };
        if before.permits != after.permits
            && (before.lines != after.lines
                || !semaphore.resizes.contains(&(by.process, after.permits)))
        {
            return Err("it has a number of permits that no process asked for".to_owned());
        }
        if (&before.token, before.life, before.serial + 1)
            != (&after.token, after.life, after.serial)
        {
            return Err("it is not the next version of the same semaphore".to_owned());
        }
        Ok(())
    }

    pub(super) fn may_end(&self, key: &str, by: Requester) -> Result<(), String> {
        let orders =
            self.semaphores.all.get(key).and_then(|semaphore| semaphore.tear_downs.get(&by.task));
        match orders.and_then(|orders| orders.iter().rev().find(|(begun, _)| *begun <= by.sent)) {
            Some((_, 0)) => Ok(()),
            Some(_) => Err("it tore down two of them at once".to_owned()),
            None => Err("it is gone, though no task tore it down".to_owned()),
        }
    }

    /// Counts a tear-down.
    pub(super) fn tore_down(&mut self, key: &str, by: Requester) {
        let orders = self
            .semaphores
            .all
            .get_mut(key)
            .and_then(|semaphore| semaphore.tear_downs.get_mut(&by.task));
        if let Some((_, times)) =
            orders.and_then(|orders| orders.iter_mut().rev().find(|(begun, _)| *begun <= by.sent))
        {
            *times += 1;
        }
    }
}

impl Semaphore {
    pub(super) fn may_begin(&self, after: &Record) -> Result<(), String> {
        match (self.numbers.contains(&after.permits), after.lines.is_empty()) {
            (true, true) => Ok(()),
            (false, _) => Err("it has a number of permits that no process asked for".to_owned()),
            (_, false) => Err("permits are held from the beginning".to_owned()),
        }
    }
}

/// Readers derive the time from the expiry that the item states, so that must be the item's actual
/// expiry. It is stored for the requested time, less what the writer's clock was behind.
pub(super) fn check_expiry(
    record: &Record,
    expires: Option<u64>,
    server_time: u64,
) -> Result<(), String> {
    if record.expires + 2 < server_time + record.life {
        return Err(format!(
            "it is stored until {}, too short from {server_time} on",
            record.expires
        ));
    }
    if expires != Some(record.expires) {
        return Err(format!("it expires at {expires:?}, and states another time"));
    }
    match record.lines.iter().find(|line| line.until > record.expires) {
        Some(line) => Err(format!("it expires before its holder {}", line.token)),
        None => Ok(()),
    }
}
