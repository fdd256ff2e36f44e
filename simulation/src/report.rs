//! Reports on the terminal.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use memlock_core::mutation::Mutation;

use crate::oracle::Tally;
use crate::run::{Outcome, run};
use crate::scenario::is_quorum;
use crate::time::MILLI;

/// The number of failing seeds after which a run of many seeds stops.
const MOST_TOLD: usize = 10;
/// One seed in so many is run twice, to check that both runs are the same.
const TWICE: u64 = 100;

/// Which seeds are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All seeds.
    All,
    /// Those with a quorum of servers.
    Quorum,
    /// Those with one server.
    OneServer,
}

impl Which {
    fn has(self, seed: u64) -> bool {
        match self {
            Which::All => true,
            Which::Quorum => is_quorum(seed),
            Which::OneServer => !is_quorum(seed),
        }
    }

    /// The seeds in which a mutation can matter, of these.
    fn of(self, mutation: Mutation) -> Which {
        match self {
            Which::All if mutation.is_of_quorum() => Which::Quorum,
            Which::All => Which::OneServer,
            which => which,
        }
    }
}

#[derive(Default)]
struct Sum {
    runs: u64,
    events: u64,
    tally: Tally,
    failures: Vec<(u64, String)>,
}

/// Runs this many seeds from `first` on, on all processors. With a mutation, stops at the first
/// failure.
fn run_all(first: u64, count: u64, which: Which, mutation: Option<Mutation>) -> Sum {
    let seeds = (first..).filter(|seed| which.has(*seed)).take(count as usize);
    let seeds = Mutex::new(seeds);
    let next = || seeds.lock().unwrap_or_else(PoisonError::into_inner).next();
    let enough = AtomicBool::new(false);
    let sum = Mutex::new(Sum::default());
    let work = || {
        while !enough.load(Ordering::Relaxed) {
            let Some(seed) = next() else { return };
            let mut outcome = run(seed, mutation, false);
            if seed.is_multiple_of(TWICE) && run(seed, mutation, false).digest != outcome.digest {
                outcome.violation = Some("two runs of this seed are not the same".to_owned());
            }
            if let (Some(violation), None) = (&outcome.violation, mutation) {
                println!("seed {seed}: {violation}\n    replay it: make sim SEED={seed}");
            }
            let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
            sum.add(seed, outcome);
            if sum.failures.len() >= if mutation.is_some() { 1 } else { MOST_TOLD } {
                enough.store(true, Ordering::Relaxed);
            }
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(work);
        }
    });
    sum.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Sum {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        let Outcome { violation, events, tally, .. } = outcome;
        self.runs += 1;
        self.events += events;
        self.tally.grants += tally.grants;
        self.tally.permits += tally.permits;
        self.tally.refusals += tally.refusals;
        self.tally.errors += tally.errors;
        self.tally.lost += tally.lost;
        self.tally.inserts += tally.inserts;
        self.tally.renewed_holds += tally.renewed_holds;
        self.tally.renewals += tally.renewals;
        self.tally.longest_free = self.tally.longest_free.max(tally.longest_free);
        self.failures.extend(violation.map(|violation| (seed, violation)));
    }
}

/// Runs many seeds. False if one failed.
pub fn seeds(first: u64, count: u64, which: Which) -> bool {
    let only = if which == Which::Quorum { " ONLY=quorum" } else { "" };
    println!("{count} seeds from {first} on: make sim FIRST={first} SEEDS={count}{only}");
    let began = Instant::now();
    let sum = run_all(first, count, which, None);
    let Tally { grants, permits, refusals, errors, lost, inserts, renewed_holds, renewals, .. } =
        sum.tally;
    println!(
        "{} runs in {:.1} s, {:.0} a second: {} events, {grants} mutexes and {permits} times permits granted, {renewed_holds} of them renewed in \
         {renewals} renewals, {refusals} refusals, {errors} errors, {lost} found lost, {inserts} inserts; {} violations",
        sum.runs,
        began.elapsed().as_secs_f64(),
        sum.runs as f64 / began.elapsed().as_secs_f64(),
        sum.events,
        sum.failures.len()
    );
    sum.failures.is_empty()
}

/// Runs one seed and prints its trace, optionally with the mutation of that name.
pub fn seed(seed: u64, mutation: Option<&str>) -> bool {
    let mutation = mutation.and_then(|name| {
        Mutation::ALL.iter().copied().find(|mutation| format!("{mutation:?}") == name)
    });
    let outcome = run(seed, mutation, true);
    for line in &outcome.trace {
        println!("{line}");
    }
    let verdict = outcome.violation.as_deref().unwrap_or("no violation");
    println!("seed {seed}: {verdict} ({} events, digest {:016x})", outcome.events, outcome.digest);
    outcome.violation.is_none()
}

/// Tests one mutation after another, or only the one of that name. False if one was not found.
/// Unless `which` says otherwise, each is looked for where it can matter: with a quorum, or with one
/// server.
pub fn mutations(count: u64, name: Option<&str>, which: Which) -> bool {
    let is_wanted = |mutation: &Mutation| name.is_none_or(|name| format!("{mutation:?}") == name);
    let mut all = Mutation::ALL.iter().any(is_wanted);
    println!("| mutation | found after | what was seen |\n| --- | ---: | --- |");
    for mutation in Mutation::ALL.iter().copied().filter(is_wanted) {
        let began = Instant::now();
        let sum = run_all(1, count, which.of(mutation), Some(mutation));
        let found = sum.failures.first();
        all &= found.is_some();
        let seen = found.map_or("NOT FOUND".to_owned(), |(seed, violation)| {
            format!("seed {seed}: {violation}")
        });
        let millis = began.elapsed().as_nanos() as u64 / MILLI;
        println!("| {mutation:?} | {} runs, {:.1} s | {seen} |", sum.runs, millis as f64 / 1e3);
    }
    all
}
