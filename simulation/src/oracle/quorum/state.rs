//! What the oracle has seen of a quorum.

use std::collections::BTreeMap;

use crate::scenario::Scenario;
use crate::time::Nanos;

/// A grant, as its holder was told.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) at: Nanos,
    pub(super) token: String,
}

#[derive(Debug)]
pub(crate) struct Quorum {
    pub(super) guard: Nanos,
    /// In which of a server's lives it first had the vote of a token.
    pub(super) votes: BTreeMap<(usize, String), u64>,
    /// When a server last stored a vote of that token where there was none.
    pub(super) added: BTreeMap<String, Nanos>,
    /// The grants of each mutex.
    pub(super) grants: BTreeMap<String, Vec<Granted>>,
    /// When each mutex was last granted or released, or until when it is held.
    pub(super) progress: BTreeMap<String, Nanos>,
}

impl Quorum {
    pub(crate) fn of(scenario: &Scenario) -> Option<Quorum> {
        scenario.has_quorum().then(|| Quorum {
            guard: scenario.guard.unwrap_or(0),
            votes: BTreeMap::new(),
            added: BTreeMap::new(),
            grants: BTreeMap::new(),
            progress: BTreeMap::new(),
        })
    }

    /// Somebody was granted the mutex, and relies on it.
    pub(crate) fn granted(&mut self, key: &str, token: &str, at: Nanos) {
        let granted = Granted { at, token: token.to_owned() };
        self.grants.entry(key.to_owned()).or_default().push(granted);
    }

    /// Who else was granted the mutex between these times.
    pub(super) fn granted_to_other(
        &self,
        key: &str,
        token: &str,
        since: Nanos,
        until: Nanos,
    ) -> Option<&str> {
        let mut grants = self.grants.get(key)?.iter();
        let other = grants.find(|it| it.token != token && since < it.at && it.at < until)?;
        Some(&other.token)
    }
}
