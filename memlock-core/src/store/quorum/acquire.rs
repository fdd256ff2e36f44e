//! Acquiring a lock: votes of q members, and a fence.

use std::time::Duration;

use super::ballot::Ballot;
use super::fence::Fencing;
use super::inner::{Inner, after_change, deadline, too_few, too_late, version};
use super::task::{Came, Next, Task};
use super::votes::{Vote, Votes};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::owner::OwnerRecord;
use crate::store::{Admission, Expiry, Failure, Item, Op, Reply, Returns, Route, Stored, Version};

/// For how long a client without q keeps its votes, and tries to get more: a random time from the
/// first to the second.
const KEEPS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(200));
/// The pause between its tries.
const PAUSE: Duration = Duration::from_millis(3);
/// How often the counters of fences are read and raised.
const RAISES: usize = 64;
/// How often votes of earlier attempts are removed to get the members' votes for this one.
const CLEARS: usize = 2;

/// One attempt.
pub(super) struct Acquire<'a> {
    quorum: &'a Inner,
    route: Route,
    key: &'a Key,
    ballot: Ballot,
    value: Vec<u8>,
    lease: Duration,
    /// When the first request was sent, or shortly before: from then on all votes count.
    began: Moment,
    fencing: Fencing,
    votes: Vec<Cast>,
    /// How long each member that voted keeps its vote.
    kept: Vec<Kept>,
    stage: Stage,
    /// Until when a client with the first member's vote tries to get more.
    keeps_until: Option<Moment>,
    raises: usize,
    /// What is known from a member that refused.
    seen: Vec<Option<Item>>,
    /// The votes of earlier attempts that may be in the way.
    left: Vec<Ballot>,
    clears: usize,
    /// Whether a vote could not be removed.
    was_left: bool,
}

/// What a member did with the request to vote.
enum Cast {
    NotAsked,
    For(Version),
    /// It votes for another client.
    Refused,
    /// It votes for an attempt of this client that was given up.
    InOwnWay(Version),
    /// It was started less than the guard ago.
    Abstained,
    Failed(Failure),
    /// It voted, but its clock is wrong, so that its vote does not count.
    Misdated(Version, Error),
    /// The vote was removed again.
    Withdrawn,
}

/// How long a member keeps its vote.
#[derive(Clone, Copy)]
enum Kept {
    /// As long as it was asked to.
    AsAsked,
    /// It took so long to answer that it may have stopped, with its clock, so it has to confirm the
    /// vote once more. When it was asked first.
    Unknown(Moment),
    Until(Moment),
}

enum Stage {
    Vote,
    /// The members that refused are asked for whom they voted.
    Look,
    /// The counters of fences are raised.
    Raise,
    /// Slow members confirm their votes once more.
    Repeat,
    /// The votes are removed. The reply of the operation.
    Withdraw(Result<Reply, Failure>),
}

impl<'a> Acquire<'a> {
    pub(super) fn new(
        quorum: &'a Inner,
        route: Route,
        key: &'a Key,
        record: &[u8],
        lease: Duration,
    ) -> Acquire<'a> {
        let members = quorum.members.all().len();
        let token = OwnerRecord::parse(record).map(|record| record.token);
        let ballot =
            token.map_or(Ballot::Foreign(record.to_vec()), |token| quorum.table().ballot(token));
        Acquire {
            value: ballot.value(record),
            quorum,
            route,
            key,
            ballot,
            lease,
            began: quorum.clock.now(),
            fencing: Fencing::new(key, members),
            votes: (0..members).map(|_| Cast::NotAsked).collect(),
            kept: vec![Kept::AsAsked; members],
            stage: Stage::Vote,
            keeps_until: None,
            raises: 0,
            seen: vec![None; members],
            left: quorum.table().left(key),
            clears: 0,
            was_left: false,
        }
    }

    fn voters(&self) -> Vec<usize> {
        let votes = self.votes.iter().enumerate();
        votes.filter(|(_, cast)| matches!(cast, Cast::For(_))).map(|(member, _)| member).collect()
    }

    fn count(&self, is: impl Fn(&Cast) -> bool) -> usize {
        self.votes.iter().filter(|cast| is(cast)).count()
    }

    /// A vote may be on its way to the member, or stay there.
    fn leave(&self, member: usize) {
        self.quorum.leave(member, self.key, &self.ballot);
    }

    /// Notes the votes by requests without a reply.
    fn leave_what_may_come(&self) {
        for (member, cast) in self.votes.iter().enumerate() {
            if matches!(cast, Cast::Failed(Failure { sent: true, .. }) | Cast::Misdated(..)) {
                self.leave(member);
            }
        }
    }

    /// Ends the attempt without the lock.
    fn withdraw(&mut self, reply: Result<Reply, Failure>) -> Next {
        self.leave_what_may_come();
        if mutation::has(Mutation::GiveUpAndKeep) {
            return Next::Done(reply);
        }
        if self.count(|cast| matches!(cast, Cast::For(_) | Cast::Misdated(..))) == 0 {
            return Next::Done(reply);
        }
        self.stage = Stage::Withdraw(reply);
        Next::Again
    }

    /// Ends an attempt for which too few members answered.
    fn give_up(&mut self) -> Next {
        let failures = self.votes.iter().filter_map(|cast| match cast {
            Cast::Failed(failure) => Some(failure.clone()),
            Cast::Misdated(_, error) => Some(Failure { error: error.clone(), sent: false }),
            _ => None,
        });
        let failures: Vec<Failure> = failures.collect();
        let failures: Vec<&Failure> = failures.iter().collect();
        let sent = failures.iter().any(|failure| failure.sent);
        let failure = too_few(&failures, self.quorum, sent);
        self.withdraw(Err(failure))
    }

    fn counted(&mut self, now: Moment) -> Next {
        let suspects =
            if self.quorum.members.clocks_agree(self.route) { Vec::new() } else { self.voters() };
        for member in suspects {
            // What a server with a wrong clock has confirmed counts for nothing. The clock is read
            // with the next connection: a server that was stopped shows an old time for a moment.
            if let Some(error) = self.quorum.members.misdated(member, self.route) {
                self.quorum.members.all()[member].disconnect();
                if let Cast::For(version) = self.votes[member] {
                    self.votes[member] = Cast::Misdated(version, error);
                }
            }
        }
        let disagrees = |cast: &Cast| match cast {
            Cast::Failed(Failure { error, sent: false }) => error.kind() == ErrorKind::Config,
            _ => false,
        };
        if self.count(disagrees) > 0 {
            return self.give_up();
        }
        let majority = self.quorum.majority();
        let voters = self.voters();
        if voters.len() >= majority {
            self.fencing.determine(self.quorum, self.route, &voters);
            return self.fenced(now);
        }
        if self.has_failed() {
            return self.give_up();
        }
        if self.may_have_enough(&voters) {
            self.stage = Stage::Look;
            return Next::Again;
        }
        self.refused()
    }

    /// Whether too few members answer.
    fn has_failed(&self) -> bool {
        let failed = self.count(|cast| matches!(cast, Cast::Failed(_) | Cast::Misdated(..)));
        self.votes.len() - failed < self.quorum.majority()
    }

    /// Whether so many members voted for others that this client cannot have q votes.
    fn is_refused(&self) -> bool {
        let refused = self.count(|cast| matches!(cast, Cast::Refused));
        self.votes.len() - refused < self.quorum.majority()
    }

    fn refused(&mut self) -> Next {
        let is_refused = self.count(|cast| matches!(cast, Cast::Refused)) > 0;
        self.withdraw(Ok(if is_refused { Reply::Exists } else { Reply::NotAdmitted }))
    }

    /// Whether votes of attempts, also of this client's own earlier ones, may be all that is in the
    /// way.
    fn may_have_enough(&mut self, voters: &[usize]) -> bool {
        // Another thread may remove them while the members are asked.
        self.left.extend(self.quorum.table().left(self.key));
        let is_refused = self.count(|cast| matches!(cast, Cast::Refused)) > 0;
        is_refused && !(voters.is_empty() && self.left.is_empty())
    }

    /// It is known for whom the others voted.
    fn looked(&mut self, now: Moment) -> Next {
        let majority = self.quorum.majority();
        let ballots: Vec<Option<Ballot>> =
            self.seen.iter().map(|seen| Some(Ballot::of(&seen.as_ref()?.value))).collect();
        let versions = self.seen.iter().map(|seen| seen.as_ref().map(|item| item.version));
        let mut clears = false;
        for ((cast, ballot), version) in self.votes.iter_mut().zip(&ballots).zip(versions) {
            *cast = match (&*cast, ballot.as_ref().zip(version)) {
                _ if self.clears == CLEARS => break,
                (Cast::Refused, None) => Cast::NotAsked,
                (Cast::Refused, Some((ballot, version))) if self.left.contains(ballot) => {
                    Cast::InOwnWay(version)
                }
                _ => continue,
            };
            clears = true;
        }
        self.seen.fill(None);
        if clears {
            self.clears += 1;
            self.stage = Stage::Vote;
            return Next::Again;
        }
        if self.has_failed() {
            return self.give_up();
        }
        if !self.is_refused() {
            return self.refused();
        }
        let has_most = |of: &Ballot| {
            ballots.iter().flatten().filter(|ballot| *ballot == of).count() >= majority
        };
        if ballots.iter().flatten().any(has_most) {
            return self.withdraw(Ok(Reply::Exists));
        }
        let decides = self.quorum.members.in_order(self.route).into_iter().find(|&member| {
            matches!(self.votes[member], Cast::For(_)) || ballots[member].is_some()
        });
        let is_ours = decides.is_some_and(|member| matches!(self.votes[member], Cast::For(_)));
        let keeps_until = *self.keeps_until.get_or_insert_with(|| now + keeps_for(self.quorum));
        let keeps = is_ours && now < keeps_until;
        if !keeps && !mutation::has(Mutation::KeepSplitVotes) {
            return self.withdraw(Ok(Reply::Exists));
        }
        self.stage = Stage::Vote;
        Next::After(PAUSE)
    }

    /// The fence is determined.
    fn fenced(&mut self, now: Moment) -> Next {
        let (voters, majority) = (self.voters(), self.quorum.majority());
        if voters.len() < majority {
            return self.give_up();
        }
        if now >= deadline(self.lease, self.began) {
            return self.too_late();
        }
        if self.fencing.is_supported(&voters, majority) {
            let is_unknown = |member: &usize| matches!(self.kept[*member], Kept::Unknown(_));
            if voters.iter().any(is_unknown) {
                self.stage = Stage::Repeat;
                return Next::Again;
            }
            return self.granted(now);
        }
        // Others that try at the same time count, too.
        if self.raises == RAISES {
            return self.withdraw(Ok(Reply::Exists));
        }
        if matches!(self.stage, Stage::Raise) {
            self.fencing.turn();
        }
        self.raises += 1;
        self.stage = Stage::Raise;
        Next::Again
    }

    fn too_late(&mut self) -> Next {
        let error = too_late(self.quorum, ErrorKind::Unreachable);
        self.withdraw(Err(Failure { error, sent: false }))
    }

    fn granted(&mut self, now: Moment) -> Next {
        let until = deadline(self.lease, self.began);
        let votes = self.votes.iter().zip(&self.kept).map(|(cast, kept)| match (cast, kept) {
            (&Cast::For(version), &Kept::Until(kept)) => {
                Vote::confirmed(version, until.min(kept), self.lease)
            }
            (&Cast::For(version), _) => Vote::confirmed(version, until, self.lease),
            _ => Vote::default(),
        });
        let votes = Votes {
            key: self.key.clone(),
            ballot: self.ballot.clone(),
            votes: votes.collect(),
            releases: 0,
        };
        let kept = votes.deadline(self.quorum.majority());
        if now >= kept {
            return self.too_late();
        }
        self.quorum.table().remember(votes, now, self.quorum.longest_lease());
        // Only now, so that no other thread removes what belongs to a lock that is held.
        self.leave_what_may_come();
        let fence = self.fencing.fence().unwrap_or_default();
        let kept = Some(kept);
        Next::Done(Ok(Reply::Stored(Stored { version: version(&self.ballot), fence, kept })))
    }

    /// The reply of a slow member.
    fn repeated(&mut self, member: usize, reply: Option<Reply>, sent: Moment, at: Moment) {
        let Kept::Unknown(first) = self.kept[member] else { return };
        let stood = self.quorum.guarantees().stood(sent, at, Some(first)).unwrap_or(self.lease);
        match reply {
            Some(Reply::Stored(Stored { version, .. })) => {
                self.votes[member] = Cast::For(version);
                let until = deadline(self.lease.saturating_sub(stood), sent);
                self.kept[member] = Kept::Until(until);
            }
            _ => {
                let error = self.quorum.members.forgot(member);
                self.votes[member] = Cast::Failed(Failure { error, sent: true });
            }
        }
    }
}

impl Task for Acquire<'_> {
    fn follows(&self) -> Option<&Key> {
        Some(self.key)
    }

    /// Any majority does.
    fn needs(&self, _member: usize) -> bool {
        false
    }

    fn add_to<'b>(&'b self, member: usize, batch: &mut Vec<Op<'b>>) {
        let key = self.key;
        match (&self.stage, &self.votes[member]) {
            (Stage::Vote, Cast::NotAsked | Cast::Refused | Cast::InOwnWay(_)) => {
                let add = Op::Add {
                    key,
                    value: &self.value,
                    expiry: Expiry::After(self.lease),
                    returns: Returns::Version,
                    admission: Admission::Grant,
                };
                let clear = match self.votes[member] {
                    Cast::InOwnWay(version) => Some(Op::Delete { key, version }),
                    _ => None,
                };
                batch.extend(clear.into_iter().chain([add, self.fencing.increment()]));
            }
            (Stage::Look, Cast::Refused) => batch.push(Op::get(key)),
            (Stage::Raise, Cast::For(_)) => batch.extend(self.fencing.raise(member)),
            (Stage::Repeat, &Cast::For(version)) => {
                if let Kept::Unknown(_) = self.kept[member] {
                    let (expiry, returns) = (Expiry::After(self.lease), Returns::Version);
                    let value = &self.value;
                    batch.push(Op::CompareAndSet { key, version, value, expiry, returns });
                }
            }
            (Stage::Withdraw(_), &(Cast::For(version) | Cast::Misdated(version, _))) => {
                batch.push(Op::Delete { key, version });
            }
            _ => {}
        }
    }

    fn take(&mut self, member: usize, came: Came) {
        let (sent, at) = (came.sent, came.at);
        let mut replies = match came.replies {
            Ok(replies) => replies.into_iter(),
            Err(failure) => {
                match self.stage {
                    Stage::Vote => self.votes[member] = Cast::Failed(failure),
                    Stage::Look => {
                        self.votes[member] = Cast::Failed(Failure { sent: false, ..failure });
                    }
                    // The vote may be gone, and has to be removed if it is not.
                    Stage::Raise | Stage::Repeat => {
                        self.votes[member] = Cast::Failed(Failure { sent: true, ..failure });
                    }
                    Stage::Withdraw(_) => {
                        self.leave(member);
                        self.was_left = true;
                        self.votes[member] = Cast::Withdrawn;
                    }
                }
                return;
            }
        };
        if let (Stage::Vote, Cast::InOwnWay(_)) = (&self.stage, &self.votes[member]) {
            replies.next();
        }
        match (&self.stage, replies.next()) {
            (Stage::Vote, Some(Reply::Stored(Stored { version, .. }))) => {
                self.votes[member] = Cast::For(version);
                self.fencing.counted(member, replies.next().as_ref());
                let is_slow = self.quorum.guarantees().is_suspicious(at.since(sent));
                self.kept[member] = if is_slow { Kept::Unknown(sent) } else { Kept::AsAsked };
            }
            (Stage::Vote, Some(Reply::NotAdmitted)) => self.votes[member] = Cast::Abstained,
            (Stage::Vote, _) => self.votes[member] = Cast::Refused,
            (Stage::Look, Some(Reply::Value(item))) => self.seen[member] = Some(item),
            (Stage::Raise, Some(reply)) => {
                if let Cast::For(version) = self.votes[member]
                    && !self.fencing.raised(member, &reply, version.epoch())
                {
                    // The server was started anew, and has forgotten the vote; or it was flushed.
                    let error = self.quorum.members.forgot(member);
                    self.votes[member] = Cast::Failed(Failure { error, sent: true });
                }
            }
            (Stage::Repeat, reply) => self.repeated(member, reply, sent, at),
            (Stage::Withdraw(_), _) => {
                if let Cast::Misdated(..) = self.votes[member] {
                    self.quorum.table().removed(member, &self.ballot);
                }
                self.votes[member] = Cast::Withdrawn;
            }
            _ => {}
        }
    }

    fn next(&mut self, now: Moment) -> Next {
        match &mut self.stage {
            Stage::Vote => self.counted(now),
            Stage::Look => self.looked(now),
            Stage::Raise | Stage::Repeat => self.fenced(now),
            Stage::Withdraw(reply) => {
                let reply = std::mem::replace(reply, Ok(Reply::Exists));
                Next::Done(match reply {
                    Err(failure) if self.was_left => Err(after_change(failure)),
                    reply => reply,
                })
            }
        }
    }
}

/// A random time, so that two clients that keep each other from q do not do so again and again.
fn keeps_for(quorum: &Inner) -> Duration {
    let mut byte = [0];
    let share = quorum.clock.random(&mut byte).map_or(0, |()| u32::from(byte[0]));
    KEEPS.0 + (KEEPS.1 - KEEPS.0) * share / 255
}
