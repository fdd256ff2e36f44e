//! A quorum: one lock on N = 2f + 1 independent servers, of which any f may be down, hung, cut off
//! or started anew. A store that is made of the stores of single servers.
//!
//! Each member has an item of the lock, its *vote*, and a counter of fences beside it. A client
//! holds a lock while q = f + 1 members have confirmed its vote. Of N it is always those of the
//! URL: members that do not answer count against it.
//!
//! | a member's item | what is true | what may change it |
//! | --- | --- | --- |
//! | none, and the member is older than the guard | it votes for nobody | any client, by `Add` |
//! | none, and the member is younger | it may have forgotten a vote, and abstains | who had its vote in its earlier life puts it back, before the end of the lease that was confirmed |
//! | a vote of a holder | until that holder's deadline for this member it votes for nobody else | the holder, by version: extending or removing it |
//! | a vote of an attempt without q | it holds up others until it is removed | its client, by version, at once; or its end |
//!
//! **Exclusion.** Two clients that both have q votes share a member. There the vote of the first
//! one outlives the validity of its lock, or the member has been started anew and abstains until no
//! lease of before is valid. A deadline is kept for each member, counted from before the request
//! that it confirmed last was sent; the lock's is that which q of them reach.
//!
//! **Fences.** An attempt increments the counters of all members behind its votes. Its fence is the
//! q-th smallest number of those that voted for it, and q members must have counted that far before
//! it is used: see the module `fence`.
//!
//! **What counts.** Only a confirmed `Add` or `CompareAndSet`: not what a read has found, nor a vote
//! that was added again while the lock was held, which may hide another holder in between. It
//! counts from the next extension on.
//!
//! **Split votes.** Of several clients without q, the one that has the vote of the first member in
//! the order of the key (rendezvous hashing) that votes at all keeps its votes and tries to get
//! more for 50 to 200 ms. The others remove theirs at once.
//!
//! The queue of waiters is on the first member in that order that answers. It only decides who is
//! woken when.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod` | the store |
//! | `inner` | what the operations share |
//! | `members` | the servers: requests to all of them at once |
//! | `task` | operations that take several rounds, carried out side by side |
//! | `ballot` | whose vote it is |
//! | `votes` | the votes of what this client holds, and those that it has to remove |
//! | `acquire`, `confirm`, `release`, `read` | the operations on a lock |
//! | `fence` | the number that rises |
//! | `queue` | the operations on its queue |
//!
//! Weaker than consensus: clocks must run at the same rate, but for 3 in 1,000; the members are
//! fixed; after a cold start of all nothing is granted for one guard; and a fence needs clocks of the
//! members within the guard if all of them have forgotten theirs.

mod acquire;
mod ballot;
mod confirm;
mod fence;
mod inner;
mod members;
mod queue;
mod read;
mod release;
mod task;
#[cfg(test)]
mod tests;
mod votes;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "admin")]
use super::admin::{Abstention, Admin};
use super::{
    Admission, Epoch, Expiry, Failure, Guarantees, Node, Op, Recovery, Reply, Route, Store, Url,
};
use crate::clock::Clock;
#[cfg(feature = "admin")]
use crate::clock::brief;
use crate::error::{Error, Result};
use crate::name::Key;
use crate::owner::Token;
use acquire::Acquire;
use confirm::Confirm;
use inner::{EPOCH, Inner, SHORTEST_GUARD, after_change};
use queue::OnQueue;
use read::Read;
use release::{Release, remove_leftovers};
use task::{Task, drive};

/// More members than this only make a quorum slower.
const MOST_MEMBERS: usize = 31;

/// Several servers, of which a majority decides.
#[derive(Debug)]
pub struct Quorum {
    inner: Inner,
}

impl Quorum {
    /// A quorum of these stores, each of one server, with a guard.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for an even number of members, fewer than
    /// three or more than 31, or members without a guard or with one that is too short.
    pub fn new(members: Vec<Arc<dyn Store>>, clock: Arc<dyn Clock>) -> Result<Quorum> {
        let number = members.len();
        if number < 3 || number.is_multiple_of(2) {
            return Err(Error::config(format!(
                "A quorum of {number} servers is not possible: name an odd number of them, at least \
                 3. One that is added to an odd number makes it less available, not more."
            )));
        }
        if number > MOST_MEMBERS {
            return Err(Error::config(format!(
                "A quorum of {number} servers is not possible: name {MOST_MEMBERS} at most. Each of \
                 them is asked for each lock."
            )));
        }
        let guard = members.iter().map(|member| member.guarantees().guard).min_by_key(|guard| {
            guard.map_or(Duration::ZERO, super::recovery::Guard::longest_lease)
        });
        match guard.flatten() {
            Some(guard) if guard.longest_lease() >= SHORTEST_GUARD => {}
            _ => {
                return Err(Error::config(
                    "A quorum needs a guard of at least 4 s, the longest lease that its clients \
                     take: write for example quorum=majority&guard=60s.",
                ));
            }
        }
        Ok(Quorum { inner: Inner::new(members, clock) })
    }

    /// The task of an operation on a lock.
    fn task<'a>(&'a self, route: Route, op: &Op<'a>) -> Result<Box<dyn Task + 'a>> {
        Ok(match *op {
            Op::Add { key, value, expiry, admission: Admission::Reclaim(_), .. } => {
                Box::new(Confirm::reclaim(&self.inner, key, value, duration(expiry)?))
            }
            Op::Add { key, value, expiry, .. } => {
                Box::new(Acquire::new(&self.inner, route, key, value, duration(expiry)?))
            }
            Op::CompareAndSet { key, version, value, expiry, .. } => {
                Box::new(Confirm::extend(&self.inner, key, version, value, duration(expiry)?))
            }
            Op::Delete { key, version } => Box::new(Release::new(&self.inner, key, version)),
            Op::Get { key, fence } => Box::new(Read::new(&self.inner, route, key, fence)),
            Op::Append { .. } | Op::Prepend { .. } | Op::Increment { .. } => {
                return Err(Error::config("A quorum of servers stores nothing but locks."));
            }
        })
    }
}

/// Takes `quorum=` from the URL: whether a majority of its servers decides.
pub(super) fn is_requested(url: &mut Url) -> Result<bool> {
    match url.take("quorum").as_deref() {
        None => Ok(false),
        Some("majority") => Ok(true),
        Some(other) => {
            Err(Error::config(format!("{} is not majority.", url.parameter("quorum", Some(other)))))
        }
    }
}

/// The lease that an operation asks for.
fn duration(expiry: Expiry) -> Result<Duration> {
    match expiry {
        Expiry::After(duration) => Ok(duration),
        _ => Err(Error::config("A quorum of servers stores nothing but leases.")),
    }
}

/// The failure of a batch: of its parts, that which may have changed something.
fn failure_of(
    on_locks: &[std::result::Result<Reply, Failure>],
    on_queue: &std::result::Result<Vec<Reply>, Failure>,
) -> Option<Failure> {
    let failures =
        || on_locks.iter().filter_map(|ended| ended.as_ref().err()).chain(on_queue.as_ref().err());
    failures().find(|failure| failure.sent).or_else(|| failures().next()).cloned()
}

impl Store for Quorum {
    fn run(&self, route: Route, ops: &[Op<'_>]) -> std::result::Result<Vec<Reply>, Failure> {
        self.run_while(route, ops, &|| {})
    }

    fn run_while(
        &self,
        route: Route,
        ops: &[Op<'_>],
        meanwhile: &dyn Fn(),
    ) -> std::result::Result<Vec<Reply>, Failure> {
        remove_leftovers(&self.inner, route);
        let (on_queue, on_locks): (Vec<_>, Vec<_>) =
            ops.iter().enumerate().partition(|(_, op)| op.key().is_queue());
        let unsent = |error| Failure { error, sent: false };
        let mut tasks = on_locks
            .iter()
            .map(|(_, op)| self.task(route, op))
            .collect::<Result<Vec<_>>>()
            .map_err(unsent)?;
        let queue_ops: Vec<Op<'_>> = on_queue.iter().map(|(_, op)| **op).collect();
        let mut queue = OnQueue::new(&self.inner.members, route, queue_ops);
        let ended = drive(
            &self.inner.members,
            self.inner.clock.as_ref(),
            &mut tasks,
            &mut queue,
            meanwhile,
        );
        let of_queue = queue.into_replies();
        if let Some(failure) = failure_of(&ended, &of_queue) {
            let done = on_locks.iter().zip(&ended).filter(|(_, ended)| ended.is_ok());
            let mut done = done.map(|((_, op), _)| op);
            let on_queue = on_queue.iter().map(|(_, op)| op).filter(|_| of_queue.is_ok());
            let has_changed =
                done.any(|op| op.changes()) || on_queue.into_iter().any(|op| op.changes());
            return Err(if has_changed { after_change(failure) } else { failure });
        }
        let mut of_locks = ended.into_iter().flatten();
        let mut of_queue = of_queue.into_iter().flatten();
        let reply = |op: &Op<'_>| {
            if op.key().is_queue() { of_queue.next() } else { of_locks.next() }
        };
        Ok(ops.iter().filter_map(reply).collect())
    }

    fn is_silent(&self, _route: Route) -> bool {
        self.inner.members.available().count() < self.inner.majority()
    }

    /// Its votes are removed where members answer, though a majority may not.
    fn disown(&self, key: &Key, token: Token) {
        let Some(votes) = self.inner.table().votes_of(key, token) else { return };
        self.inner.table().forget(votes.ballot.number());
        for (member, vote) in votes.votes.iter().enumerate() {
            if vote.version.is_some() && !vote.is_gone {
                self.inner.leave(member, key, &votes.ballot);
            }
        }
    }

    fn disconnect(&self) {
        self.inner.members.all().iter().for_each(|member| member.disconnect());
    }

    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }

    fn time(&self, route: Route) -> Option<Duration> {
        self.inner.members.all().get(self.inner.members.first(route))?.time(route)
    }

    /// The members that do not recover, or have not been asked yet, have to be a majority. Those that
    /// do not answer give nothing either, so the others have to recover first.
    fn recovery(&self, route: Route) -> Option<Recovery> {
        let mut known: Vec<Recovery> = self
            .inner
            .members
            .available()
            .filter_map(|member| self.inner.members.all().get(member))
            .map(|member| member.recovery(route).unwrap_or_default())
            .collect();
        known.sort_by_key(|recovery| recovery.left);
        let last = known.get(self.inner.majority() - 1)?;
        (!last.left.is_zero()).then_some(Recovery { epoch: EPOCH, ..*last })
    }

    fn recovers(&self, route: Route, _life: Epoch) -> bool {
        self.recovery(route).is_some()
    }

    fn local_address(&self, route: Route) -> Option<IpAddr> {
        let in_order = self.inner.members.in_order(route);
        in_order
            .into_iter()
            .find_map(|member| self.inner.members.all()[member].local_address(route))
    }

    fn nodes(&self) -> Vec<Node> {
        self.inner.members.all().iter().flat_map(|member| member.nodes()).collect()
    }

    fn title(&self, _route: Route) -> String {
        self.inner.members.title()
    }

    #[cfg(feature = "admin")]
    fn missing(&self, node: usize) -> Option<String> {
        self.inner.members.all().get(node)?.missing(0)
    }

    #[cfg(feature = "admin")]
    fn abstention(&self, node: usize) -> Option<Abstention> {
        let members = &self.inner.members;
        if let Some(error) = members.misdated(node, Route::of_any()) {
            return Some(Abstention { why: error.to_string(), passes: false });
        }
        let Recovery { age, left, .. } = members.all().get(node)?.recovery(Route::of_any())?;
        let [age, left] = [age, left].map(|time| Duration::from_secs(time.as_secs()));
        let why = format!(
            "It was started anew, for all that is known {} ago, and gives votes within {}.",
            brief(age),
            brief(left + Duration::from_secs(1))
        );
        Some(Abstention { why, passes: true })
    }

    #[cfg(feature = "admin")]
    fn admin(&self, node: usize) -> Result<Box<dyn Admin + '_>> {
        match self.inner.members.all().get(node) {
            Some(member) => member.admin(0),
            None => Err(Error::config("There is no such server.")),
        }
    }
}
