//! The table.

use memlock_core::Answer;
use memlock_tests::check::Verdict;
use memlock_tests::history::{Call, Op};
use memlock_tests::safety::MARKER;

/// How many findings are shown of one round.
const SHOWN: usize = 4;
/// How long a finding may be.
const WIDTH: usize = 900;

type Counts = fn(&Op, Answer) -> bool;

/// What the calls of a round were answered: the columns of the table, and what each counts.
const ANSWERED: [(&str, Counts); 9] = [
    ("calls", |_, _| true),
    ("granted", |op, said| matches!((op, said), (Op::Lock { .. }, Answer::Ok))),
    ("permits", |op, said| matches!((op, said), (Op::Acquire { .. }, Answer::Ok))),
    ("refused", |_, said| matches!(said, Answer::Busy | Answer::TimedOut)),
    ("inserted", |op, said| {
        matches!((op, said), (Op::Insert { .. }, Answer::Ok | Answer::Duplicate))
    }),
    ("lost", |_, said| said == Answer::Lost),
    ("unreach", |_, said| said == Answer::Unreachable),
    ("unknown", |_, said| said == Answer::Unknown),
    ("protocol", |_, said| said == Answer::Protocol),
];
/// The columns of what was found.
const FOUND: [&str; 4] = ["losses", "violations", "hung", "latest"];

/// How often what was answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally([usize; ANSWERED.len()]);

impl Tally {
    pub(crate) fn add(&mut self, calls: &[Call]) {
        for call in calls {
            let Some(said) = call.answer().filter(|_| call.op != Op::Inside) else { continue };
            for (count, (_, counts)) in self.0.iter_mut().zip(ANSWERED) {
                *count += usize::from(counts(&call.op, said));
            }
        }
    }

    /// In words.
    pub(crate) fn summary(&self) -> String {
        let counts =
            ANSWERED.iter().zip(self.0).map(|((what, _), count)| format!("{count} {what}"));
        counts.collect::<Vec<_>>().join(", ")
    }
}

fn line(name: &str, cells: impl Iterator<Item = String>) -> String {
    let columns = ANSWERED.iter().map(|(column, _)| *column).chain(FOUND);
    let cells = columns.zip(cells).map(|(column, cell)| format!("{cell:>0$}", column.len() + 2));
    format!("{name:<26}{}", cells.collect::<String>())
}

pub(crate) fn head() -> String {
    line("fault", ANSWERED.iter().map(|(column, _)| *column).chain(FOUND).map(str::to_owned))
}

pub(crate) fn row(name: &str, tally: &Tally, verdict: &Verdict) -> String {
    let found = [&verdict.losses, &verdict.violations, &verdict.hung].map(Vec::len);
    let latest = format!("{:.1} s", verdict.latest.as_secs_f64());
    line(name, tally.0.into_iter().chain(found).map(|count| count.to_string()).chain([latest]))
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
