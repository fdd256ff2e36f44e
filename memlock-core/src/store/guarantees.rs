//! What a store promises, as data: the limits that primitives rely on, and the source of
//! `docs/guarantees.md`, `memlock doctor` and error messages.

use std::time::Duration;

use super::recovery::Guard;
use crate::clock::{Moment, brief, whole_seconds};
use crate::error::{Error, Result};
use crate::lease::{DRIFT, Lease};
use crate::mutation::{self, Mutation};

/// What a store promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarantees {
    /// The processes that can share the store.
    pub scope: Scope,
    /// How much earlier than requested an item may expire, because the clock that counts was behind
    /// when the item was stored. The store requests this much more: see [`Guarantees::covering`].
    pub clock_error: Duration,
    /// The step in which the store's clock ticks.
    pub clock_step: Duration,
    /// A reply that takes longer than this may come from a server that was stopped, together with
    /// its clock: the remaining time of the item is then read back. `None`: the clock cannot stop.
    pub suspicious_delay: Option<Duration>,
    /// The clock that counts.
    pub clock: ClockOf,
    /// What survives the end of the server, or of the process that keeps the items.
    pub survives: Survives,
    /// Whether items may be evicted to make room for others, unless the server is configured to
    /// refuse instead. With `evictions=refuse` in the URL, servers that
    /// may evict are refused.
    pub evicts: bool,
    /// Across which events fences rise.
    pub fences_rise: FencesRise,
    /// Whether requests of several processes are carried out in the order of sending.
    pub order: Order,
    /// The promise of all clients that no lease is longer, so that locks survive what the server
    /// does not remember; `None`: they do not.
    pub guard: Option<Guard>,
    /// The longest key, in bytes.
    pub longest_key: usize,
    /// The longest value, in bytes.
    pub longest_value: usize,
}

/// The processes that can share a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The threads of one process.
    Process,
    /// The processes of one host.
    Host,
    /// All hosts that reach the server.
    Network,
}

/// The clock that decides when an item expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockOf {
    /// The clock of this host, which does not stop or step.
    Host,
    /// The clock of the server.
    Server,
}

/// What survives the end of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survives {
    /// Nothing: when the server ends, all locks are gone, while their holders may continue.
    Nothing,
    /// What the server has written to its disk, if it is configured to do so.
    Persisted,
    /// Everything, until the host itself is rebooted.
    Restart,
    /// Everything, unless the server crashes: then nothing.
    CleanRestart,
    /// Everything.
    Crash,
}

/// Across which events fences rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FencesRise {
    /// Across restarts, as long as the server's wall clock is not set back.
    WhileClocksDo,
    /// Across restarts and whatever its clock does, unless an older copy of the data is restored.
    UnlessRestored,
}

/// The order in which a store carries out requests on different connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// That of sending, as good as always.
    Sent,
    /// A request may overtake one that was sent up to a moment before.
    Close,
    /// A request may overtake one that was sent long before, and waits for the disk.
    Open,
}

impl Guarantees {
    /// The time to live to request for an item that must exist for at least `lease`.
    ///
    /// The possible error of the clock is added; and, because two clocks drift apart, 1 in 5,000 of
    /// the lease.
    pub fn covering(&self, lease: Duration) -> Duration {
        let step = self.clock_step.as_nanos().max(1);
        let whole = lease.as_nanos().div_ceil(step).saturating_mul(step);
        let whole = u64::try_from(whole).map_or(Duration::MAX, Duration::from_nanos);
        let drift = Duration::from_secs(lease.as_secs() / DRIFT);
        whole.saturating_add(self.clock_error).saturating_add(drift)
    }

    /// Checks a lease that is to be requested.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a lease that no store gives, or that is
    /// longer than the guard.
    pub fn lease(&self, duration: Duration) -> Result<Lease> {
        let lease = Lease::new(duration)?;
        let longest = self.guard.map_or(Duration::MAX, Guard::longest_lease);
        if duration <= longest || mutation::has(Mutation::LeaseBeyondTheGuard) {
            return Ok(lease);
        }
        Err(Error::invalid(format!(
            "The lease of {} is longer than the guard of {}: ask for a shorter one, and extend it or \
             let it be renewed; or set a longer guard= for all clients.",
            brief(duration),
            brief(longest)
        )))
    }

    /// How many seconds of the server's clock, beginning with the second that it shows, an item
    /// must be stored for to exist for at least `lease`. For records that note ends in whole
    /// seconds.
    pub fn covering_seconds(&self, lease: Duration) -> u64 {
        let behind = self.clock_error.max(Duration::from_secs(1)).as_secs();
        whole_seconds(lease).saturating_add(behind + lease.as_secs() / DRIFT)
    }

    /// The latest time by which the store has dropped an item whose request was sent at `sent`.
    pub fn gone(&self, lease: Lease, sent: Moment) -> Moment {
        sent + self.covering(lease.duration()) + Duration::from_secs(1)
    }

    /// The store keeps an item until `until`, by a request for `old`. Returns the time until which
    /// it keeps the item at least if it may also have carried out a later request for `new`: its
    /// clock may stop, but never goes back.
    pub(crate) fn kept_by_either(&self, until: Moment, old: Lease, new: Lease) -> Moment {
        let less = self.covering(old.duration()).saturating_sub(self.covering(new.duration()));
        Moment::from_boot(until.since_boot().saturating_sub(less + less / DRIFT as u32))
    }

    /// Whether a reply took so long that the server may have been stopped.
    pub(crate) fn is_suspicious(&self, delay: Duration) -> bool {
        self.suspicious_delay.is_some_and(|longest| delay > longest)
    }

    /// The time until which the store is guaranteed to keep an item, by a reply that `left`
    /// remained.
    ///
    /// A reply that takes too long may come from a server that was stopped, together with its
    /// clock, for an unknown time: the result is then `None`, and the item has to be read again.
    /// `first`: when an earlier read was sent whose reply was as slow. The server ran when it
    /// replied to that read, so its clock has been stopped for no longer than since then.
    pub(crate) fn kept_until(
        &self,
        left: Duration,
        sent: Moment,
        came: Moment,
        first: Option<Moment>,
    ) -> Option<Moment> {
        let stood = match (self.is_suspicious(came.since(sent)), first) {
            (false, _) => Duration::ZERO,
            (true, Some(first)) => came.since(first),
            (true, None) => return None,
        };
        Some(sent + left.saturating_sub(self.clock_error.saturating_add(stood)))
    }

    /// The promises in words, each with its subject: what `memlock doctor` says, and the columns of
    /// the table in `docs/guarantees.md`.
    pub fn in_words(&self) -> [(&'static str, String); 6] {
        let scope = match self.scope {
            Scope::Process => "the threads of one process",
            Scope::Host => "the processes of one host",
            Scope::Network => "all hosts that reach the server",
        };
        let expiry = match self.clock_error {
            Duration::ZERO => "exact".to_owned(),
            error => format!("up to {0} early, so memlock asks for {0} more", in_units(error)),
        };
        let stalls = match self.suspicious_delay {
            Some(delay) => format!("replies after more than {} are verified", in_units(delay)),
            None => "the clock cannot stand still".to_owned(),
        };
        let restart = match (self.guard, self.survives) {
            (Some(guard), _) => format!(
                "holders put their locks back; new ones are given after {}",
                in_units(guard.longest_lease())
            ),
            (None, survives) => without_guard(survives).to_owned(),
        };
        let evictions = if self.evicts { "unless the server refuses when full" } else { "never" };
        let fences = match self.fences_rise {
            FencesRise::WhileClocksDo => "rise while the clock is not set back",
            FencesRise::UnlessRestored => "rise, unless an older copy is restored",
        };
        [
            ("scope", scope.to_owned()),
            ("expiry", expiry),
            ("stalls", stalls),
            ("restart", restart),
            ("evictions", evictions.to_owned()),
            ("fences", fences.to_owned()),
        ]
    }
}

/// What becomes of locks when the server, or the process that keeps the items, ends.
fn without_guard(survives: Survives) -> &'static str {
    match survives {
        Survives::Nothing => "all locks are lost",
        Survives::Persisted => "what the server has saved survives",
        Survives::Restart => "locks survive, until the host is rebooted",
        Survives::CleanRestart => "locks survive a clean restart, and are lost in a crash",
        Survives::Crash => "locks survive, also a crash",
    }
}

fn in_units(duration: Duration) -> String {
    match duration.subsec_millis() {
        0 => format!("{} s", duration.as_secs()),
        _ => format!("{} ms", duration.as_millis()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::clock::{Clock, SystemClock};
    use crate::store::schemes;

    /// The sections of the page, and a store of each.
    const SECTIONS: &[(&str, &str)] = &[
        #[cfg(feature = "memcached")]
        ("memcached", "memcached://h"),
        #[cfg(feature = "memcached")]
        ("memcached with `guard=60s`", "memcached://h?guard=60s"),
        ("Memory", "memory://x"),
        #[cfg(feature = "postgresql")]
        ("PostgreSQL", "postgresql://u@h"),
        #[cfg(feature = "postgresql")]
        ("PostgreSQL with `durable=yes`", "postgresql://u@h?durable=yes"),
        #[cfg(feature = "mysql")]
        ("MySQL and MariaDB", "mysql://h/d"),
        #[cfg(feature = "redis")]
        ("Redis and Valkey", "redis://h"),
        #[cfg(feature = "sqlite")]
        ("SQLite", "sqlite:/x"),
    ];

    /// The tables are written by hand, and say what the code does.
    #[test]
    fn the_documented_promises_are_those_of_the_code() {
        let page = include_str!("../../../docs/guarantees.md");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        for (heading, url) in SECTIONS {
            let guarantees = schemes::connect(url, &clock).unwrap().guarantees();
            let rows = guarantees.in_words().map(|(what, said)| format!("| {what} | {said} |"));
            let table = format!("### {heading}\n\n| | |\n| --- | --- |\n{}\n\n", rows.join("\n"));
            assert!(page.contains(&table), "docs/guarantees.md does not contain:\n{table}");
        }
    }

    /// The section says that this row changes, and no other does.
    #[test]
    fn of_a_server_that_may_not_evict_one_row_is_another() {
        let page = include_str!("../../../docs/guarantees.md");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let promises = |url: &str| schemes::connect(url, &clock).unwrap().guarantees();
        for (heading, url) in SECTIONS.iter().filter(|(_, url)| promises(url).evicts) {
            let joint = if url.contains('?') { '&' } else { '?' };
            let (allows, refuses) =
                (promises(url), promises(&format!("{url}{joint}evictions=refuse")));
            let (allows, refuses) = (allows.in_words(), refuses.in_words());
            let changed: Vec<_> = refuses.iter().filter(|row| !allows.contains(row)).collect();
            assert_eq!(changed, [&("evictions", "never".to_owned())], "{heading}");
            let (_, section) = page.split_once(&format!("### {heading}\n")).unwrap();
            let section = section.split("\n#").next().unwrap();
            let said = "With `evictions=refuse` in the URL, the row *evictions* is *never*";
            assert!(section.contains(said), "docs/guarantees.md on {heading}: {said}");
        }
    }
}
