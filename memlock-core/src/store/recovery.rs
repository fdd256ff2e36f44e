//! Recovery: what a server that lost its items when it was started does until all leases of its
//! earlier life have ended.
//!
//! All clients of a server agree on a guard: no lease is longer. A server that was started less
//! than the guard ago has forgotten locks that may still be held. Until then nothing new is granted
//! on it, and holders put back what they hold.
//!
//! | an item that is to be added | a server that recovers | one that does not |
//! | --- | --- | --- |
//! | of no holder ([`Admission::Always`]) | stores it | stores it |
//! | a new grant ([`Admission::Grant`]) | is not asked | stores it |
//! | what was held in an earlier life ([`Admission::Reclaim`]) | stores it | is not asked: the lease has ended |
//!
//! A connection is to one life of the server. Whether it recovers is decided before the request is
//! sent, so the server is at least that old when it carries the request out.

use std::time::Duration;

use super::{Admission, Epoch, Op, Reply};
use crate::clock::{Moment, brief};
use crate::error::{Error, Result};
use crate::lease::MIN_LEASE;
use crate::mutation::{self, Mutation};

/// A promise of all clients of a server: no lease is longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard(Duration);

impl Guard {
    /// A guard of this length.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if it is shorter than the shortest lease.
    pub fn new(longest_lease: Duration) -> Result<Guard> {
        if longest_lease < MIN_LEASE {
            return Err(Error::config(format!(
                "A guard of {} is shorter than the shortest lease, which is 1 s: write for example \
                 guard=60s.",
                brief(longest_lease)
            )));
        }
        Ok(Guard(longest_lease))
    }

    /// The longest lease.
    pub fn longest_lease(self) -> Duration {
        self.0
    }

    /// For how long after its start a server grants nothing new. Leases are counted on the clocks
    /// of their holders, and the age of a server on its own: together they differ by much less
    /// than 3 in 1,000.
    pub fn recovery(self) -> Duration {
        if mutation::has(Mutation::RecoverTooShort) {
            return self.0 - self.0 / 20;
        }
        self.0 + self.0 / 1000 * 3
    }

    /// From when on a server gives new grants that was at least `age` old at that moment.
    fn ends(self, age: Duration, at: Moment) -> Moment {
        at + self.recovery().saturating_sub(age)
    }
}

/// A server that gives no new grants yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The life that was seen last.
    pub life: Epoch,
    /// How long ago the server's life began, at least.
    pub age: Duration,
    /// How long the recovery still takes, at most.
    pub left: Duration,
}

/// What a client has observed of a server's recovery: the last life that it saw.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observed(Option<Observation>);

#[derive(Clone, Copy, Debug)]
struct Observation {
    life: Epoch,
    /// When the server told its age.
    at: Moment,
    /// Until when it recovers at most.
    until: Moment,
}

impl Observed {
    /// A connection to this life was opened, which was at least `age` old at that moment. Of several
    /// observations the last one counts, also if it has the same epoch, by which two lives that began
    /// in the same second cannot be told apart.
    pub fn connected(&mut self, guard: Guard, epoch: Epoch, age: Duration, at: Moment) {
        if self.0.is_none_or(|known| known.at <= at) {
            self.0 = Some(Observation { life: epoch, at, until: guard.ends(age, at) });
        }
    }

    /// How much longer the server recovers in the life of a connection, at most: for the whole time
    /// if the last life that was seen is another one. Zero if it gives new grants.
    pub fn recovers_for(&self, guard: Guard, epoch: Epoch, now: Moment) -> Duration {
        match self.0 {
            Some(known) if known.life == epoch => known.until.since(now),
            _ => guard.recovery(),
        }
    }

    /// The recovery of the last life that was seen.
    pub fn recovery(&self, guard: Guard, now: Moment) -> Option<Recovery> {
        let Observation { life, until, .. } = self.0.filter(|known| now < known.until)?;
        let left = until.since(now);
        Some(Recovery { life, age: guard.recovery().saturating_sub(left), left })
    }
}

/// The operations of a batch that the server carries out in this life and state.
#[derive(Debug)]
pub struct Admitted<'a> {
    all: &'a [Op<'a>],
    /// Those operations, unless they are all.
    some: Option<Vec<Op<'a>>>,
    life: Epoch,
    recovers: bool,
}

impl<'a> Admitted<'a> {
    /// `recovers`: whether the server gives no new grants yet.
    pub fn of(all: &'a [Op<'a>], life: Epoch, recovers: bool) -> Admitted<'a> {
        let mut admitted = Admitted { all, some: None, life, recovers };
        if !all.iter().all(|op| admitted.has(op)) {
            admitted.some = Some(all.iter().filter(|op| admitted.has(op)).copied().collect());
        }
        admitted
    }

    /// The operations to be sent.
    pub fn ops(&self) -> &[Op<'a>] {
        self.some.as_deref().unwrap_or(self.all)
    }

    /// The replies to the batch: those to the operations that were sent, and
    /// [`Reply::NotAdmitted`] to the others.
    pub fn complete(&self, replies: Vec<Reply>) -> Vec<Reply> {
        if self.some.is_none() {
            return replies;
        }
        let mut replies = replies.into_iter();
        let reply = |op| if self.has(op) { replies.next() } else { Some(Reply::NotAdmitted) };
        self.all.iter().filter_map(reply).collect()
    }

    fn has(&self, op: &Op<'a>) -> bool {
        match *op {
            Op::Add { admission, .. } => is_admitted(admission, self.life, self.recovers),
            _ => true,
        }
    }
}

fn is_admitted(admission: Admission, life: Epoch, recovers: bool) -> bool {
    match admission {
        Admission::Always => true,
        Admission::Grant => !recovers || mutation::has(Mutation::GrantWhileRecovering),
        Admission::Reclaim(earlier) => recovers && earlier != life,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::MAX_LEASE;
    use crate::name::Keyspace;
    use crate::store::{Expiry, Returns};

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_guard_shorter_than_any_lease_is_refused() {
        assert!(Guard::new(Duration::from_millis(999)).is_err());
        assert_eq!(Guard::new(seconds(1)).unwrap().recovery(), Duration::from_millis(1003));
        assert_eq!(Guard::new(MAX_LEASE).unwrap().recovery(), MAX_LEASE + MAX_LEASE / 1000 * 3);
    }

    #[test]
    fn a_server_grants_once_it_is_older_than_every_lease() {
        let guard = Guard::new(seconds(60)).unwrap();
        let now = Moment::from_boot(seconds(5));
        assert_eq!(guard.ends(seconds(0), now), now + Duration::from_millis(60_180));
        assert_eq!(guard.ends(seconds(60), now), now + Duration::from_millis(180));
        assert_eq!(guard.ends(seconds(1000), now), now);
    }

    #[test]
    fn each_life_of_a_server_recovers_anew() {
        let (guard, at) =
            (Guard::new(seconds(10)).unwrap(), |s: u64| Moment::from_boot(seconds(100 + s)));
        let [first, second] = [1, 2].map(|life| Epoch::new(life, 0));
        let mut observed = Observed::default();
        let recovers =
            |seen: &Observed, life, now| !seen.recovers_for(guard, life, at(now)).is_zero();
        assert!(recovers(&observed, first, 0) && observed.recovery(guard, at(0)).is_none());
        observed.connected(guard, first, seconds(8), at(0));
        assert!(recovers(&observed, first, 2) && !recovers(&observed, first, 3));
        // It may be another life that began in the same second.
        observed.connected(guard, first, seconds(0), at(2));
        assert!(recovers(&observed, first, 12) && !recovers(&observed, first, 13));
        // A connection that was opened before is noted later.
        observed.connected(guard, first, seconds(9), at(1));
        observed.connected(guard, second, seconds(1000), at(1));
        assert!(recovers(&observed, first, 12) && !recovers(&observed, first, 13));
        observed.connected(guard, second, seconds(0), at(3));
        assert_eq!(observed.recovery(guard, at(4)).unwrap().age, seconds(1));
        assert_eq!(observed.recovers_for(guard, second, at(4)), Duration::from_millis(9030));
        assert_eq!(observed.recovers_for(guard, first, at(4)), guard.recovery());
        assert!(observed.recovery(guard, at(14)).is_none());
    }

    #[test]
    fn what_a_recovering_server_stores() {
        let (now, before) = (Epoch::new(2, 0), Epoch::new(1, 0));
        for (admission, recovering, settled) in [
            (Admission::Always, true, true),
            (Admission::Grant, false, true),
            (Admission::Reclaim(before), true, false),
            (Admission::Reclaim(now), false, false),
        ] {
            assert_eq!(is_admitted(admission, now, true), recovering, "{admission:?}");
            assert_eq!(is_admitted(admission, now, false), settled, "{admission:?}");
        }
    }

    #[test]
    fn the_replies_to_what_was_run_are_in_their_places() {
        let (key, life) = (Keyspace::default().lock(b"x"), Epoch::new(2, 0));
        let (value, expiry, returns) = (b"v", Expiry::Never, Returns::Nothing);
        let admission = Admission::Grant;
        let grant = Op::Add { key: &key, value, expiry, returns, admission };
        let ops = [Op::get(&key), grant, Op::add(&key, value, expiry, returns)];
        let carried_out = |ops: &[Op<'_>], recovers| {
            let admitted = Admitted::of(ops, life, recovers);
            let reply = |op: &Op<'_>| if op.changes() { Reply::Written } else { Reply::Missing };
            admitted.complete(admitted.ops().iter().map(reply).collect())
        };
        let all = [Reply::Missing, Reply::Written, Reply::Written];
        assert_eq!(carried_out(&ops, false), all);
        let some = [Reply::Missing, Reply::NotAdmitted, Reply::Written];
        assert_eq!(carried_out(&ops, true), some);
        assert!(Admitted::of(&[grant], life, true).ops().is_empty());
        assert_eq!(carried_out(&[grant], true), [Reply::NotAdmitted]);
    }
}
