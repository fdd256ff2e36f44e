//! Runs memlock itself over a simulated server, network, clock and chance: one seed, one run, replayed exactly.
//!
//! ```text
//! simulation seeds 20000 [FIRST]     so many seeds, on all processors
//! simulation seed 4711               one seed, with its story
//! simulation teeth 20000             every flaw that is put in on purpose must be found within so many seeds
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports to a person")]

#[cfg(not(memlock_sim))]
fn main() {
    eprintln!("This was built without its hooks: use `make sim`.");
    std::process::exit(2);
}

#[cfg(memlock_sim)]
mod actors;
#[cfg(memlock_sim)]
mod chance;
#[cfg(memlock_sim)]
mod judge;
#[cfg(memlock_sim)]
mod lists;
#[cfg(memlock_sim)]
mod network;
#[cfg(memlock_sim)]
mod report;
#[cfg(memlock_sim)]
mod run;
#[cfg(memlock_sim)]
mod scenario;
#[cfg(memlock_sim)]
mod seams;
#[cfg(memlock_sim)]
mod server;
#[cfg(memlock_sim)]
mod waits;
#[cfg(memlock_sim)]
mod world;

#[cfg(memlock_sim)]
fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| arguments.get(place).and_then(|text| text.parse::<u64>().ok());
    let fine = match (arguments.first().map(String::as_str), number(1)) {
        (Some("seeds"), Some(count)) => report::seeds(number(2).unwrap_or(1), count),
        (Some("seed"), Some(seed)) => report::seed(seed),
        (Some("teeth"), Some(count)) => report::teeth(count),
        _ => {
            eprintln!("usage: simulation seeds COUNT [FIRST] | seed SEED | teeth COUNT");
            return std::process::ExitCode::from(2);
        }
    };
    if fine { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
