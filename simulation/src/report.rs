//! Reports on the terminal.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use memlock_core::mutation::Mutation;

use crate::oracle::Tally;
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

/// Runs seeds from `first` on, on all processors. With a mutation, stops at the first failure.
fn run_all(first: u64, count: u64, mutation: Option<Mutation>) -> Sum {
    let next = AtomicU64::new(first);
    let enough = AtomicBool::new(false);
    let sum = Mutex::new(Sum::default());
    let work = || {
        while !enough.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return;
            }
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
pub fn seeds(first: u64, count: u64) -> bool {
    println!("{count} seeds from {first} on: make sim FIRST={first} SEEDS={count}");
    let began = Instant::now();
    let sum = run_all(first, count, None);
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

/// Tests one mutation after another, or only the one of that name. False if one was not found.
pub fn mutations(count: u64, name: Option<&str>) -> bool {
    let is_wanted = |mutation: &Mutation| name.is_none_or(|name| format!("{mutation:?}") == name);
    let mut all = Mutation::ALL.iter().any(is_wanted);
    println!("| mutation | found after | what was seen |\n| --- | ---: | --- |");
    for mutation in Mutation::ALL.into_iter().filter(is_wanted) {
        let began = Instant::now();
        let sum = run_all(1, count, Some(mutation));
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
