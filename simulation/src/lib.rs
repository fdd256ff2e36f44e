//! Runs memlock itself over a simulated server, network, clock and chance: one seed, one run,
//! replayed exactly. Without `--cfg memlock_sim` there is nothing here, since memlock has no hooks
//! for it then.
#![cfg(memlock_sim)]
#![allow(clippy::print_stdout, reason = "its reports are for a person")]

mod actors;
mod adapters;
mod chance;
mod held;
mod holds;
mod kept;
mod lists;
mod network;
mod oracle;
mod permits;
mod renewers;
mod renewing;
pub mod report;
mod run;
mod scenario;
mod semaphores;
mod server;

mod threads;
mod turns;
mod waits;
mod world;
