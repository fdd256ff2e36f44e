//! The judge of semaphores: what the server's record of one may become, by whom, and when.
//!
//! | what is written | must be |
//! | --- | --- |
//! | a new line | by who asked for so many permits; all lines together are no more than there are permits |
//! | a line's end | moved by its owner only, no further than [`AFTER_THE_LEASE`] allows |
//! | no line any more | its owner's doing, unless the server's clock has passed its end |
//! | the number of permits | the doing of somebody who was told to, and of nobody's line |
//! | no record any more | the doing of somebody who was told to, once for each time |
//!
//! What callers are told stands in `semaphores/calls`, and who is to come next in
//! `semaphores/queue`; what holders may rely on is the same as for mutexes, see `holds`.

use std::collections::{BTreeMap, BTreeSet};

use super::{Doer, Oracle, Token};
use crate::server::{Cause, Change, Server};
use crate::time::{MILLI, Nanos, SECOND};

mod calls;
mod queue;
pub(crate) mod text;

pub(crate) use calls::Ask;
use calls::Call;
use queue::Stand;
use text::{Entry, Line, Record};

/// How long after the end of the lease, counted from when the write left, a line may end by a clock
/// that is never late, apart from the time that the look before took.
///
/// A look that left at `l` and took `t` read a server's clock that showed `n`, which it shows no
/// sooner than in its second `n`: so `n <= l + t`. A write that leaves at `w` sets the end to `n +
/// 2 + ceil(w - l + lease)`, and a little more for drift, because the lease must last even if the
/// clock was read at `l` and was two seconds behind. That is less than `l + t + 3 + w - l + lease =
/// w + lease + 3 + t`. A remembered look can be a minute old: the drift of two clocks in a minute,
/// 0.5 ms a second, is 30 ms. The server's clock shows the end up to a second and some milliseconds
/// later: so a dead holder's permits come back within the lease + 4.1 s + `t`.
const AFTER_THE_LEASE: Nanos = 3 * SECOND + 30 * MILLI;
/// A look that took longer is not remembered.
const REMEMBERED_LOOK: Nanos = 50 * MILLI;
/// A look that took longer is repeated before anything is written by it, also by the slowest clock.
const SLOW_LOOK: Nanos = SECOND + SECOND / 5000;

#[derive(Debug, Default)]
pub(crate) struct Semaphores {
    all: BTreeMap<String, Semaphore>,
    /// Who waits for permits: by task.
    calls: BTreeMap<usize, Call>,
    /// Who wants to know how one is: what it was since.
    watches: BTreeMap<usize, (String, BTreeSet<Status>)>,
    /// Calls that are over, and when that was: requests for them may still be under way.
    ended: Vec<(usize, Call, Nanos)>,
    /// What leases the tasks of a process have asked for, and when.
    leases: BTreeMap<(usize, usize), Vec<(Nanos, Nanos)>>,
    /// When a task was answered how a semaphore is, and how long that took.
    looks: BTreeMap<(usize, String), Vec<(Nanos, Nanos)>>,
}

/// How many permits there are, and how many are available; `None`: there is no such semaphore.
pub(crate) type Status = Option<(u32, u32)>;

#[derive(Debug, Default)]
struct Semaphore {
    record: Option<Record>,
    queue: Vec<Entry>,
    /// The task that has last written that it gathers.
    gatherer: Option<usize>,
    /// Since when somebody stands in the queue, by the id.
    stands: BTreeMap<String, Stand>,
    /// How many permits it is to have; and how many it was ever to have.
    number: u32,
    numbers: BTreeSet<u32>,
    /// Which numbers each process wanted it to have.
    resizes: BTreeSet<(usize, u32)>,
    /// It had more permits once, so that more may be out than there are.
    was_shrunk: bool,
    /// When each task was told to tear it down, and how often it has since.
    tear_downs: BTreeMap<usize, Vec<(Nanos, u32)>>,
    /// Processes that have left something in the queue, for which they may be rung later on.
    leavers: BTreeSet<usize>,
    /// Whose ends passed while their lines were there, and when that was last: nobody rings for
    /// those.
    over: BTreeSet<String>,
    overslept: Option<Nanos>,
}

impl Semaphore {
    /// How many permits nobody has when the server's clock shows that, but for whoever `but` says.
    fn available(&self, shows: u64, but: impl Fn(&Line) -> bool) -> u64 {
        let Some(record) = &self.record else { return u64::MAX };
        let out = record.lines.iter().filter(|line| line.until > shows && !but(line));
        u64::from(record.permits).saturating_sub(out.map(|line| u64::from(line.permits)).sum())
    }
}

impl Semaphores {
    pub(crate) fn new(permits: &[u32]) -> Semaphores {
        let all = permits.iter().enumerate().map(|(at, &number)| {
            let numbers = BTreeSet::from([number]);
            (format!("semaphore:s{at}"), Semaphore { number, numbers, ..Semaphore::default() })
        });
        Semaphores { all: all.collect(), ..Semaphores::default() }
    }

    /// The line of a holder, if it is there and its end has not passed.
    pub(crate) fn live_line(&self, key: &str, token: &str, shows: u64) -> Option<&Line> {
        self.line(key, token).filter(|line| line.until > shows)
    }

    /// The line of a holder, if it is there.
    pub(crate) fn line(&self, key: &str, token: &str) -> Option<&Line> {
        self.all.get(key)?.record.as_ref()?.line(token)
    }

    /// How many permits there are at most, if that can be told.
    pub(crate) fn most(&self, key: &str) -> Option<u32> {
        let semaphore = self.all.get(key)?;
        semaphore.record.as_ref().filter(|_| !semaphore.was_shrunk).map(|record| record.permits)
    }

    /// How many permits it is to have, as far as people know.
    pub(crate) fn number(&self, key: &str) -> u32 {
        self.all.get(key).map_or(1, |semaphore| semaphore.number)
    }

    /// Somebody is told to give it another number of permits.
    pub(crate) fn resizes(&mut self, process: usize, key: &str, number: u32) {
        if let Some(semaphore) = self.all.get_mut(key) {
            semaphore.number = number;
            semaphore.numbers.insert(number);
            semaphore.resizes.insert((process, number));
        }
    }

    /// Whether it was ever to have so many.
    pub(crate) fn ever_had(&self, key: &str, number: u32) -> bool {
        self.all.get(key).is_some_and(|semaphore| semaphore.numbers.contains(&number))
    }

    /// Somebody is told to tear it down.
    pub(crate) fn tears_down(&mut self, task: usize, key: &str, now: Nanos) {
        if let Some(semaphore) = self.all.get_mut(key) {
            semaphore.tear_downs.entry(task).or_default().push((now, 0));
        }
    }

    /// A task asks for a lease.
    pub(crate) fn leases(&mut self, process: usize, task: usize, now: Nanos, lease: Nanos) {
        self.leases.entry((process, task)).or_default().push((now, lease));
    }

    /// A task's look at a semaphore was answered. `since`: when it was begun, before any
    /// connecting.
    pub(crate) fn looked(&mut self, task: usize, key: &str, since: Nanos, now: Nanos) {
        if self.all.contains_key(key) {
            self.looks.entry((task, key.to_owned())).or_default().push((now, now - since));
        }
    }

    /// How long the look took on which a request is based that left then. A slow look counts for
    /// nothing unless it repeats another slow one.
    fn look_took(&self, task: usize, key: &str, sent: Nanos) -> Nanos {
        let looks = self.looks.get(&(task, key.to_owned())).map_or(&[][..], |looks| looks);
        let mut took =
            looks.iter().rev().filter(|(answered, _)| *answered <= sent).map(|&(_, took)| took);
        let (last, before) = (took.next().unwrap_or(0), took.next().unwrap_or(0));
        let counts = last <= SLOW_LOOK || before > SLOW_LOOK;
        if counts { last.max(REMEMBERED_LOOK) } else { REMEMBERED_LOOK }
    }

    /// The longest lease that a request of a process may be for which left then.
    fn lease_at(&self, process: usize, sent: Nanos) -> Nanos {
        let asked = self.leases.range((process, 0)..=(process, usize::MAX));
        let last = |asked: &[(Nanos, Nanos)]| {
            asked.iter().rev().find(|(time, _)| *time <= sent).map_or(0, |&(_, lease)| lease)
        };
        asked.map(|(_, asked)| last(asked)).max().unwrap_or(0)
    }

    /// The calls of a process that a line may be for.
    fn askers(&self, key: &str, line: &Line, by: Doer) -> impl Iterator<Item = (usize, &Call)> {
        let ended = self.ended.iter().filter(move |(.., ended)| *ended >= by.sent);
        let ended = ended.map(|(task, call, _)| (*task, call));
        let (key, permits) = (key.to_owned(), line.permits);
        self.calls.iter().map(|(&task, call)| (task, call)).chain(ended).filter(move |(_, call)| {
            call.is_of(by.process, by.sent) && call.ask.key == key && call.ask.permits == permits
        })
    }
}

impl Oracle {
    pub(crate) fn semaphore_changed(
        &mut self,
        change: &Change,
        now: Nanos,
        by: Option<Doer>,
        server: &Server,
    ) {
        let key = change.key.strip_suffix("%wait").unwrap_or(&change.key);
        if key != change.key {
            self.queue_changed(key, change, now, by);
        } else {
            self.record_changed(key, change, now, by, server);
        }
        self.look_at_semaphores(now, server.time());
    }

    fn record_changed(
        &mut self,
        key: &str,
        change: &Change,
        now: Nanos,
        by: Option<Doer>,
        server: &Server,
    ) {
        let after = change.after.as_deref().map(Record::read);
        if after == Some(None) {
            return self.object(format!("what was written of {key} cannot be read"));
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
            let shows = if self.calm { server.time() } else { 0 };
            let written =
                after.as_ref().map_or(Ok(()), |after| keeps_time(after, change.expires, shows));
            if let Err(what) = checked.and(written) {
                return self.object(format!(
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
        let shows = server.time();
        let lost = change.cause == Cause::Loss || change.cause == Cause::Command && after.is_none();
        for line in before.iter().flat_map(|before| &before.lines) {
            if after.as_ref().is_some_and(|after| after.line(&line.token).is_some()) {
                continue;
            }
            if change.cause == Cause::Expiry && line.until > shows {
                self.object(format!("{key} was gone before its holder {} was", line.token));
            }
            let cause = match line.until <= shows {
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
        if let (Some(Doer { process, task, sent }), Some(after)) = (by, &after) {
            let took = self.semaphores.look_took(task, key, sent);
            let askers: Vec<BTreeSet<usize>> = after
                .lines
                .iter()
                .map(|line| {
                    let is_known =
                        self.tokens.get(&line.token).is_some_and(|known| known.gone.is_none());
                    let by = Doer { process, task, sent };
                    let askers = self.semaphores.askers(key, line, by).map(|(task, _)| task);
                    if is_known { BTreeSet::new() } else { askers.collect() }
                })
                .collect();
            for (line, askers) in after.lines.iter().zip(askers) {
                let (ends, task) = (server.shows_at(line.until).saturating_sub(took), Some(task));
                let token = Token {
                    process,
                    task,
                    askers,
                    ends,
                    sent,
                    written: now,
                    gone: None,
                    again: false,
                };
                let known = self.tokens.entry(line.token.clone()).or_insert_with(|| token.clone());
                // The same attempt goes on, after what it had without knowing was lost.
                if known.gone.is_some() {
                    *known = token;
                }
            }
        }
        if let Some(semaphore) = self.semaphores.all.get_mut(key) {
            let gathers = |record: &Option<Record>| {
                record.as_ref().and_then(|record| record.reservation.clone())
            };
            if let (Some(by), true) = (by, gathers(&after) != gathers(&before)) {
                semaphore.gatherer = gathers(&after).map(|_| by.task);
            }
            let number =
                |record: &Option<Record>| record.as_ref().map_or(0, |record| record.permits);
            let same = after.is_some() && before.is_some();
            // Its holders' ends passed with its own: nobody wakes waiters then.
            let has_lines = before.as_ref().is_some_and(|before| !before.lines.is_empty());
            if change.cause == Cause::Expiry && has_lines {
                semaphore.overslept = Some(now);
            }
            semaphore.was_shrunk =
                same && (semaphore.was_shrunk || number(&after) < number(&before));
            semaphore.record = after;
        }
    }

    /// What one record may become by another.
    fn may_become(
        &self,
        key: &str,
        before: &Record,
        after: &Record,
        by: Doer,
        server: &Server,
    ) -> Result<(), String> {
        let shows = server.time();
        let owner = |token: &str| self.tokens.get(token).map(|token| token.process);
        for line in &before.lines {
            let is_owner = owner(&line.token) == Some(by.process);
            match after.line(&line.token) {
                None if !is_owner && line.until > shows => {
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
        let took = self.semaphores.look_took(by.task, key, by.sent);
        let latest = |token: &str| {
            let kept = self.keeping.lease_of(token);
            let lease = kept.unwrap_or_else(|| self.semaphores.lease_at(by.process, by.sent));
            by.sent + lease + AFTER_THE_LEASE + took + lease / 5000
        };
        let is_new = |line: &&Line| before.line(&line.token).is_none();
        for line in after.lines.iter().filter(|line| before.line(&line.token) != Some(line)) {
            let late = server.shows_at(line.until).saturating_sub(latest(&line.token));
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
            return Err("more permits are out than there are".to_owned());
        }
        let again = |line: &&&Line| {
            let known = self.tokens.get(&line.token);
            known.is_some_and(|it| {
                it.process != by.process || matches!(it.gone, None | Some((_, Cause::Command)))
            })
        };
        if let Some(line) = new.iter().find(again) {
            return Err(format!("{} is there once more", line.token));
        }
        self.may_take(key, before, &new, by, shows)?;
        let Some(semaphore) = self.semaphores.all.get(key) else { return Ok(()) };
        if before.permits != after.permits
            && (before.lines != after.lines
                || !semaphore.resizes.contains(&(by.process, after.permits)))
        {
            return Err("it has a number of permits that nobody wanted".to_owned());
        }
        if (&before.token, before.life, before.serial + 1)
            != (&after.token, after.life, after.serial)
        {
            return Err("it is not the same semaphore, written once more".to_owned());
        }
        Ok(())
    }

    fn may_end(&self, key: &str, by: Doer) -> Result<(), String> {
        let told =
            self.semaphores.all.get(key).and_then(|semaphore| semaphore.tear_downs.get(&by.task));
        match told.and_then(|told| told.iter().rev().find(|(begun, _)| *begun <= by.sent)) {
            Some((_, 0)) => Ok(()),
            Some(_) => Err("it tore down two of them at once".to_owned()),
            None => Err("it is gone, though nobody tore it down".to_owned()),
        }
    }

    /// What a tear-down has done.
    fn tore_down(&mut self, key: &str, by: Doer) {
        let told = self
            .semaphores
            .all
            .get_mut(key)
            .and_then(|semaphore| semaphore.tear_downs.get_mut(&by.task));
        if let Some((_, times)) =
            told.and_then(|told| told.iter_mut().rev().find(|(begun, _)| *begun <= by.sent))
        {
            *times += 1;
        }
    }

    /// At the end of a calm run all permits have come back, and nobody waits.
    pub(crate) fn semaphores_at_the_end(&self, shows: u64) -> Option<String> {
        self.semaphores.all.iter().find_map(|(key, semaphore)| {
            let lines = semaphore.record.iter().flat_map(|record| &record.lines);
            let held = lines.filter(|line| line.until > shows).map(|line| &line.token);
            let left = held.chain(semaphore.queue.iter().map(|entry| &entry.id)).next()?;
            Some(format!("all is over, and {left} is left in {key}"))
        })
    }
}

impl Semaphore {
    fn may_begin(&self, after: &Record) -> Result<(), String> {
        match (self.numbers.contains(&after.permits), after.lines.is_empty()) {
            (true, true) => Ok(()),
            (false, _) => Err("it has a number of permits that nobody wanted".to_owned()),
            (_, false) => Err("somebody holds permits from the beginning".to_owned()),
        }
    }
}

/// Readers tell the time by when the item says that it expires; and it is kept for as long as was
/// asked for, but for what its clock was behind.
fn keeps_time(record: &Record, expires: Option<u64>, shows: u64) -> Result<(), String> {
    if record.expires + 2 < shows + record.life {
        return Err(format!("it is kept until {}, too short from {shows} on", record.expires));
    }
    if expires != Some(record.expires) {
        return Err(format!("it expires at {expires:?}, and says something else"));
    }
    match record.lines.iter().find(|line| line.until > record.expires) {
        Some(line) => Err(format!("it expires before its holder {}", line.token)),
        None => Ok(()),
    }
}
