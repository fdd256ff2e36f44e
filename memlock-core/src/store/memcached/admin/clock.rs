//! The difference between a server's clock and the clock of this host.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::text::{Stats, Text};
use crate::clock::brief;
use crate::error::Result;
use crate::store::admin::Finding;
use crate::store::admin::Verdict::{Good, Note};

/// A larger difference means that a clock is wrong. The server's clock ticks in seconds, and may be
/// almost two seconds late.
const OFF: f64 = 5.0;

/// `stats`, and by how many seconds the server's clock is ahead of this host's.
pub(super) fn stats_and_skew(text: &mut Text) -> Result<(Stats, f64)> {
    let before = unix_now();
    let stats = text.stats("stats")?;
    let ours = (before + unix_now()).as_secs_f64() / 2.0;
    // The server's clock shows the last whole second that has begun.
    let theirs =
        stats.get("time").and_then(|time| time.parse::<u64>().ok()).unwrap_or(0) as f64 + 0.5;
    Ok((stats, theirs - ours))
}

pub(super) fn finding(skew: f64) -> Finding {
    if skew.abs() < OFF {
        return Finding::new("clock", Good, "agrees with ours");
    }
    let skewed = Duration::try_from_secs_f64(skew.abs()).unwrap_or(Duration::MAX);
    let (by, way) = (brief(skewed), if skew > 0.0 { "ahead of" } else { "behind" });
    Finding::new(
        "clock",
        Note,
        format!(
            "is {by} {way} ours: leases do not mind; but fences fall if it is set back before a \
             restart"
        ),
    )
}

fn unix_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
