//! What the tests of every front door share: real servers, faults on the way to them, and servers
//! that lie.
//!
//! - [`doors`]: memlock in each language, behind one trait.
//! - [`server`]: a real memcached of one's own, to start, kill, restart and freeze.
//! - [`launch`]: ports and processes of servers, which end with the test.
//! - [`process`]: a server process, to kill, restart and freeze.
//! - [`relay`]: loses what passes between a client and a server of any protocol.
//! - [`proxy`]: stands before a server and loses, delays, cuts or spoils what passes.
//! - [`fake`]: a scripted server for the answers that no real server gives.
//! - [`quoting`]: servers that quote the login in an error.
//! - [`cost`]: the usual cost of a step.
//! - [`safety`]: the marker of failures that are a breach of safety.
//! - [`intercepted`]: a store whose batches pass through a function of the test.
//! - [`fork`]: children that a test forks.
//! - [`frozen`]: a clock that stands still.
//! - [`sweeps`]: a store whose connection sweeps when a test wants it to;
//! - [`stopwatch`]: measures upper bounds on elapsed time, also on a busy machine.
//! - [`history`]: what the clients of a test write down; [`check`]: what it must show.
//! - [`certificate`]: for servers with TLS.
//! - [`chance`]: random numbers from a seed.
//! - [`cable`]: a second host, as far as the network can tell.
//! - [`daemon`]: a program that closes all descriptors, and opens files of its own.
//! - [`disk`]: a small disk that can be filled.
//! - [`mysql`], [`postgresql`]: real MariaDB and PostgreSQL servers; [`stranger`]: another program at them;
//!   [`client`]: clients of them.
//! - [`names`]: host names that move.
//! - [`listener`]: what the process of a test logs.
//! - [`url`]: URLs with further parameters.
//! - [`one_by_one`]: a server that several tests use, one after the other.
//! - [`hosts`]: several hosts on one network, each with a firewall of its own.
//! - [`sigpipe`]: whether a write to a closed connection would end the program.
//! - [`wrong_clock`]: programs whose wall clock is wrong.
//! - [`witness`]: holding a lock by other means as well.
//!
//! Everything here panics with a sentence where a test could not go on, and is gone when its value
//! is dropped. A forked child that drops what its parent started changes nothing.

// This crate is part of the tests, though not under `cfg(test)`: it may fail as loudly as they may.
#![allow(clippy::panic, clippy::expect_used)]

pub mod cable;
pub mod certificate;
pub mod chance;
pub mod check;
pub mod client;
pub mod cost;
pub mod daemon;
pub mod disk;
#[path = "../doors/mod.rs"]
pub mod doors;
pub mod fake;
pub mod fork;
pub mod frozen;
pub mod guarded;
pub mod history;
pub mod hosts;
pub mod intercepted;
pub mod launch;
pub mod listener;
pub mod mysql;
pub mod names;
pub mod one_by_one;
pub mod postgresql;
pub mod process;
pub mod proxy;
pub mod quoting;
pub mod relay;
pub mod safety;
pub mod server;
pub mod sigpipe;
pub mod sleepers;
pub mod stopwatch;
pub mod stranger;
pub mod sweeps;
pub mod url;
pub mod witness;
pub mod wrong_clock;

pub mod memcached_text;
mod wire;
