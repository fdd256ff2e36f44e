//! The votes of what this client holds, and those that it has to remove.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::ballot::Ballot;
use crate::clock::Moment;
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::owner::Token;
use crate::store::{Epoch, Guarantees, Version};

/// How late a request may arrive whose connection was given up.
const LATEST_ARRIVAL: Duration = Duration::from_secs(10);
/// How often a member is asked for a vote that may be on its way to it.
const LOOK: Duration = Duration::from_secs(1);

/// What one member has confirmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Vote {
    /// The version that it confirmed last.
    pub(super) version: Option<Version>,
    /// Until when the client relies on that: the earlier end, if the request for a shorter lease had
    /// no reply.
    pub(super) until: Option<Moment>,
    /// Until when it may have relied on it before such a request.
    pub(super) latest: Option<Moment>,
    /// The lease by which `until` was computed: the shortest one of the requests without a reply.
    pub(super) lease: Duration,
    /// Whether a later request had no reply, so that the version may be another one.
    pub(super) in_doubt: bool,
    /// Whether the vote was removed by a release.
    pub(super) is_gone: bool,
}

impl Vote {
    /// A vote that its member has confirmed.
    pub(super) fn confirmed(version: Version, until: Moment, lease: Duration) -> Vote {
        let until = Some(until);
        Vote { version: Some(version), until, latest: until, lease, ..Vote::default() }
    }

    /// The life of the member in which it confirmed the vote.
    pub(super) fn life(&self) -> Option<Epoch> {
        self.version.map(Version::epoch)
    }

    /// Until when the member keeps the vote if it may have carried out a request for this lease, too:
    /// its clock may have stood for an unknown time.
    pub(super) fn kept_by_either(
        &self,
        guarantees: &Guarantees,
        lease: Duration,
    ) -> Option<Moment> {
        Some(guarantees.kept_by_either(self.until?, self.lease, lease))
    }

    /// What is known of a vote that was `before`, and since then `self` to one thread and `other` to
    /// another one. A request that carries the version of before does nothing once the vote has
    /// another one, so it matters no more whether it had a reply.
    fn merged(self, other: Vote, before: Vote) -> Vote {
        let changed = |vote: Vote| vote.version != before.version;
        let mut merged = match (changed(self), changed(other)) {
            _ if self == before => other,
            _ if other == before => self,
            (true, false) => self,
            (false, true) => other,
            (false, false) => Vote {
                until: earlier(self.until, other.until),
                lease: self.lease.min(other.lease),
                in_doubt: true,
                ..self
            },
            (true, true) => self.later(other),
        };
        merged.is_gone = self.is_gone || other.is_gone;
        merged
    }

    /// The vote that was confirmed later. Two lives of a server cannot be told apart in that way: it
    /// is read then, and until then its server votes for nobody else before the end of either.
    fn later(self, other: Vote) -> Vote {
        match (self.version, other.version) {
            (None, _) => other,
            (_, None) => self,
            (Some(own), Some(version)) if own.epoch() == version.epoch() => {
                if own.number() > version.number() { self } else { other }
            }
            _ => Vote {
                until: self.until.max(other.until),
                latest: self.latest.max(other.latest),
                lease: self.lease.max(other.lease),
                in_doubt: true,
                ..self
            },
        }
    }
}

fn earlier(one: Option<Moment>, other: Option<Moment>) -> Option<Moment> {
    one.min(other).or(one).or(other)
}

/// The votes of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Votes {
    pub(super) key: Key,
    pub(super) ballot: Ballot,
    /// One for each member.
    pub(super) votes: Vec<Vote>,
    /// How many releases have begun since it was last known to be held. If any: others may have had
    /// the lock since, so nothing that is missing is put back or added again.
    pub(super) releases: u32,
}

impl Votes {
    pub(super) fn is_releasing(&self) -> bool {
        self.releases > 0
    }

    /// The end of the lock: the moment that q members reach.
    pub(super) fn deadline(&self, majority: usize) -> Moment {
        let mut ends: Vec<Moment> = self.votes.iter().filter_map(|vote| vote.until).collect();
        ends.sort();
        ends.reverse();
        ends.get(majority - 1).copied().unwrap_or(Moment::from_boot(Duration::ZERO))
    }
}

/// What an update has found.
pub(super) enum Update {
    Done,
    /// The lock's release has begun meanwhile. It may fail, and the lock be held on.
    Releasing,
    /// The lock was released meanwhile.
    Released,
}

/// A vote that must not stay.
#[derive(Clone, Debug)]
struct Leftover {
    member: usize,
    key: Key,
    ballot: Ballot,
    /// Its server drops it by then.
    until: Moment,
    /// By then its request has arrived, if it ever does.
    arrives: Moment,
    look_at: Moment,
}

/// The votes for one lock that must not stay on one member.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) member: usize,
    pub(super) key: Key,
    pub(super) ballots: Vec<Ballot>,
}

#[derive(Debug, Default)]
struct Known {
    /// By the number of the ballot.
    votes: HashMap<u64, Votes>,
    /// The number of a token's ballot.
    by_token: HashMap<Token, u64>,
    /// By the number of the ballot, and the member.
    leftovers: BTreeMap<(u64, usize), Leftover>,
}

/// What this process knows.
#[derive(Debug, Default)]
pub(super) struct Table {
    attempts: AtomicU64,
    known: Mutex<Known>,
}

impl Table {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ballot of a new attempt.
    pub(super) fn ballot(&self, token: Token) -> Ballot {
        Ballot::Of { token, attempt: self.attempts.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    pub(super) fn votes(&self, number: u64) -> Option<Votes> {
        self.known().votes.get(&number).cloned()
    }

    /// The votes of the lock that this token holds.
    pub(super) fn votes_of(&self, key: &Key, token: Token) -> Option<Votes> {
        let known = self.known();
        let votes = known.votes.get(known.by_token.get(&token)?);
        votes.filter(|votes| votes.key == *key).cloned()
    }

    /// The votes of all that this client holds of a lock.
    pub(super) fn all_votes_of(&self, key: &Key) -> Vec<Votes> {
        self.known().votes.values().filter(|votes| votes.key == *key).cloned().collect()
    }

    /// Remembers the votes of a lock. Those of locks that ended long ago are forgotten: of locks
    /// that nobody released. `keep`: the longest lease: servers have them a little longer than they
    /// are relied on.
    pub(super) fn remember(&self, votes: Votes, now: Moment, keep: Duration) {
        let mut known = self.known();
        if known.votes.len().is_power_of_two() {
            let lasts = |votes: &Votes| {
                votes.votes.iter().any(|vote| vote.until.is_some_and(|until| now < until + keep))
            };
            let Known { votes, by_token, .. } = &mut *known;
            votes.retain(|_, votes| lasts(votes));
            by_token.retain(|_, number| votes.contains_key(number));
        }
        let number = votes.ballot.number();
        if let Some(token) = votes.ballot.token() {
            known.by_token.insert(token, number);
        }
        known.votes.insert(number, votes);
    }

    /// Updates the votes of a lock, which were `before`. Another thread may have updated them, too. Of
    /// a lock whose release has begun since then, no vote is added.
    pub(super) fn update(&self, before: &Votes, votes: &Votes) -> Update {
        let mut known = self.known();
        let Some(of_lock) = known.votes.get_mut(&votes.ballot.number()) else {
            return Update::Released;
        };
        let is_releasing = of_lock.releases > before.releases;
        let members = before.votes.iter().zip(&votes.votes);
        for (known, (before, after)) in of_lock.votes.iter_mut().zip(members) {
            if !is_releasing || before.life() == after.life() {
                *known = known.merged(*after, *before);
            }
        }
        if is_releasing { Update::Releasing } else { Update::Done }
    }

    /// The votes of a lock whose release begins.
    pub(super) fn releasing(&self, number: u64) -> Option<Votes> {
        let mut known = self.known();
        let votes = known.votes.get_mut(&number)?;
        votes.releases += 1;
        Some(votes.clone())
    }

    /// A release has failed of which nothing was sent: the lock is held on.
    pub(super) fn not_released(&self, number: u64) {
        if let Some(votes) = self.known().votes.get_mut(&number) {
            votes.releases = votes.releases.saturating_sub(1);
        }
    }

    /// After a release in doubt, q members have confirmed votes that they had had all the time: the
    /// lock is held on, unless another release has begun.
    pub(super) fn is_held_on(&self, before: &Votes) {
        let mut known = self.known();
        let Some(votes) = known.votes.get_mut(&before.ballot.number()) else { return };
        if votes.releases == before.releases {
            votes.releases = 0;
            votes.votes.iter_mut().filter(|vote| vote.is_gone).for_each(|vote| {
                *vote = Vote::default();
            });
        }
    }

    /// Whether no other thread has changed what is known of these votes.
    pub(super) fn is_unchanged(&self, before: &Votes) -> bool {
        self.known().votes.get(&before.ballot.number()) == Some(before)
    }

    /// Forgets a lock. Returns its votes as they were known last.
    pub(super) fn forget(&self, number: u64) -> Option<Votes> {
        let mut known = self.known();
        let votes = known.votes.remove(&number)?;
        if let Some(token) = votes.ballot.token()
            && known.by_token.get(&token) == Some(&number)
        {
            known.by_token.remove(&token);
        }
        Some(votes)
    }

    /// The ballots of attempts for the lock that were given up: not of a lock that is held, of which
    /// one member may have a vote by a request without a reply.
    pub(super) fn left(&self, key: &Key) -> Vec<Ballot> {
        let known = self.known();
        let is_left =
            |left: &&Leftover| left.key == *key && !known.votes.contains_key(&left.ballot.number());
        known.leftovers.values().filter(is_left).map(|left| left.ballot.clone()).collect()
    }

    /// Whether this member may have a vote that does not count, by a request without a reply.
    pub(super) fn may_be_left(&self, member: usize, key: &Key, ballot: &Ballot) -> bool {
        let left = self.known().leftovers.get(&(ballot.number(), member)).cloned();
        left.is_some_and(|left| left.key == *key && left.ballot == *ballot)
    }

    pub(super) fn has_leftovers(&self) -> bool {
        !self.known().leftovers.is_empty()
    }

    /// Takes the votes to remove now, by member and lock. Those of a lock that is held stay until its
    /// end: the member may have been asked again since, and its vote count.
    pub(super) fn due(&self, now: Moment, is_available: impl Fn(usize) -> bool) -> Vec<Due> {
        let mut known = self.known();
        let Known { votes, leftovers, .. } = &mut *known;
        leftovers.retain(|_, left| now < left.until);
        let mut due: BTreeMap<(usize, &Key), Due> = BTreeMap::new();
        for left in leftovers.values_mut() {
            let is_held = votes.contains_key(&left.ballot.number());
            if left.look_at <= now && !is_held && is_available(left.member) {
                left.look_at = now + LOOK;
                let (member, key) = (left.member, &left.key);
                let of_lock = due.entry((member, key)).or_insert_with(|| Due {
                    member,
                    key: key.clone(),
                    ballots: Vec::new(),
                });
                of_lock.ballots.push(left.ballot.clone());
            }
        }
        due.into_values().collect()
    }

    /// The member has none of these votes at the moment, or `removed` one. What may arrive yet stays
    /// noted.
    pub(super) fn looked_for(&self, due: &Due, removed: bool, now: Moment) {
        let is_single = removed && due.ballots.len() == 1;
        let mut known = self.known();
        for ballot in &due.ballots {
            let place = (ballot.number(), due.member);
            if is_single || known.leftovers.get(&place).is_some_and(|left| now >= left.arrives) {
                known.leftovers.remove(&place);
            }
        }
    }

    /// Notes that a vote on this member has to be removed, or may arrive there yet. `covering`: for
    /// how long a server has one.
    pub(super) fn leave(
        &self,
        member: usize,
        key: &Key,
        ballot: &Ballot,
        now: Moment,
        covering: Duration,
    ) {
        if mutation::has(Mutation::LeaveLostVotes) {
            return;
        }
        let arrives = now + LATEST_ARRIVAL;
        let until = arrives + covering + Duration::from_secs(1);
        let place = (ballot.number(), member);
        let (key, ballot) = (key.clone(), ballot.clone());
        let leftover = Leftover { member, key, ballot, until, arrives, look_at: now };
        self.known().leftovers.insert(place, leftover);
    }

    /// Forgets a vote that was removed, or arrives no more.
    pub(super) fn removed(&self, member: usize, ballot: &Ballot) {
        self.known().leftovers.remove(&(ballot.number(), member));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(seconds))
    }

    fn confirmed(life: u64, number: u64, until: u64) -> Vote {
        Vote::confirmed(Version::new(Epoch::new(life, 0), number), at(until), Duration::ZERO)
    }

    #[test]
    fn what_two_threads_have_seen_of_a_vote_is_merged() {
        let before = confirmed(1, 5, 10);
        let doubt = Vote { until: Some(at(8)), in_doubt: true, ..before };
        let later = confirmed(1, 9, 20);
        for (one, other, merged) in [
            (before, later, later),
            (doubt, later, later),
            (doubt, before, doubt),
            (confirmed(1, 7, 30), later, later),
            (Vote::default(), later, later),
            (doubt, Vote { until: Some(at(7)), ..doubt }, Vote { until: Some(at(7)), ..doubt }),
        ] {
            assert_eq!(one.merged(other, before), merged, "{one:?}, {other:?}");
            assert_eq!(other.merged(one, before), merged, "{other:?}, {one:?}");
        }
        // Of two lives, neither is known to be the later one.
        let merged = confirmed(2, 1, 15).merged(later, before);
        assert_eq!((merged.until, merged.in_doubt), (Some(at(20)), true));
        let released = Vote { is_gone: true, ..before };
        assert!(released.merged(later, before).is_gone);
    }
}
