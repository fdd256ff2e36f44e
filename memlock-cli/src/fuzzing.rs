//! The private parts that the targets in `fuzz/` need, which run by `cargo fuzz` and in unit tests.
//! In any other build this file is not there.
#![allow(missing_docs, unreachable_pub, clippy::expect_used)]

use std::ffi::OsString;
use std::time::Duration;

use clap::Parser;

use crate::args::{Args, Command};
use crate::connect::USUAL_LEASE;
use crate::exit::CliError;
use crate::{duration, list};

fn sentence(error: CliError) -> String {
    error.message
}

pub fn duration(text: &str) -> Option<Duration> {
    duration::parse(text).ok()
}

pub fn brief(duration: Duration) -> String {
    duration::brief(duration)
}

pub fn date(unix_seconds: u64) -> String {
    duration::date(unix_seconds)
}

pub fn shown(name: &[u8]) -> String {
    crate::text::shown(name)
}

/// The keys that `memlock list` reads from its standard input, and how many bytes each took.
pub fn keys(input: &[u8], end: u8) -> Result<Vec<(Vec<u8>, u64)>, String> {
    let mut input = input;
    let mut keys = Vec::new();
    while let Some(key) = list::input::key(&mut input, end).map_err(sentence)? {
        keys.push(key);
    }
    Ok(keys)
}

/// Whether such a command line is understood; and of `run`, the time until which its command would
/// learn that it may rely on the lock.
pub fn command_line(words: &[OsString]) -> Option<u64> {
    match Args::try_parse_from(words).ok()?.command {
        Command::Run(run) => {
            Some(duration::after(run.max_hold.or(run.lease).unwrap_or(USUAL_LEASE)))
        }
        _ => Some(0),
    }
}

#[cfg(test)]
#[path = "../../fuzz/src/corpus.rs"]
mod corpus;
#[cfg(test)]
#[path = "../../fuzz/src/typed.rs"]
mod typed;

#[test]
fn no_input_breaks_what_is_typed() {
    corpus::replay("typed", typed::run);
}
