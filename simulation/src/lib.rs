//! Runs memlock over a simulated server, network, clock and random generator. One seed is one run,
//! which can be replayed exactly. Without `--cfg memlock_sim` this crate is empty, because memlock
//! has no hooks for it then.
#![cfg(memlock_sim)]
#![allow(clippy::print_stdout, reason = "its reports are for a person")]

mod actors;
mod adapters;
mod oracle;
mod regressions;
pub mod report;
mod rng;
mod run;
mod scenario;
mod server;

mod threads;
mod time;
mod world;
