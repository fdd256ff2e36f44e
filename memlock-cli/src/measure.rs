//! What the measuring commands share.

use std::time::Duration;

use memlock_core::Client;
use memlock_core::store::Route;

use crate::connect::is_quorum;

/// A name for a lock on this one of the client's servers, that no other program uses. Each lock of a
/// quorum is on all of them.
pub(super) fn name_on(client: &Client, place: usize, what: &str) -> String {
    let host = std::process::id();
    let now = crate::duration::unix_now().as_nanos();
    let names = (0_u32..).map(|number| format!("memlock-{what}-{host}-{now}-{number}"));
    let is_there = |name: &String| {
        is_quorum(client)
            || client.server_of(Route::of(&client.keys().lock(name.as_bytes()))) == place
    };
    names.take(10_000).find(is_there).unwrap_or_default()
}

/// The time below which this share of them is.
pub(super) fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_what_there_is() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(quantile(&times, 0.99), Duration::from_millis(99));
        assert_eq!(quantile(&[], 0.5), Duration::ZERO);
    }
}
