//! ```text
//! simulation seeds 20000 [FIRST]                 the recorded seeds, and that many, on all processors
//! simulation seed 4711 [MUTATION]                one seed, with its trace, optionally with that mutation
//! simulation mutations 20000 [FIRST] [MUTATION]  each mutation, or that one, must be found within that many
//!                                                seeds; without FIRST, the recorded seed is the first
//! simulation record 20000                        the same, and the seeds are recorded in `regressions`
//! ```

#![allow(clippy::print_stderr, reason = "a program that speaks to a person")]

#[cfg(not(memlock_sim))]
fn main() {
    eprintln!("The simulation was built without `--cfg memlock_sim`: use `make sim`.");
    std::process::exit(2);
}

#[cfg(memlock_sim)]
fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| arguments.get(place).and_then(|text| text.parse::<u64>().ok());
    let name = arguments.iter().skip(2).find(|text| text.parse::<u64>().is_err());
    let name = name.map(String::as_str);
    let fine = match (arguments.first().map(String::as_str), number(1)) {
        (Some("seeds"), Some(count)) => {
            memlock_simulation::report::seeds(number(2).unwrap_or(1), count)
        }
        (Some("seed"), Some(seed)) => memlock_simulation::report::seed(seed, name),
        (Some("mutations"), Some(count)) => {
            memlock_simulation::report::mutations(count, number(2), name)
        }
        (Some("record"), Some(count)) => memlock_simulation::report::record(count),
        _ => {
            eprintln!(
                "usage: simulation seeds COUNT [FIRST] | seed SEED [MUTATION] \
                 | mutations COUNT [FIRST] [MUTATION] | record COUNT"
            );
            return std::process::ExitCode::from(2);
        }
    };
    if fine { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
