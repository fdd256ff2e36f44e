//! The table.

use crate::check::{Tally, Verdict};

/// How many findings are shown of one round.
const SHOWN: usize = 4;
/// How long a finding may be.
const WIDTH: usize = 900;

pub(crate) fn head() -> String {
    format!(
        "{:<26}{:>7}{:>8}{:>8}{:>8}{:>9}{:>6}{:>8}{:>8}{:>9}{:>8}{:>11}{:>6}{:>8}",
        "fault",
        "calls",
        "granted",
        "permits",
        "refused",
        "inserted",
        "lost",
        "unreach",
        "unknown",
        "protocol",
        "losses",
        "violations",
        "hung",
        "latest"
    )
}

pub(crate) fn row(name: &str, tally: &Tally, verdict: &Verdict) -> String {
    format!(
        "{name:<26}{:>7}{:>8}{:>8}{:>8}{:>9}{:>6}{:>8}{:>8}{:>9}{:>8}{:>11}{:>6}{:>6.1} s",
        tally.calls,
        tally.granted,
        tally.permitted,
        tally.refused,
        tally.inserted,
        tally.lost,
        tally.unreachable,
        tally.unknown,
        tally.protocol,
        verdict.losses.len(),
        verdict.violations.len(),
        verdict.hung.len(),
        verdict.latest.as_secs_f64()
    )
}

/// The first few, indented.
pub(crate) fn findings(all: &[String]) -> String {
    let mut text = String::new();
    for finding in all.iter().take(SHOWN) {
        let short: String = finding.chars().take(WIDTH).collect();
        text += &format!("    {short}\n");
    }
    if all.len() > SHOWN {
        text += &format!("    and {} more\n", all.len() - SHOWN);
    }
    text
}

/// What the columns mean, for readers of the table.
pub(crate) const LEGEND: &str = "\
granted: locks; permits: how often some were. lost: answers LOST, mostly of clients that overslept their lease on purpose. losses: locks and permits that went with the memory of a
server that was flushed, restarted, full or stopped, as is documented. unreach, unknown, protocol: failures by their kind.
hung: calls that took 4 s more than their limit. latest: by how much a call exceeded its limit at most.";
