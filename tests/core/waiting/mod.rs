//! Waiting, on a real memcached.
//!
//! Where a test is to show that a waiter is *woken*, the waiter's clock stands still: then no
//! inspection by the clock can help it, and a lost wake-up is a test that hangs and is ended.

pub(crate) mod bench;
mod early_wake;
mod fair_reentry;
mod faults;
mod firewalls;
mod local_queue;
mod races;
mod reservations;
mod simulation_findings;
mod unreachable;
