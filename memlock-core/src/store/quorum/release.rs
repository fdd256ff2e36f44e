//! Releasing a lock: removing its votes, by version.

use super::ballot::Ballot;
use super::inner::{Inner, OF_NO_LOCK, too_few};
use super::queue::OnQueue;
use super::task::{Came, Next, Task, drive};
use super::votes::{Due, Vote, Votes};
use crate::clock::Moment;
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::store::{Failure, Op, Reply, Route, Version};

/// How many requests a member gets at most.
const ROUNDS: usize = 6;

/// One release.
pub(super) struct Release<'a> {
    quorum: &'a Inner,
    key: &'a Key,
    /// The number of the ballot whose votes are removed.
    number: u64,
    /// How many of them have to be removed.
    needed: usize,
    /// What this client knows of them: nothing, if it takes the lock away from another one.
    votes: Option<Votes>,
    /// As it was at the beginning.
    before: Option<Votes>,
    states: Vec<State>,
    rounds: usize,
}

enum State {
    Delete(Version),
    /// The same, of a vote that does not count.
    Remove(Version),
    Get,
    Done(Outcome),
}

enum Outcome {
    Gone,
    /// There is no such vote.
    Lost,
    Failed(Failure),
}

impl<'a> Release<'a> {
    pub(super) fn new(quorum: &'a Inner, key: &'a Key, version: Version) -> Release<'a> {
        let votes = quorum.table().releasing(version.number()).filter(|votes| votes.key == *key);
        let may_be_left = |member, ballot| quorum.table().may_be_left(member, key, ballot);
        let begin = |member, vote: &Vote, ballot| match *vote {
            Vote { is_gone: true, .. } => State::Done(Outcome::Gone),
            Vote { version: Some(version), in_doubt: false, .. } => State::Delete(version),
            Vote { version: Some(_), .. } => State::Get,
            // A vote that did not count.
            Vote { version: None, .. } if may_be_left(member, ballot) => State::Get,
            Vote { version: None, .. } => State::Done(Outcome::Lost),
        };
        let states = match &votes {
            Some(Votes { votes, ballot, .. }) => {
                votes.iter().enumerate().map(|(member, vote)| begin(member, vote, ballot)).collect()
            }
            None => quorum.members.all().iter().map(|_| State::Get).collect(),
        };
        let before = votes.clone();
        let one = version.epoch() == OF_NO_LOCK || mutation::has(Mutation::ReleaseByOne);
        let needed = if one { 1 } else { quorum.majority() };
        Release { quorum, key, number: version.number(), needed, votes, before, states, rounds: 0 }
    }

    fn vote(&mut self, member: usize) -> Option<&mut Vote> {
        self.votes.as_mut()?.votes.get_mut(member)
    }

    fn gone(&mut self, member: usize) -> State {
        if let Some(vote) = self.vote(member) {
            vote.is_gone = true;
        }
        State::Done(Outcome::Gone)
    }

    /// Whether a vote that was found may have been put back late, after others had the lock.
    fn proves_nothing(&mut self, member: usize, found: Version, now: Moment) -> bool {
        self.vote(member).is_some_and(|vote| {
            let is_late = vote.latest.is_none_or(|latest| now >= latest);
            is_late && vote.version != Some(found)
        })
    }

    /// The member has no vote of this ballot. A server that was started anew and recovers has
    /// forgotten it, and nobody else has had a vote there since.
    fn missing(&mut self, member: usize, now: Moment) -> State {
        let route = Route::of(self.key);
        let recovery = self.quorum.members.all()[member].recovery(route);
        let is_forgotten = |vote: &mut Vote| {
            let is_in_time = vote.until.is_some_and(|until| now < until);
            is_in_time && recovery.is_some_and(|recovery| Some(recovery.epoch) != vote.life())
        };
        if self.vote(member).is_some_and(is_forgotten) {
            return self.gone(member);
        }
        State::Done(Outcome::Lost)
    }

    fn ended(&mut self) -> Next {
        let mut failures: Vec<&Failure> = Vec::new();
        let mut gone = 0;
        for state in &self.states {
            match state {
                State::Done(Outcome::Gone) => gone += 1,
                State::Done(Outcome::Failed(failure)) => failures.push(failure),
                _ => {}
            }
        }
        let table = self.quorum.table();
        if gone < self.needed && gone + failures.len() >= self.needed {
            if let (Some(before), Some(votes)) = (&self.before, &self.votes) {
                table.update(before, votes);
            }
            let sent = gone > 0 || failures.iter().any(|failure| failure.sent);
            if !sent {
                table.not_released(self.number);
            }
            return Next::Done(Err(too_few(&failures, self.quorum, sent)));
        }
        // What remains is removed when its member answers again; what another thread has extended
        // meanwhile, too.
        let latest = table.forget(self.number);
        if let (Some(votes), Some(before)) = (&self.votes, &self.before) {
            for (member, state) in self.states.iter().enumerate() {
                let Vote { until, in_doubt, .. } = votes.votes[member];
                let mut may_stay = in_doubt || matches!(state, State::Done(Outcome::Failed(_)));
                let latest = latest.as_ref().map(|latest| latest.votes[member]);
                may_stay |= latest.is_some_and(|latest| latest != before.votes[member]);
                if may_stay
                    && (until.is_some() || latest.is_some_and(|latest| latest.until.is_some()))
                {
                    self.quorum.leave(member, self.key, &votes.ballot);
                }
            }
        }
        Next::Done(Ok(if gone >= self.needed { Reply::Deleted } else { Reply::Missing }))
    }
}

impl Task for Release<'_> {
    fn follows(&self) -> Option<&Key> {
        Some(self.key)
    }

    /// It may be one of only q that have a vote.
    fn needs(&self, _member: usize) -> bool {
        true
    }

    fn add_to<'b>(&'b self, member: usize, batch: &mut Vec<Op<'b>>) {
        let key = self.key;
        batch.extend(match self.states[member] {
            State::Delete(version) | State::Remove(version) => Some(Op::Delete { key, version }),
            State::Get => Some(Op::get(key)),
            State::Done(_) => None,
        });
    }

    fn take(&mut self, member: usize, came: Came) {
        let reply = match came.replies.map(|replies| replies.into_iter().next()) {
            Ok(Some(reply)) => reply,
            Ok(None) => return,
            Err(failure) => {
                if failure.sent
                    && let Some(vote) = self.vote(member)
                {
                    vote.in_doubt = true;
                }
                self.states[member] = State::Done(Outcome::Failed(failure));
                return;
            }
        };
        let is_ours = |value: &[u8]| Ballot::of(value).number() == self.number;
        if let (State::Remove(_), Reply::Deleted, Some(votes)) =
            (&self.states[member], &reply, &self.votes)
        {
            self.quorum.table().removed(member, &votes.ballot);
        }
        self.states[member] = match (&self.states[member], reply) {
            (State::Delete(_), Reply::Deleted) => self.gone(member),
            (State::Delete(_), Reply::VersionMismatch) => State::Get,
            (State::Get, Reply::Value(item)) if is_ours(&item.value) => {
                match self.proves_nothing(member, item.version, came.at) {
                    true => State::Remove(item.version),
                    false => State::Delete(item.version),
                }
            }
            (State::Delete(_), Reply::Missing) | (State::Get, Reply::Missing) => {
                self.missing(member, came.at)
            }
            _ => State::Done(Outcome::Lost),
        };
    }

    fn next(&mut self, _now: Moment) -> Next {
        self.rounds += 1;
        let is_done = self.states.iter().all(|state| matches!(state, State::Done(_)));
        if is_done || self.rounds == ROUNDS { self.ended() } else { Next::Again }
    }
}

/// Removes a vote that must not stay, if one is there.
pub(super) struct Removal<'a> {
    due: &'a Due,
    found: Option<Version>,
    ended: Option<Result<Reply, Failure>>,
}

impl Removal<'_> {
    fn is_it(&self, found: &Ballot) -> bool {
        let has_token = |ballot: &Ballot| ballot.token() == found.token();
        self.due.ballots.contains(found)
            || mutation::has(Mutation::RemoveAnyAttempt) && self.due.ballots.iter().any(has_token)
    }
}

impl Task for Removal<'_> {
    fn follows(&self) -> Option<&Key> {
        None
    }

    fn needs(&self, _member: usize) -> bool {
        false
    }

    fn add_to<'b>(&'b self, member: usize, batch: &mut Vec<Op<'b>>) {
        let key = &self.due.key;
        batch.extend(match self.found {
            _ if member != self.due.member || self.ended.is_some() => None,
            Some(version) => Some(Op::Delete { key, version }),
            None => Some(Op::get(key)),
        });
    }

    fn take(&mut self, _member: usize, came: Came) {
        self.ended = match came.replies.map(|replies| replies.into_iter().next()) {
            Ok(Some(Reply::Value(item))) if self.is_it(&Ballot::of(&item.value)) => {
                self.found = Some(item.version);
                return;
            }
            Ok(Some(Reply::VersionMismatch)) if self.found.is_some() => {
                self.found = None;
                return;
            }
            Ok(Some(reply)) => Some(Ok(reply)),
            Ok(None) => Some(Ok(Reply::Missing)),
            Err(failure) => Some(Err(failure)),
        };
    }

    fn next(&mut self, _now: Moment) -> Next {
        match self.ended.take() {
            Some(ended) => Next::Done(ended),
            None => Next::Again,
        }
    }
}

/// Removes the votes of attempts that were given up, where their members answer again.
pub(super) fn remove_leftovers(quorum: &Inner, route: Route) {
    if !quorum.table().has_leftovers() {
        return;
    }
    let available: Vec<usize> = quorum.members.available().collect();
    let due = quorum.table().due(quorum.clock.now(), |member| available.contains(&member));
    if due.is_empty() {
        return;
    }
    let removal = |due| Box::new(Removal { due, found: None, ended: None }) as Box<dyn Task + '_>;
    let mut removals: Vec<Box<dyn Task + '_>> = due.iter().map(removal).collect();
    let mut queue = OnQueue::new(&quorum.members, route, Vec::new());
    let ended = drive(&quorum.members, quorum.clock.as_ref(), &mut removals, &mut queue, &|| {});
    for (due, reply) in due.iter().zip(ended) {
        if let Ok(reply) = reply {
            let is_removed = matches!(reply, Reply::Deleted);
            quorum.table().looked_for(due, is_removed, quorum.clock.now());
        }
    }
}
