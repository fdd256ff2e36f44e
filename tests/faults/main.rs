//! `make faults` and `make soak`: real clients in three languages, real servers, real faults.
//!
//! `faults` runs every round once, `faults WORD…` those whose names contain one of the words,
//! `faults soak MINUTES` all faults at random. MEMLOCK_FAULTS_SECONDS is the duration of a round.
//! FAULTS_C_CLIENT and PYTHON name the programs of the clients; see the Makefile.
//!
//! - [`injection`]: the faults; [`cuts`] and [`memlock_tests::cable`] are two that need more.
//! - [`processes`], [`world`]: the clients, and what they run in. client.rs, client.c and client.py
//!   are the clients.
//! - [`memlock_tests::history`], [`memlock_tests::check`]: what they wrote down, and what it must
//!   show; [`leftovers`]: what they leave behind.
//! - [`round`], [`soak`], [`growth`], [`report`]: the two ways to run all that, and the report.

// A program that reports by a table.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};

use injection::Injection;
use processes::Programs;

mod cuts;
mod growth;
mod injection;
mod leftovers;
mod processes;
mod report;
mod round;
mod soak;
mod world;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How long a round lasts unless MEMLOCK_FAULTS_SECONDS says otherwise.
const USUAL_TIME: Duration = Duration::from_secs(6);

fn main() -> Result<ExitCode, Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let programs = programs()?;
    // A disk that makes a writer wait would look like a slow lock.
    let memory = Some(PathBuf::from("/dev/shm")).filter(|folder| folder.is_dir());
    let folder = memory.unwrap_or_else(std::env::temp_dir);
    let folder = folder.join(format!("memlock-faults-{}", std::process::id()));
    let fine = match args.as_slice() {
        [word, minutes] if word == "soak" => soak::run(
            &programs,
            &folder,
            Duration::try_from_secs_f64(minutes.parse::<f64>()? * 60.0)?,
        )?,
        words => faults(&programs, &folder, words)?,
    };
    if fine {
        // It is gone already if no round was run.
        let _ = std::fs::remove_dir(&folder);
    }
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the rounds; true if all was as it should be.
fn faults(programs: &Programs, folder: &Path, words: &[String]) -> Result<bool, Failure> {
    let time = match std::env::var("MEMLOCK_FAULTS_SECONDS") {
        Ok(text) => Duration::try_from_secs_f64(text.parse()?)?,
        Err(_) => USUAL_TIME,
    };
    let mut wrong = Vec::new();
    let mut not_run = Vec::new();
    println!("{}", report::head());
    for (number, round) in round::all().into_iter().enumerate() {
        if !words.is_empty() && !words.iter().any(|word| round.name.contains(word.as_str())) {
            continue;
        }
        let folder = folder.join(number.to_string());
        let setting = match round.setting(&folder) {
            Ok(setting) => setting,
            // Namespaces and mounts are for root, and not everywhere.
            Err(why) => {
                println!("{:<26}NOT RUN: {why}", round.name);
                not_run.push(round.name);
                continue;
            }
        };
        let outcome = round.run(programs, &folder, time, setting)?;
        let verdict = &outcome.verdict;
        println!("{}", report::row(round.name, &outcome.tally, verdict));
        if let Injection::Cuts(cutter) = &round.fault {
            println!("    {}", cutter.summary());
        }
        if matches!(round.fault, Injection::None) {
            println!("    {}", verdict.turns.summary());
        }
        if !round.is_fine(verdict) {
            wrong.push(round.name);
            print!("{}{}", report::findings(&verdict.violations), report::findings(&verdict.hung));
            if let Some(kept) = outcome.kept {
                println!("    the histories are in {}", kept.display());
            }
        }
    }
    println!("{}", report::LEGEND);
    match (wrong.is_empty(), not_run.is_empty()) {
        (true, true) => println!("All as it should be."),
        (true, false) => {
            println!("All that was run is as it should be. NOT RUN: {}.", not_run.join(", "))
        }
        (false, _) => println!("NOT as it should be: {}.", wrong.join(", ")),
    }
    Ok(wrong.is_empty())
}

fn programs() -> Result<Programs, Failure> {
    let told = |name: &str| {
        std::env::var_os(name).ok_or(format!("{name} is not set: run this by `make faults`"))
    };
    Ok(Programs {
        c: told("FAULTS_C_CLIENT")?.into(),
        python: told("PYTHON")?.into(),
        script: Path::new(env!("CARGO_MANIFEST_DIR")).join("faults/client.py"),
        rust: std::env::current_exe()?.with_file_name("fault-client"),
    })
}

fn now() -> Duration {
    SystemClock.now().since_boot()
}
