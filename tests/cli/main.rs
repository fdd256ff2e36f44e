//! The command `memlock`: the real binary on a real memcached, in a terminal of its own where that
//! matters.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod cron;
mod doctor;
mod ending;
mod hosts;
mod inspect;
mod jobs;
mod large;
mod list;
mod lost;
mod mysql;
mod names;
mod pty;
mod run;
mod sentences;
mod slow_servers;
mod sqlite;
mod terminal;
mod tool;
