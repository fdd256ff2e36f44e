//! Which servers support a holder.

use crate::oracle::hold::HoldInterval;
use crate::oracle::state::Oracle;
use crate::oracle::token::token_of;
use crate::site::Site;
use crate::time::Nanos;

/// How many servers have that token as the owner of the mutex, by one and the same attempt.
pub(in crate::oracle) fn votes(key: &str, token: &str, sites: &[Site]) -> usize {
    let values: Vec<&[u8]> = sites
        .iter()
        .filter_map(|site| site.server.value(key))
        .filter(|value| token_of(Some(value)).as_deref() == Some(token))
        .collect();
    let count = |value: &&[u8]| values.iter().filter(|other| *other == value).count();
    values.iter().map(count).max().unwrap_or(0)
}

/// Whether a majority has it; with one server, whether that has it.
pub(in crate::oracle) fn has_majority(key: &str, token: &str, sites: &[Site]) -> bool {
    votes(key, token, sites) > sites.len() / 2
}

/// The token that a majority has, if there is one.
pub(in crate::oracle) fn owner_of(key: &str, sites: &[Site]) -> Option<String> {
    let owners = sites.iter().filter_map(|site| token_of(site.server.value(key)));
    owners.into_iter().find(|token| has_majority(key, token, sites))
}

/// Until when a majority has the token, by clocks that are never late, or has forgotten it and
/// grants nothing new.
pub(in crate::oracle) fn end_of_majority(
    key: &str,
    token: &str,
    guard: Nanos,
    sites: &[Site],
) -> Option<Nanos> {
    let end = |site: &Site| match token_of(site.server.value(key)) {
        Some(owner) if owner == token => site.server.ends(key),
        Some(_) => None,
        None => site.server.started.map(|started| started + guard),
    };
    let mut ends: Vec<Nanos> = sites.iter().filter_map(end).collect();
    ends.sort_unstable();
    let surplus = ends.len().checked_sub(sites.len() / 2 + 1)?;
    ends.get(surplus).copied()
}

impl Oracle {
    /// Whether a majority has what the holder relies on, or grants nothing new until its lease has
    /// ended.
    pub(in crate::oracle) fn is_supported(
        &self,
        hold: &HoldInterval,
        now: Nanos,
        sites: &[Site],
    ) -> bool {
        let guard = self.guard.unwrap_or(0);
        let supports = |site: &&Site| {
            // Hosts' clocks may be slower than the server's.
            let abstains =
                site.server.started.is_some_and(|started| now < started + guard + guard / 500);
            // What else it has then was put back, and is nobody's majority.
            let owner = token_of(site.server.value(&hold.key));
            owner.as_deref() == Some(&hold.token) || abstains
        };
        sites.iter().filter(supports).count() > sites.len() / 2
    }
}
