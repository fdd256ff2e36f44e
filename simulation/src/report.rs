//! Reports on the terminal.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use memlock_core::mutation::Mutation;

use crate::oracle::Tally;
use crate::regressions::{self, Regression};
use crate::run::{Outcome, run};
use crate::time::MILLI;

/// The number of failing seeds after which a run of many seeds stops.
const MOST_TOLD: usize = 10;
/// One seed in so many is run twice, to check that both runs are the same.
const TWICE: u64 = 100;

#[derive(Default)]
struct Sum {
    runs: u64,
    events: u64,
    tally: Tally,
    failures: Vec<(u64, String)>,
}

/// Runs these seeds, on all processors. With a mutation, stops at the first failure.
fn run_all(seeds: impl Iterator<Item = u64> + Send, mutation: Option<Mutation>) -> Sum {
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

/// Runs the recorded seeds, and as many as `count` from `first` on. False if one failed.
pub fn seeds(first: u64, count: u64) -> bool {
    let Some(recorded) = recorded() else { return false };
    println!(
        "{} recorded seeds, and {count} from {first} on: make sim FIRST={first} SEEDS={count}",
        recorded.len()
    );
    let began = Instant::now();
    let recorded = recorded.into_iter().map(|regression| regression.seed);
    let sum = run_all(recorded.chain(first..first.saturating_add(count)), None);
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
        Mutation::ALL.into_iter().find(|mutation| format!("{mutation:?}") == name)
    });
    let outcome = run(seed, mutation, true);
    for line in &outcome.trace {
        println!("{line}");
    }
    let verdict = outcome.violation.as_deref().unwrap_or("no violation");
    println!("seed {seed}: {verdict} ({} events, digest {:016x})", outcome.events, outcome.digest);
    outcome.violation.is_none()
}

/// Tests one mutation after another, or only the one of that name: with the recorded seed and then
/// seeds from 1 on, or with seeds from `first` on. False if one was not found.
pub fn mutations(count: u64, first: Option<u64>, name: Option<&str>) -> bool {
    let Some(recorded) = recorded() else { return false };
    let recorded = if first.is_none() { recorded } else { Vec::new() };
    let is_wanted = |mutation: &Mutation| name.is_none_or(|name| format!("{mutation:?}") == name);
    let wanted: Vec<Mutation> = Mutation::ALL.into_iter().filter(is_wanted).collect();
    let found = search(&wanted, &recorded, first.unwrap_or(1), count);
    let stale = found.iter().filter(|regression| !recorded.contains(regression)).count();
    if first.is_none() && stale > 0 {
        println!(
            "{stale} were found by other seeds than recorded: `make sim-record` records these."
        );
    }
    !wanted.is_empty() && found.len() == wanted.len()
}

/// Tests all mutations like [`mutations`], and records the seeds that find them. False if one was
/// not found.
pub fn record(count: u64) -> bool {
    let Some(recorded) = recorded() else { return false };
    let found = search(&Mutation::ALL, &recorded, 1, count);
    let all = found.len() == Mutation::ALL.len();
    let errors = recorded.into_iter().filter(Regression::is_of_an_error);
    ok_or_print(regressions::write(&errors.chain(found).collect::<Vec<_>>())).is_some() && all
}

/// The recorded seeds, unless they cannot be read.
fn recorded() -> Option<Vec<Regression>> {
    ok_or_print(regressions::read())
}

/// The value of a result. An error is printed.
fn ok_or_print<T>(result: io::Result<T>) -> Option<T> {
    result.inspect_err(|error| println!("{error}")).ok()
}

/// The seeds that find these mutations: the recorded ones, or else one from `first` on.
fn search(
    mutations: &[Mutation],
    recorded: &[Regression],
    first: u64,
    count: u64,
) -> Vec<Regression> {
    println!("| mutation | found after | what was seen |\n| --- | ---: | --- |");
    let mut seeds = Vec::new();
    for &mutation in mutations {
        let began = Instant::now();
        let known = recorded.iter().filter(|regression| regression.found(mutation));
        let mut sum = run_all(known.map(|regression| regression.seed), Some(mutation));
        if sum.failures.is_empty() {
            sum = run_all(first..first.saturating_add(count), Some(mutation));
        }
        let seen = match sum.failures.first() {
            Some((seed, violation)) => {
                seeds.push(Regression::of(mutation, *seed));
                format!("seed {seed}: {violation}")
            }
            None => "NOT FOUND".to_owned(),
        };
        let millis = began.elapsed().as_nanos() as u64 / MILLI;
        println!("| {mutation:?} | {} runs, {:.1} s | {seen} |", sum.runs, millis as f64 / 1e3);
    }
    println!("{} of {} mutations found", seeds.len(), mutations.len());
    seeds
}
