//! ```text
//! simulation seeds 20000 [FIRST]     so many seeds, on all processors
//! simulation seed 4711 [FLAW]        one seed, with its story, and maybe with that mutation put in
//! simulation teeth 20000 [FLAW]      every mutation that is put in on purpose, or that one, must be found within so many seeds
//! ```

#![allow(clippy::print_stderr, reason = "a program that speaks to a person")]

#[cfg(not(memlock_sim))]
fn main() {
    eprintln!("This was built without its hooks: use `make sim`.");
    std::process::exit(2);
}

#[cfg(memlock_sim)]
fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| arguments.get(place).and_then(|text| text.parse::<u64>().ok());
    let name = arguments.get(2).map(String::as_str);
    let fine = match (arguments.first().map(String::as_str), number(1)) {
        (Some("seeds"), Some(count)) => {
            memlock_simulation::report::seeds(number(2).unwrap_or(1), count)
        }
        (Some("seed"), Some(seed)) => memlock_simulation::report::seed(seed, name),
        (Some("teeth"), Some(count)) => memlock_simulation::report::mutations(count, name),
        _ => {
            eprintln!(
                "usage: simulation seeds COUNT [FIRST] | seed SEED [FLAW] | teeth COUNT [FLAW]"
            );
            return std::process::ExitCode::from(2);
        }
    };
    if fine { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
