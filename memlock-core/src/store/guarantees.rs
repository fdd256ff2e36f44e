//! What a store promises, as data: the limits that primitives count with, and what
//! `docs/guarantees.md`, `memlock doctor` and errors say about it.

use std::time::Duration;

use crate::clock::{Moment, whole_seconds};
use crate::lease::{DRIFT, Lease};

/// What a store promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarantees {
    /// The processes that can share it.
    pub scope: Scope,
    /// By how much sooner than it was asked for an item may expire, because the clock that counts
    /// was behind when it was stored. The store asks for so much more: see
    /// [`Guarantees::covering`].
    pub clock_error: Duration,
    /// The store's clock ticks in steps of so much.
    pub clock_step: Duration,
    /// A reply that takes longer may come from a server that stood still, and its clock with it:
    /// then the time that an item has left is read back. `None`: the clock cannot stand still.
    pub suspicious_delay: Option<Duration>,
    /// Whose clock counts.
    pub clock: ClockOf,
    /// What survives the end of the server, or of the process that keeps the items.
    pub survives: Survives,
    /// Whether items may be evicted to make room for others, unless the server is set up so that it
    /// refuses instead.
    pub evicts: bool,
    /// Across what fences rise.
    pub fences_rise: FencesRise,
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

/// Whose clock decides when an item expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockOf {
    /// That of this host, which does not stop or step.
    Host,
    /// The server's.
    Server,
}

/// What survives the end of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survives {
    /// Nothing: with the server, all locks are gone while their holders may go on.
    Nothing,
    /// Everything, until the host itself is started anew.
    Restart,
}

/// Across what fences rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FencesRise {
    /// As long as the items are there.
    InOneLife,
    /// Across restarts, as long as the server's wall clock is not set back.
    WhileClocksDo,
    /// Always.
    Always,
}

impl Guarantees {
    /// For how long to ask the store to keep something that must be there for at least `lease`.
    ///
    /// Two clocks do not run alike: to what the clock may be behind by comes 1 in 5,000.
    pub fn covering(&self, lease: Duration) -> Duration {
        let step = self.clock_step.as_nanos().max(1);
        let whole = lease.as_nanos().div_ceil(step).saturating_mul(step);
        let whole = u64::try_from(whole).map_or(Duration::MAX, Duration::from_nanos);
        let drift = Duration::from_secs(lease.as_secs() / DRIFT);
        whole.saturating_add(self.clock_error).saturating_add(drift)
    }

    /// For how many seconds of the server's clock, beginning with the one that it shows, something
    /// must be stored to be there for at least `lease`: for records that note ends in whole
    /// seconds.
    pub fn covering_seconds(&self, lease: Duration) -> u64 {
        let behind = self.clock_error.max(Duration::from_secs(1)).as_secs();
        whole_seconds(lease).saturating_add(behind + lease.as_secs() / DRIFT)
    }

    /// When the store has dropped an item whose request left at `sent`, at the latest.
    pub fn gone(&self, lease: Lease, sent: Moment) -> Moment {
        sent + self.covering(lease.duration()) + Duration::from_secs(1)
    }

    /// The store keeps something until then by a request for `old`. Until when it keeps it at least
    /// if it may also have carried out a later request for `new`: its clock may stand still, but
    /// never goes back.
    pub(crate) fn kept_by_either(&self, until: Moment, old: Lease, new: Lease) -> Moment {
        let less = self.covering(old.duration()).saturating_sub(self.covering(new.duration()));
        Moment::from_boot(until.since_boot().saturating_sub(less + less / DRIFT as u32))
    }

    /// Whether a reply took so long that the server may have stood still.
    pub(crate) fn is_suspicious(&self, delay: Duration) -> bool {
        self.suspicious_delay.is_some_and(|longest| delay > longest)
    }

    /// Until when the store certainly keeps an item of which it replied that so much was left.
    ///
    /// A reply that takes too long may come from a server that stood still, and its clock with it,
    /// since an unknown time: then `None`, and the item is to be read again. `first`: when an
    /// earlier read left that was as slow. Since its reply the server ran, so its clock has stood
    /// still for no longer than from then on.
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
        let restart = match self.survives {
            Survives::Nothing => "all locks are lost",
            Survives::Restart => "locks survive, until the host is rebooted",
        };
        let evictions = if self.evicts { "unless the server refuses when full" } else { "never" };
        let fences = match self.fences_rise {
            FencesRise::InOneLife => "rise while the items are there",
            FencesRise::WhileClocksDo => "rise while the clock is not set back",
            FencesRise::Always => "always rise",
        };
        [
            ("scope", scope.to_owned()),
            ("expiry", expiry),
            ("stalls", stalls),
            ("restart", restart.to_owned()),
            ("evictions", evictions.to_owned()),
            ("fences", fences.to_owned()),
        ]
    }
}

fn in_units(duration: Duration) -> String {
    match duration.subsec_millis() {
        0 => format!("{} s", duration.as_secs()),
        _ => format!("{} ms", duration.as_millis()),
    }
}

#[cfg(all(test, feature = "memcached", feature = "sqlite"))]
mod tests {
    use std::sync::Arc;

    use crate::clock::{Clock, SystemClock};
    use crate::store::schemes;

    /// The table is written by hand, and says what the code does.
    #[test]
    fn the_documented_promises_are_those_of_the_code() {
        let page = include_str!("../../../docs/guarantees.md");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let promises = ["memcached://h", "sqlite:/x", "memory://x"]
            .map(|url| schemes::connect(url, &clock).unwrap().guarantees().in_words());
        for row in 0..promises[0].len() {
            let cells = promises.clone().map(|promises| promises[row].1.clone());
            let line = format!("| {} | {} |", promises[0][row].0, cells.join(" | "));
            assert!(
                page.lines().any(|known| known == line),
                "docs/guarantees.md has no row {line}"
            );
        }
    }
}
