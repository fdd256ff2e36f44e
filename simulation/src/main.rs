//! ```text
//! simulation seeds 20000 [FIRST]         that many seeds, on all processors
//! simulation seed 4711 [MUTATION]        one seed, with its trace, optionally with that mutation
//! simulation mutations 20000 [MUTATION]  each mutation, or that one, must be found within that many seeds
//! ```
//! With the word `quorum` behind them, the first and the last run only seeds with a quorum of servers,
//! with the word `one-server` only the others.

#![allow(clippy::print_stderr, reason = "a program that speaks to a person")]

#[cfg(not(memlock_sim))]
fn main() {
    eprintln!("The simulation was built without `--cfg memlock_sim`: use `make sim`.");
    std::process::exit(2);
}

#[cfg(memlock_sim)]
fn main() -> std::process::ExitCode {
    use memlock_simulation::report::{self, Which};

    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let which = match arguments.last().map(String::as_str) {
        Some("quorum") => Which::Quorum,
        Some("one-server") => Which::OneServer,
        _ => Which::All,
    };
    if which != Which::All {
        arguments.pop();
    }
    let number = |place: usize| arguments.get(place).and_then(|text| text.parse::<u64>().ok());
    let name = arguments.get(2).map(String::as_str);
    let fine = match (arguments.first().map(String::as_str), number(1)) {
        (Some("seeds"), Some(count)) => report::seeds(number(2).unwrap_or(1), count, which),
        (Some("seed"), Some(seed)) => report::seed(seed, name),
        (Some("mutations"), Some(count)) => report::mutations(count, name, which),
        _ => {
            eprintln!(
                "usage: simulation seeds COUNT [FIRST] [quorum|one-server] | seed SEED [MUTATION] | mutations COUNT [MUTATION] [quorum|one-server]"
            );
            return std::process::ExitCode::from(2);
        }
    };
    if fine { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
