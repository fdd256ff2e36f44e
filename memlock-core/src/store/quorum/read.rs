//! Reading a lock: for whom the members voted.
//!
//! | votes | reply |
//! | --- | --- |
//! | q for one client | its record |
//! | q for nobody | the lock is free |
//! | of this client, fewer than q | the lock is free: whether it is held is found out by its extension; an error, if members that do not answer could make them q |
//! | otherwise: fewer than q members could vote for somebody new | the record for which the first member voted: nobody holds the lock, or a member that does not answer would tell; its version says so |

use std::time::Duration;

use super::ballot::{self, Ballot};
use super::inner::{Inner, OF_NO_LOCK, too_few, version};
use super::task::{Came, Next, Task};
use super::votes::Votes;
use crate::clock::Moment;
use crate::name::Key;
use crate::store::{Failure, Item, Op, Reply, Route, Version};

/// One read.
pub(super) struct Read<'a> {
    quorum: &'a Inner,
    route: Route,
    key: &'a Key,
    /// The key of the counter of fences, if it is read, too.
    fence: Option<Key>,
    seen: Vec<Option<Result<Option<Item>, Failure>>>,
    newest_fence: u64,
}

impl<'a> Read<'a> {
    pub(super) fn new(quorum: &'a Inner, route: Route, key: &'a Key, fence: bool) -> Read<'a> {
        let seen = quorum.members.all().iter().map(|_| None).collect();
        Read { quorum, route, key, fence: fence.then(|| key.fence()), seen, newest_fence: 0 }
    }

    /// The failure of a read, which may be asked again.
    fn too_few(&self, failures: &[&Failure]) -> Failure {
        let sent = failures.iter().any(|failure| failure.sent);
        let mut failure = too_few(failures, self.quorum, sent);
        failure.error = failure.clone().of_read();
        failure
    }

    fn ended(&self) -> Result<Reply, Failure> {
        let failures: Vec<&Failure> =
            self.seen.iter().flatten().filter_map(|seen| seen.as_ref().err()).collect();
        let majority = self.quorum.majority();
        if self.seen.len() - failures.len() < majority {
            return Err(self.too_few(&failures));
        }
        let votes = self.votes();
        if let Some(of) = votes.ballots().find(|ballot| votes.count(ballot) >= majority) {
            return Ok(Reply::Value(self.record(&votes, of)));
        }
        match self.may_be_held(&votes, failures.len()) {
            true if failures.is_empty() => return Ok(Reply::Missing),
            true => return Err(self.too_few(&failures)),
            false => {}
        }
        let is_free = |member: &usize| {
            let (abstains, misdated) = (self.abstains(*member), self.is_misdated(*member));
            matches!(self.seen[*member], Some(Ok(_)))
                && votes.of(*member).is_none()
                && !abstains
                && !misdated
        };
        if (0..self.seen.len()).filter(is_free).count() >= majority {
            return Ok(Reply::Missing);
        }
        let is_ours = |ballot: &Ballot| self.quorum.table().votes(ballot.number()).is_some();
        let order = self.quorum.members.in_order(self.route);
        let mut voted = order.into_iter().filter_map(|member| votes.of(member));
        let first = voted.find(|ballot| !is_ours(ballot));
        Ok(first.map_or(Reply::Missing, |of| {
            let version = Version::new(OF_NO_LOCK, of.number());
            Reply::Value(Item { version, ..self.record(&votes, of) })
        }))
    }

    /// The votes that were read. Those of attempts that were given up are removed, and count for
    /// nothing.
    fn votes(&self) -> Found<'_> {
        let given_up = self.quorum.table().left(self.key);
        let items = self.seen.iter().enumerate().filter_map(|(member, seen)| match seen {
            Some(Ok(Some(item))) => Some((member, Ballot::of(&item.value), item)),
            _ => None,
        });
        Found(items.filter(|(_, ballot, _)| !given_up.contains(ballot)).collect())
    }

    /// Whether the member gives no new votes yet.
    fn abstains(&self, member: usize) -> bool {
        self.quorum.members.all()[member].recovery(self.route).is_some()
    }

    fn is_misdated(&self, member: usize) -> bool {
        self.quorum.members.misdated(member, self.route).is_some()
    }

    /// Whether this client may hold the lock, by the votes of members that did not answer, or have
    /// forgotten them.
    fn may_be_held(&self, votes: &Found<'_>, failed: usize) -> bool {
        let majority = self.quorum.majority();
        let now = self.quorum.clock.now();
        let may_be = |held: Votes| {
            let is_forgotten = |member: &usize| {
                let had_voted = held.votes[*member].version.is_some();
                had_voted && votes.of(*member).is_none() && self.abstains(*member)
            };
            let forgotten = (0..self.seen.len()).filter(is_forgotten).count();
            now < held.deadline(majority)
                && votes.count(&held.ballot) + forgotten + failed >= majority
        };
        self.quorum.table().all_votes_of(self.key).into_iter().any(may_be)
    }

    fn record(&self, votes: &Found<'_>, of: &Ballot) -> Item {
        let items =
            || votes.0.iter().filter(|(_, ballot, _)| ballot == of).map(|(_, _, item)| item);
        let mut left: Vec<Duration> =
            items().map(|item| item.remaining.unwrap_or(Duration::MAX)).collect();
        left.sort();
        // The lock lasts as long as q votes do; what has not so many, until the last one ends.
        let surplus = left.len().checked_sub(self.quorum.majority());
        let lasts = surplus.and_then(|place| left.get(place)).or(left.last());
        let value = items().next().map(|item| ballot::record(&item.value)).unwrap_or_default();
        Item {
            value,
            version: version(of),
            remaining: lasts.copied().filter(|left| *left < Duration::MAX),
            fence: self.newest_fence,
        }
    }
}

/// The votes of the members that have one.
struct Found<'a>(Vec<(usize, Ballot, &'a Item)>);

impl Found<'_> {
    fn ballots(&self) -> impl Iterator<Item = &Ballot> {
        self.0.iter().map(|(_, ballot, _)| ballot)
    }

    fn count(&self, of: &Ballot) -> usize {
        self.ballots().filter(|ballot| *ballot == of).count()
    }

    fn of(&self, member: usize) -> Option<&Ballot> {
        self.0.iter().find(|(of, ..)| *of == member).map(|(_, ballot, _)| ballot)
    }
}

impl Task for Read<'_> {
    fn follows(&self) -> Option<&Key> {
        Some(self.key)
    }

    fn needs(&self, _member: usize) -> bool {
        true
    }

    fn add_to<'b>(&'b self, _member: usize, batch: &mut Vec<Op<'b>>) {
        batch.extend([Some(self.key), self.fence.as_ref()].into_iter().flatten().map(Op::get));
    }

    fn take(&mut self, member: usize, came: Came) {
        let replies = came.replies.map(|replies| {
            let mut replies = replies.into_iter();
            let item = match replies.next() {
                Some(Reply::Value(item)) => Some(item),
                _ => None,
            };
            let fence = match replies.next() {
                Some(Reply::Value(item)) => item.value,
                _ => Vec::new(),
            };
            (item, fence)
        });
        self.seen[member] = Some(match replies {
            Ok((item, fence)) => {
                let fence = std::str::from_utf8(&fence).ok().and_then(|text| text.parse().ok());
                self.newest_fence = self.newest_fence.max(fence.unwrap_or_default());
                Ok(item)
            }
            Err(failure) => Err(failure),
        });
    }

    fn next(&mut self, _now: Moment) -> Next {
        Next::Done(self.ended())
    }
}
