//! The command `memlock`: the real binary on real servers, in a terminal of its own where that
//! matters.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod clocks;
mod cron;
mod doctor;
mod ending;
mod guard;
mod hosts;
mod inspect;
mod jobs;
mod large;
mod late_servers;
mod list;
mod lost;
mod mysql;
mod names;
mod postgresql;
mod pty;
mod redis;
mod run;
mod secrets;
mod sentences;
mod slow_servers;
mod sqlite;
#[path = "../stores/mod.rs"]
#[allow(dead_code, reason = "other suites use the rest")]
mod stores;
mod terminal;
mod tool;
