//! The state of the oracle: all that it has seen.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::call::Call;
use super::hold::HoldInterval;
use super::limits::{Lateness, PATIENCE_WITHOUT_WAKE};
use super::lists::Lists;
use super::lock::Lock;
use super::renewal::Renewals;
use super::renewers::Renewers;
use super::requester::Requester;
use super::semaphores::Semaphores;
use super::tally::Tally;
use super::token::Token;
use crate::scenario::Scenario;
use crate::time::{MILLI, Nanos, SECOND};

#[derive(Debug)]
pub(crate) struct Oracle {
    /// The sender of the request that the server executes.
    pub(crate) changing: Option<Requester>,
    pub(crate) violation: Option<String>,
    pub(crate) lists: Lists,
    pub(crate) tally: Tally,
    pub(crate) locks: BTreeMap<String, Lock>,
    pub(crate) holds: BTreeMap<u64, HoldInterval>,
    pub(crate) semaphores: Semaphores,
    pub(crate) renewals: Renewals,
    pub(crate) renewers: Renewers,
    pub(crate) calls: BTreeMap<usize, Call>,
    /// By which attempt each token was written, and how it was removed.
    pub(crate) tokens: BTreeMap<String, Token>,
    pub(crate) last_hold: u64,
    /// How long a lock may be free while a call waits for it.
    pub(crate) patience: Nanos,
    /// How long after its limit a wait may end.
    pub(crate) lateness: Lateness,
    /// The exchanges of each process's threads: begin and end.
    pub(crate) asked: BTreeMap<usize, Vec<(Nanos, Nanos)>>,
    /// Which processes have one thread.
    pub(crate) single: Vec<bool>,
    pub(crate) fault_free: bool,
    /// The guard on which the clients agree.
    pub(crate) guard: Option<Nanos>,
    /// Until when clients may think that the server recovers.
    pub(crate) recovers_until: Nanos,
    /// All waiters are reachable by wake-up messages.
    pub(crate) all_reachable: bool,
}

impl Oracle {
    pub(crate) fn new(scenario: &Scenario) -> Oracle {
        let patience = match (scenario.fault_free, scenario.has_unreachable()) {
            (true, false) => 250 * MILLI,
            (true, true) if scenario.notify_off => 1300 * MILLI,
            // A waiter that gets some messages may have to find out that it missed another: see
            // `fairness`.
            (true, true) => PATIENCE_WITHOUT_WAKE,
            // One attempt takes five exchanges or more; where half of all requests are lost, each
            // takes two seconds.
            _ if scenario.lossy_permille > 300 => PATIENCE_WITHOUT_WAKE + 47 * SECOND,
            _ if scenario.lossy_permille > 0 => PATIENCE_WITHOUT_WAKE + 17 * SECOND,
            _ => PATIENCE_WITHOUT_WAKE,
        };
        Oracle {
            changing: None,
            violation: None,
            lists: Lists::default(),
            tally: Tally::default(),
            locks: BTreeMap::new(),
            holds: BTreeMap::new(),
            semaphores: Semaphores::new(&scenario.semaphores.permits),
            renewals: Renewals::default(),
            renewers: Renewers::default(),
            calls: BTreeMap::new(),
            tokens: BTreeMap::new(),
            last_hold: 0,
            patience,
            lateness: Lateness::of(scenario),
            asked: BTreeMap::new(),
            fault_free: scenario.fault_free,
            guard: scenario.guard,
            recovers_until: 0,
            single: scenario.processes.iter().map(|&(_, threads)| threads == 1).collect(),
            all_reachable: !scenario.has_unreachable(),
        }
    }

    pub(crate) fn report_violation(&mut self, what: impl Display) {
        self.violation.get_or_insert_with(|| what.to_string());
    }
}
