//! Extending a lock, and putting back what members have forgotten.
//!
//! Each member is brought to confirm its vote again, side by side with the others:
//!
//! | state of a member | its request | what follows |
//! | --- | --- | --- |
//! | its version is known | `CompareAndSet` | confirmed; or it is read |
//! | a request had no reply | `Get` | a vote of this attempt that is found before its deadline is confirmed by its version; one that is found later is lost, and an extension removes it once nobody relies on it |
//! | it was started anew | `Add`, admitted only while it recovers | confirmed, if the reply comes before the vote's deadline and the lock's; otherwise removed |
//! | it has not voted, or has lost the vote | `Add` of a new vote | kept for the next extension, if the reply comes before the lock's deadline; otherwise removed. A vote of this attempt that is there by an earlier request is removed |
//!
//! A reply that took long may come from a member that was stopped, and stored the vote by an outdated
//! clock. It is confirmed once more.
//!
//! A check never shortens a lease: a member that has its vote confirms it for the lease of before.

use std::time::Duration;

use super::ballot::Ballot;
use super::inner::{Inner, deadline, too_few, too_late, version};
use super::task::{Came, Next, Task};
use super::votes::{Update, Vote, Votes};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::store::{Admission, Expiry, Failure, Item, Op, Reply, Returns, Stored, Version};

/// How many requests a member gets at most.
const ROUNDS: usize = 8;

/// One extension.
pub(super) struct Confirm<'a> {
    quorum: &'a Inner,
    key: &'a Key,
    /// `None` if this client has no votes of that version.
    votes: Option<Votes>,
    /// As they were at the beginning.
    before: Option<Votes>,
    value: Vec<u8>,
    lease: Duration,
    /// The end of the lock as it was before.
    lasted_until: Moment,
    states: Vec<State>,
    rounds: usize,
    /// Whether members that have no vote of this client are asked for one.
    votes_again: bool,
    /// Whether another thread has released the lock meanwhile.
    is_released: bool,
}

enum State {
    CompareAndSet(Write),
    Get,
    PutBack(Version),
    VoteAgain,
    Remove(Version),
    Done(Result),
}

/// A request that confirms a vote.
#[derive(Clone, Copy)]
struct Write {
    version: Version,
    lease: Duration,
    /// When an earlier one was sent that it repeats: the reply took so long that the member may have
    /// stood, with its clock.
    first: Option<Moment>,
    /// Whether the vote counts from the next extension on.
    is_kept: bool,
}

impl Write {
    fn new(version: Version, lease: Duration) -> Write {
        Write { version, lease, first: None, is_kept: false }
    }
}

/// What became of a vote.
enum Result {
    Confirmed,
    /// Confirmed, and counts from the next time on.
    Kept,
    Lost,
    Failed(Failure),
}

impl<'a> Confirm<'a> {
    /// Extends the lock with this version.
    pub(super) fn extend(
        quorum: &'a Inner,
        key: &'a Key,
        version: Version,
        record: &[u8],
        lease: Duration,
    ) -> Confirm<'a> {
        let votes = quorum.table().votes(version.number());
        Confirm::new(quorum, key, votes, record, lease, true)
    }

    /// Puts back what members have forgotten of the lock that the record's token holds.
    pub(super) fn reclaim(
        quorum: &'a Inner,
        key: &'a Key,
        record: &[u8],
        lease: Duration,
    ) -> Confirm<'a> {
        let token = Ballot::of(record).token();
        let votes = token.and_then(|token| quorum.table().votes_of(key, token));
        Confirm::new(quorum, key, votes, record, lease, false)
    }

    fn new(
        quorum: &'a Inner,
        key: &'a Key,
        votes: Option<Votes>,
        record: &[u8],
        lease: Duration,
        votes_again: bool,
    ) -> Confirm<'a> {
        let now = quorum.clock.now();
        let votes = votes.filter(|votes| votes.key == *key);
        let lasted_until = votes.as_ref().map_or(now, |votes| votes.deadline(quorum.majority()));
        // A server that stood must not drop it earlier than by the lease of before.
        let at_least = |vote: &Vote| if votes_again { lease } else { lease.max(vote.lease) };
        let is_releasing = votes.as_ref().is_some_and(Votes::is_releasing);
        let begin = |vote: &Vote| match (vote.version, vote.in_doubt) {
            _ if vote.is_gone => State::Done(Result::Lost),
            (Some(version), false) => State::CompareAndSet(Write::new(version, at_least(vote))),
            (Some(_), true) => State::Get,
            (None, _) if votes_again && !is_releasing => State::VoteAgain,
            (None, _) => State::Done(Result::Lost),
        };
        let states = votes.iter().flat_map(|votes| votes.votes.iter().map(begin)).collect();
        let value = votes.as_ref().map_or_else(Vec::new, |votes| votes.ballot.value(record));
        let before = votes.clone();
        Confirm {
            quorum,
            key,
            votes,
            before,
            value,
            lease,
            lasted_until,
            states,
            rounds: 0,
            votes_again,
            is_released: false,
        }
    }

    fn vote(&self, member: usize) -> Vote {
        self.votes.as_ref().and_then(|votes| votes.votes.get(member)).copied().unwrap_or_default()
    }

    fn set(&mut self, member: usize, vote: Vote) {
        if let Some(votes) = &mut self.votes {
            votes.votes[member] = vote;
        }
    }

    /// The end of the lock: it comes earlier once a member has confirmed a shorter lease, or may have.
    fn lasts_until(&self) -> Moment {
        let known = self.votes.as_ref().map(|votes| votes.deadline(self.quorum.majority()));
        known.map_or(self.lasted_until, |known| known.min(self.lasted_until))
    }

    /// The moment after which nothing that this vote confirms counts.
    fn limit(&self, member: usize) -> Moment {
        let until = self.vote(member).until.unwrap_or(Moment::from_boot(Duration::ZERO));
        until.min(self.lasts_until())
    }

    /// The member has no vote of this client.
    fn missing(&self, member: usize, now: Moment) -> State {
        if self.votes.as_ref().is_some_and(Votes::is_releasing) {
            return State::Done(Result::Lost);
        }
        match self.vote(member).version {
            Some(version) if now < self.limit(member) => State::PutBack(version),
            _ => self.vote_again(now),
        }
    }

    fn vote_again(&self, now: Moment) -> State {
        if now < self.lasts_until() && self.votes_again {
            State::VoteAgain
        } else {
            State::Done(Result::Lost)
        }
    }

    fn confirmed(&mut self, member: usize, version: Version, came: &Came) -> State {
        let vote = self.vote(member);
        let guarantees = self.quorum.guarantees();
        let write = match self.states[member] {
            State::CompareAndSet(write) => Write { version, ..write },
            State::VoteAgain => Write { is_kept: true, ..Write::new(version, self.lease) },
            _ => Write::new(version, self.lease),
        };
        // What is certain of an item that was there before, even if its server stood.
        let by_both = match self.states[member] {
            State::CompareAndSet(_) => vote.kept_by_either(&guarantees, write.lease),
            _ => None,
        };
        let by_both = by_both.map(|until| (until, write.lease.min(vote.lease)));
        let Some(stood) = guarantees.stood(came.sent, came.at, write.first) else {
            // A member that was started anew votes for nobody else before the end of the lease that
            // it had confirmed, however long it keeps what was put back.
            let (until, lease) = match self.states[member] {
                State::PutBack(_) => (vote.until, vote.lease),
                _ => by_both.map_or((None, write.lease), |(until, lease)| (Some(until), lease)),
            };
            let version = Some(version);
            self.set(member, Vote { version, until, lease, in_doubt: false, ..vote });
            return State::CompareAndSet(Write { first: Some(came.sent), ..write });
        };
        let by_write = (deadline(write.lease.saturating_sub(stood), came.sent), write.lease);
        let (until, lease) = by_both.map_or(by_write, |by_both| by_write.max(by_both));
        self.set(member, Vote::confirmed(version, until, lease));
        State::Done(if write.is_kept { Result::Kept } else { Result::Confirmed })
    }

    fn failed(&mut self, member: usize, failure: Failure) -> State {
        let vote = self.vote(member);
        match self.states[member] {
            State::CompareAndSet(Write { lease, .. }) if failure.sent => {
                // The shorter of two leases may be the valid one from now on.
                let until = vote.kept_by_either(&self.quorum.guarantees(), lease);
                let lease = vote.lease.min(lease);
                self.set(member, Vote { until, lease, in_doubt: true, ..vote });
            }
            State::PutBack(_) if failure.sent => {
                self.set(member, Vote { in_doubt: true, ..vote });
                self.leave(member);
            }
            State::VoteAgain if failure.sent => self.leave(member),
            // Also if it could not even be asked.
            State::Remove(_) => self.leave(member),
            _ => {}
        }
        State::Done(Result::Failed(failure))
    }

    fn may_be_left(&self, member: usize) -> bool {
        self.votes
            .as_ref()
            .is_some_and(|votes| self.quorum.table().may_be_left(member, self.key, &votes.ballot))
    }

    fn leave(&self, member: usize) {
        if let Some(votes) = &self.votes {
            self.quorum.leave(member, self.key, &votes.ballot);
        }
    }

    fn found(&mut self, member: usize, item: &Item, came: &Came) -> State {
        let now = came.at;
        let is_ours =
            self.votes.as_ref().is_some_and(|votes| votes.ballot == Ballot::of(&item.value));
        if !is_ours {
            self.set(member, Vote::default());
            return State::Done(Result::Lost);
        }
        if now >= self.limit(member) {
            // Another thread may rely on it yet.
            let is_relied_on = self.vote(member).latest.is_some_and(|latest| now < latest);
            return match is_relied_on || !self.votes_again {
                true => State::Done(Result::Lost),
                false => State::Remove(item.version),
            };
        }
        if mutation::has(Mutation::CountWhatIsRead) {
            return self.confirmed(member, item.version, came);
        }
        let before = self.vote(member).lease;
        let lease = if self.votes_again { self.lease } else { self.lease.max(before) };
        State::CompareAndSet(Write::new(item.version, lease))
    }

    /// A release is in doubt, and q members have confirmed votes that they had had all the time: the lock
    /// is held on. What the others had may have been removed, and others have voted there since: it
    /// counts for nothing.
    fn hold_on(&mut self) {
        let others = |(member, state): (usize, &State)| {
            (!matches!(state, State::Done(Result::Confirmed))).then_some(member)
        };
        let others: Vec<usize> = self.states.iter().enumerate().filter_map(others).collect();
        for member in others {
            if self.vote(member).version.is_some() {
                self.leave(member);
            }
            self.set(member, Vote::default());
        }
    }

    fn ended(&mut self, now: Moment) -> Next {
        let is_releasing = self.before.as_ref().is_some_and(Votes::is_releasing);
        let is_confirmed = |state: &&State| matches!(state, State::Done(Result::Confirmed));
        if is_releasing && self.states.iter().filter(is_confirmed).count() >= self.quorum.majority()
        {
            self.hold_on();
        }
        let (Some(before), Some(votes)) = (&self.before, &self.votes) else {
            return Next::Done(Ok(Reply::VersionMismatch));
        };
        let majority = self.quorum.majority();
        let done = |is: fn(&Result) -> bool| {
            let matches = |state: &&State| matches!(state, State::Done(result) if is(result));
            self.states.iter().filter(matches).count()
        };
        let confirmed = done(|result| match result {
            Result::Kept => mutation::has(Mutation::CountVotesAgain),
            result => matches!(result, Result::Confirmed),
        });
        let failed = done(|result| matches!(result, Result::Failed(_)));
        let is_stale = !self.quorum.table().is_unchanged(before);
        if self.is_released {
            return Next::Done(Ok(Reply::VersionMismatch));
        }
        match self.quorum.table().update(before, votes) {
            Update::Done => {}
            Update::Releasing if !mutation::has(Mutation::RemoveWhileReleasing) => {
                // The release knows nothing of votes that were added. It removes the others.
                for (member, (before, vote)) in before.votes.iter().zip(&votes.votes).enumerate() {
                    if vote.version.is_some() && vote.life() != before.life() {
                        self.leave(member);
                    }
                }
                let text = "Another thread began to release the lock at the same time.";
                let error = Error::new(ErrorKind::Unknown, text);
                return Next::Done(Err(Failure { error, sent: true }));
            }
            Update::Releasing | Update::Released => {
                // What was confirmed must not stay.
                self.is_released = true;
                for (member, vote) in votes.votes.iter().enumerate() {
                    match vote.version {
                        Some(_) if vote.in_doubt => self.leave(member),
                        Some(version) => self.states[member] = State::Remove(version),
                        None => {}
                    }
                }
                return Next::Again;
            }
        }
        let reply = if confirmed >= majority {
            if before.is_releasing() {
                self.quorum.table().is_held_on(before);
            }
            let kept = votes.deadline(majority);
            match now < kept {
                true => {
                    let (version, kept) = (version(&votes.ballot), Some(kept));
                    Ok(Reply::Stored(Stored { version, fence: 0, kept }))
                }
                false => {
                    Err(Failure { error: too_late(self.quorum, ErrorKind::Unknown), sent: true })
                }
            }
        } else if confirmed + failed >= majority {
            let failures: Vec<&Failure> = self
                .states
                .iter()
                .filter_map(|state| match state {
                    State::Done(Result::Failed(failure)) => Some(failure),
                    _ => None,
                })
                .collect();
            let sent = confirmed > 0 || failures.iter().any(|failure| failure.sent);
            Err(too_few(&failures, self.quorum, sent))
        } else if self.states.iter().any(|state| !matches!(state, State::Done(_))) {
            Ok(Reply::VersionMismatch)
        } else if is_stale {
            // Another thread has extended it meanwhile, so what this one has found says nothing.
            let text = "Another thread extended the lock at the same time.";
            Err(Failure { error: Error::new(ErrorKind::Unknown, text), sent: true })
        } else {
            // The lock is lost. Votes that remain, or were added again, must not hold up others,
            // and not count when it is extended once more: another client may have held the lock
            // in between.
            for (member, vote) in votes.votes.iter().enumerate() {
                if vote.version.is_some() {
                    self.leave(member);
                }
            }
            self.quorum.table().forget(votes.ballot.number());
            Ok(if self.votes_again { Reply::VersionMismatch } else { Reply::NotAdmitted })
        };
        Next::Done(reply)
    }
}

impl Task for Confirm<'_> {
    fn follows(&self) -> Option<&Key> {
        Some(self.key)
    }

    /// It may be one of only q that have a vote.
    fn needs(&self, _member: usize) -> bool {
        true
    }

    fn add_to<'b>(&'b self, member: usize, batch: &mut Vec<Op<'b>>) {
        let (key, value, returns) = (self.key, &self.value[..], Returns::Version);
        let expiry = Expiry::After(self.lease);
        let add = |admission| Op::Add { key, value, expiry, returns, admission };
        batch.extend(match self.states.get(member) {
            Some(&State::CompareAndSet(Write { version, lease, .. })) => {
                let expiry = Expiry::After(lease);
                Some(Op::CompareAndSet { key, version, value, expiry, returns })
            }
            Some(State::Get) => Some(Op::get(key)),
            Some(&State::PutBack(version)) => Some(add(Admission::Reclaim(version.epoch()))),
            Some(State::VoteAgain) => Some(add(Admission::Grant)),
            Some(&State::Remove(version)) => Some(Op::Delete { key, version }),
            Some(State::Done(_)) | None => None,
        });
    }

    fn take(&mut self, member: usize, mut came: Came) {
        let replies = std::mem::replace(&mut came.replies, Ok(Vec::new()));
        let reply = match replies.map(|replies| replies.into_iter().next()) {
            Ok(Some(reply)) => reply,
            Ok(None) => return,
            Err(failure) => {
                self.states[member] = self.failed(member, failure);
                return;
            }
        };
        let now = came.at;
        self.states[member] = match (&self.states[member], reply) {
            (State::CompareAndSet(_), Reply::Stored(Stored { version, .. })) => {
                self.confirmed(member, version, &came)
            }
            (State::CompareAndSet(_), Reply::Missing) => self.missing(member, now),
            (State::CompareAndSet(_), _) => State::Get,
            (State::Get, Reply::Value(item)) => self.found(member, &item, &came),
            (State::Get, _) => self.missing(member, now),
            (State::PutBack(_), Reply::Stored(Stored { version, .. })) => {
                let late = now >= self.limit(member);
                if late && !mutation::has(Mutation::TrustLateReclaims) {
                    State::Remove(version)
                } else {
                    self.confirmed(member, version, &came)
                }
            }
            // It was not started anew, so the vote was taken away, and others may have had it.
            (State::PutBack(_), Reply::NotAdmitted) => {
                self.set(member, Vote::default());
                State::Done(Result::Lost)
            }
            (State::PutBack(_), _) => State::Get,
            (State::VoteAgain, Reply::Stored(Stored { version, .. })) => {
                if now < self.lasts_until() {
                    self.confirmed(member, version, &came)
                } else {
                    State::Remove(version)
                }
            }
            // It may be a vote of this attempt, by an earlier request.
            (State::VoteAgain, Reply::Exists) if self.may_be_left(member) => State::Get,
            (State::VoteAgain, _) => State::Done(Result::Lost),
            (State::Remove(_) | State::Done(_), _) => {
                self.set(member, Vote::default());
                State::Done(Result::Lost)
            }
        };
    }

    fn next(&mut self, now: Moment) -> Next {
        self.rounds += 1;
        let is_done = self.states.iter().all(|state| matches!(state, State::Done(_)));
        if is_done || self.rounds >= ROUNDS { self.ended(now) } else { Next::Again }
    }
}
