//! Recorded seeds: those that once found something. `simulation/regressions` has one a line, with
//! what it found: words, or `mutation` and the name of the mutation.

use std::fs;
use std::io;

use memlock_core::mutation::Mutation;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/regressions");

/// A seed and what it found.
#[derive(PartialEq)]
pub(crate) struct Regression {
    pub(crate) seed: u64,
    pub(crate) reason: String,
}

impl Regression {
    /// A seed that finds a mutation.
    pub(crate) fn of(mutation: Mutation, seed: u64) -> Self {
        Self { seed, reason: reason_of(mutation) }
    }

    /// Whether the seed found this mutation.
    pub(crate) fn found(&self, mutation: Mutation) -> bool {
        self.reason == reason_of(mutation)
    }

    /// Whether the seed found an error that nobody had put in.
    pub(crate) fn is_of_an_error(&self) -> bool {
        !self.reason.starts_with("mutation ")
    }
}

fn reason_of(mutation: Mutation) -> String {
    format!("mutation {mutation:?}")
}

/// The recorded seeds.
pub(crate) fn read() -> io::Result<Vec<Regression>> {
    let text = fs::read_to_string(FILE)?;
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| parse(line).ok_or_else(|| io::Error::other(format!("{FILE}: {line}"))))
        .collect()
}

fn parse(line: &str) -> Option<Regression> {
    let (seed, reason) = line.split_once(' ')?;
    Some(Regression { seed: seed.parse().ok()?, reason: reason.trim().to_owned() })
}

/// Records these seeds, and none else. The file's comments remain.
pub(crate) fn write(regressions: &[Regression]) -> io::Result<()> {
    let mut text: String = fs::read_to_string(FILE)?
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect();
    for Regression { seed, reason } in regressions {
        text.push_str(&format!("{seed} {reason}\n"));
    }
    fs::write(FILE, text)
}
