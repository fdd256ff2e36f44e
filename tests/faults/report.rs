//! The table.

use memlock_core::Answer;
use memlock_tests::check::Verdict;
use memlock_tests::history::{Call, Op};
use memlock_tests::safety::MARKER;

/// How many findings are shown of one round.
const SHOWN: usize = 4;
/// How long a finding may be.
const WIDTH: usize = 900;

/// How often what was answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) calls: usize,
    pub(crate) granted: usize,
    /// How often permits were.
    pub(crate) permitted: usize,
    pub(crate) refused: usize,
    pub(crate) inserted: usize,
    pub(crate) lost: usize,
    pub(crate) unreachable: usize,
    pub(crate) unknown: usize,
    pub(crate) protocol: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, calls: &[Call]) {
        for call in calls {
            let Some(said) = call.answer().filter(|_| call.op != Op::Inside) else { continue };
            self.calls += 1;
            let count = match (&call.op, said) {
                (Op::Lock { .. }, Answer::Ok) => &mut self.granted,
                (Op::Acquire { .. }, Answer::Ok) => &mut self.permitted,
                (_, Answer::Busy | Answer::TimedOut) => &mut self.refused,
                (Op::Insert { .. }, Answer::Ok | Answer::Duplicate) => &mut self.inserted,
                (_, Answer::Lost) => &mut self.lost,
                (_, Answer::Unreachable) => &mut self.unreachable,
                (_, Answer::Unknown) => &mut self.unknown,
                (_, Answer::Protocol) => &mut self.protocol,
                _ => continue,
            };
            *count += 1;
        }
    }

    pub(crate) fn errors(&self) -> usize {
        self.unreachable + self.unknown + self.protocol
    }
}

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

/// The first few, indented: breaches of safety before all others.
pub(crate) fn findings(all: &[String]) -> String {
    let mut text = String::new();
    let mut sorted: Vec<&String> = all.iter().collect();
    sorted.sort_by_key(|finding| !finding.starts_with(MARKER));
    for finding in sorted.into_iter().take(SHOWN) {
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
