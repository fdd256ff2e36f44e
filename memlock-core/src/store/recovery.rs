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

use std::borrow::Cow;
use std::time::Duration;

use super::{Admission, Epoch, Failure, Op, Reply};
use crate::clock::{Moment, brief};
use crate::error::{Error, Result};
use crate::lease::MIN_LEASE;
use crate::mutation::{self, Mutation};

/// The first word of the item on which all clients of a server agree.
const FORMAT: &str = "memlock-config/1";
/// The guard's own word, and that for the server's time when the item was written, in microseconds
/// since 1970.
const GUARD: &str = "guard=";
const SINCE: &str = " since=";
/// The word for the members of the quorum that the server belongs to.
const QUORUM: &str = " quorum=";

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

    /// For how long after its start a server grants nothing new. Leases are counted on the clocks of
    /// their holders, and the age of a server on its own: together they differ by much less than
    /// 3 in 1,000.
    pub fn recovery(self) -> Duration {
        if mutation::has(Mutation::RecoverTooShort) {
            return self.0 - self.0 / 20;
        }
        self.0 + self.0 / 1000 * 3
    }

    /// From when on a server gives new grants that was at least `age` old at that moment.
    pub fn ends(self, age: Duration, at: Moment) -> Moment {
        at + self.recovery().saturating_sub(age)
    }
}

/// A server that gives no new grants yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The server's life.
    pub epoch: Epoch,
    /// How long ago it began, at least.
    pub age: Duration,
    /// How long the recovery still takes, at most.
    pub left: Duration,
}

/// What a client has observed of a server's recovery: the last life that it saw, and until when the
/// server recovers in it at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observed(Option<(Epoch, Moment)>);

impl Observed {
    /// A connection to this life was opened, which was at least `age` old at that moment. Servers
    /// tell their age in whole seconds, so of several observations the earliest end is right, too.
    pub fn connected(&mut self, guard: Guard, epoch: Epoch, age: Duration, at: Moment) {
        let until = guard.ends(age, at);
        let before = self.0.filter(|(known, _)| *known == epoch).map(|(_, until)| until);
        self.0 = Some((epoch, before.map_or(until, |before| before.min(until))));
    }

    /// Whether the server that a connection leads to still recovers, in the life of the connection:
    /// yes, if a later life was seen.
    pub fn recovers(&self, epoch: Epoch, now: Moment) -> bool {
        self.0.is_none_or(|(known, until)| known != epoch || now < until)
    }

    /// The recovery of the last life that was seen.
    pub fn recovery(&self, guard: Guard, now: Moment) -> Option<Recovery> {
        let (epoch, until) = self.0.filter(|&(_, until)| now < until)?;
        let left = until.since(now);
        Some(Recovery { epoch, age: guard.recovery().saturating_sub(left), left })
    }
}

/// Those operations of a batch that the server may carry out now. The others are answered with
/// [`Reply::NotAdmitted`].
#[derive(Debug)]
pub struct Admitted<'o, 'a> {
    all: &'o [Op<'a>],
    now: Cow<'o, [Op<'a>]>,
    epoch: Epoch,
    recovers: bool,
}

impl<'o, 'a> Admitted<'o, 'a> {
    /// Those of `all`, for a server in the life `epoch`.
    pub fn new(all: &'o [Op<'a>], epoch: Epoch, recovers: bool) -> Admitted<'o, 'a> {
        let is_now = |op: &Op<'_>| is_now(op, epoch, recovers);
        let now = if all.iter().all(is_now) {
            Cow::Borrowed(all)
        } else {
            Cow::Owned(all.iter().copied().filter(is_now).collect())
        };
        Admitted { all, now, epoch, recovers }
    }

    /// Those to carry out.
    pub fn ops(&self) -> &[Op<'a>] {
        &self.now
    }

    /// The replies to all, made of those to what was carried out.
    fn fill_in(self, replies: Vec<Reply>) -> Vec<Reply> {
        if let Cow::Borrowed(_) = self.now {
            return replies;
        }
        let mut replies = replies.into_iter();
        let is_now = |op| is_now(op, self.epoch, self.recovers);
        let reply = |op| if is_now(op) { replies.next() } else { Some(Reply::NotAdmitted) };
        self.all.iter().filter_map(reply).collect()
    }

    /// Runs them, if there are any.
    ///
    /// # Errors
    /// As `run`.
    pub fn run(
        self,
        run: impl FnOnce(&[Op<'a>]) -> std::result::Result<Vec<Reply>, Failure>,
    ) -> std::result::Result<Vec<Reply>, Failure> {
        let replies = if self.now.is_empty() { Vec::new() } else { run(&self.now)? };
        Ok(self.fill_in(replies))
    }
}

fn is_now(op: &Op<'_>, epoch: Epoch, recovers: bool) -> bool {
    match *op {
        Op::Add { admission, .. } => is_admitted(admission, epoch, recovers),
        _ => true,
    }
}

fn is_admitted(admission: Admission, epoch: Epoch, recovers: bool) -> bool {
    match admission {
        Admission::Always => true,
        Admission::Grant => !recovers || mutation::has(Mutation::GrantWhileRecovering),
        Admission::Reclaim(earlier) => recovers && earlier != epoch,
    }
}

/// What all clients of a server agree on: the text of its item. `quorum`: the members of the quorum
/// that it belongs to. `since`: the server's time, if the age of the item shows how old the server's
/// life is.
pub fn config(guard: Guard, quorum: Option<&str>, since: Option<Duration>) -> String {
    let millis = guard.0.as_millis();
    let text = match millis % 1000 {
        0 => format!("{FORMAT} {GUARD}{}s", millis / 1000),
        _ => format!("{FORMAT} {GUARD}{millis}ms"),
    };
    let text = quorum.map_or(text.clone(), |members| format!("{text}{QUORUM}{members}"));
    since.map_or(text.clone(), |since| format!("{text}{SINCE}{}", since.as_micros()))
}

/// Compares what the clients of a server agreed on with what this client's URL says. Returns the
/// server's time when they did, if the item tells.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config), with both.
pub fn agrees(
    found: &[u8],
    guard: Option<Guard>,
    quorum: Option<&str>,
) -> Result<Option<Duration>> {
    let text = String::from_utf8_lossy(found);
    let (found, since) = text.split_once(SINCE).unwrap_or((&text, ""));
    let ours = guard.map(|guard| config(guard, quorum, None));
    if ours.as_deref() == Some(found) {
        return Ok(since.parse().ok().map(Duration::from_micros));
    }
    let Some(theirs) = found.strip_prefix(FORMAT).map(str::trim_start) else {
        let found: String = found.chars().take(40).collect();
        return Err(Error::config(format!(
            "The item in which its clients agree on a guard has the value {found:?}, which is not \
             memlock's: use another prefix=, or delete the item."
        )));
    };
    let theirs: String = theirs.chars().take(1000).collect();
    let ours = ours.as_deref().and_then(|text| text.strip_prefix(FORMAT));
    let ours = ours.map_or_else(|| "no guard=".to_owned(), |text| text.trim_start().to_owned());
    Err(Error::config(format!(
        "All its clients have to agree: they have {}, and this URL has {ours}. Change the URL; or, to \
         change what they agree on, stop all clients, and start the server anew.",
        theirs.escape_debug()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::MAX_LEASE;

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
        assert!(observed.recovers(first, at(0)) && observed.recovery(guard, at(0)).is_none());
        observed.connected(guard, first, seconds(8), at(0));
        assert!(observed.recovers(first, at(2)) && !observed.recovers(first, at(3)));
        // Another connection saw the server's clock just after a tick.
        observed.connected(guard, first, seconds(9), at(0));
        assert!(!observed.recovers(first, at(2)));
        observed.connected(guard, first, seconds(8), at(1));
        assert!(!observed.recovers(first, at(2)));
        observed.connected(guard, second, seconds(0), at(3));
        let recovery = observed.recovery(guard, at(4)).unwrap();
        assert_eq!((recovery.epoch, recovery.age), (second, seconds(1)));
        assert!(observed.recovers(second, at(4)) && observed.recovers(first, at(4)));
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
    fn clients_with_another_guard_are_refused_with_both_values() {
        let config = |guard| config(guard, None, None);
        let [one, half] =
            [seconds(60), Duration::from_millis(1500)].map(|it| Guard::new(it).unwrap());
        assert!(agrees(config(one).as_bytes(), Some(one), None).is_ok());
        assert!(agrees(config(half).as_bytes(), Some(half), None).is_ok());
        let refused = |guard| agrees(config(one).as_bytes(), guard, None).unwrap_err().to_string();
        assert!(
            refused(Some(half)).contains("guard=60s")
                && refused(Some(half)).contains("guard=1500ms")
        );
        assert!(refused(None).contains("guard=60s") && refused(None).contains("no guard="));
        let dated = super::config(one, None, Some(seconds(7)));
        assert_eq!(dated, "memlock-config/1 guard=60s since=7000000");
        assert_eq!(agrees(dated.as_bytes(), Some(one), None), Ok(Some(seconds(7))));
        assert!(agrees(dated.as_bytes(), Some(half), None).is_err());
        let members = super::config(one, Some("a:1,b:1,c:1"), None);
        assert_eq!(members, "memlock-config/1 guard=60s quorum=a:1,b:1,c:1");
        assert!(agrees(members.as_bytes(), Some(one), Some("a:1,b:1,c:1")).is_ok());
        for other in [None, Some("a:1,b:1,d:1")] {
            let said = agrees(members.as_bytes(), Some(one), other).unwrap_err().to_string();
            assert!(said.contains("quorum=a:1,b:1,c:1"), "{said}");
        }
        assert!(
            agrees(b"\x1b[2J\xff", Some(one), None).unwrap_err().to_string().contains("\\u{1b}")
        );
    }
}
