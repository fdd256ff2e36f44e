//! The core of memlock, which all languages share, on real memcached servers and on stores that fail
//! on purpose: what `tests/conformance/` and `tests/store_faults/`, which run on every store, cannot
//! show.
//!
//! One program, so that it is linked once. A test that counts what all of a process has, or that
//! decides what all of a process does, has a program of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod bad_servers;
mod bench;
mod churn;
mod counter;
mod evictions;
mod fences;
mod guard;
mod leases;
mod lost_replies;
mod names;
mod outages;
mod places;
mod processes;
mod renewal;
mod renewal_many;
mod semaphore;
mod silence;
mod slow_servers;
mod waiting;
