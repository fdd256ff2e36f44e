//! The difference between a server's clock and the clock of this host.

use std::time::Duration;

use super::text::{Stats, Text};
use crate::error::Result;
use crate::store::admin::Finding;
use crate::store::admin::skew::{Skew, timed};

/// By how many seconds clocks may differ. The server's clock ticks in seconds, and may be almost two
/// seconds late.
const LIMIT: f64 = 5.0;

/// `stats`, and what they tell of the server's clock.
pub(super) fn stats_and_finding(text: &mut Text) -> Result<(Stats, Finding)> {
    let (stats, ours) = timed(|| text.stats("stats"))?;
    let seconds = stats.get("time").and_then(|time| time.parse().ok()).unwrap_or(0);
    // The server's clock shows the last whole second that has begun.
    let theirs = Duration::new(seconds, 500_000_000);
    let meaning = "leases do not mind; but fences fall if it is set back before a restart";
    let finding = Skew::new(theirs, ours, LIMIT).finding(meaning);
    Ok((stats, finding))
}
