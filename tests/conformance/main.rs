//! What every store promises in every language: each behaviour here runs on each store through
//! each language.
//!
//! The languages are in `tests/doors`, the stores in `tests/stores`. A test is named for its suite,
//! its language, its store and its promise, such as
//! `mutex::python_on_memcached::fences_rise_from_holder_to_holder`.
#![allow(clippy::unwrap_used, clippy::panic)]

/// Enrols a suite's behaviours for every language and store.
///
/// Those after `not in Python:` need what Python does not have, and those after `in Rust:` are of
/// the core alone.
macro_rules! behaviours {
    (in Rust: $($behaviour:ident)*) => {
        for_each_store! { cells { { $($behaviour)* } {} {} } }
    };
    ($($behaviour:ident)* $(; not in Python: $($native:ident)*)?) => {
        for_each_store! { cells {
            { $($behaviour)* $($($native)*)? }
            { $($behaviour)* $($($native)*)? }
            { $($behaviour)* }
        } }
    };
}

macro_rules! cells {
    (
        { $of_rust:tt $of_c:tt $of_python:tt }
        $(($store:path: $rust:tt $c:tt $cpp:tt $python:tt))*
    ) => {
        $(
            cell! { $rust Rust $store, $of_rust }
            cell! { $c C $store, $of_c }
            cell! { $cpp Cpp $store, $of_c }
            cell! { $python Python $store, $of_python }
        )*
    };
}

macro_rules! cell {
    (_ $($not_this_one:tt)*) => {};
    ($name:ident $language:ident $store:path, {}) => {};
    ($name:ident $language:ident $store:path, { $($behaviour:ident)* }) => {
        mod $name {
            use memlock_tests::doors::Language;

            use crate::bench::Bench;
            #[allow(clippy::wildcard_imports)]
            use crate::stores::*;

            $(#[test]
            fn $behaviour() {
                super::$behaviour(&Bench::new(Language::$language, &$store));
            })*
        }
    };
}

mod bench;
mod more_threads;
#[macro_use]
#[path = "../stores/mod.rs"]
#[allow(dead_code, reason = "the fault suite uses the rest")]
mod stores;

mod counter;
mod list;
mod mismatch;
mod model;
mod mutex;
mod renewal;
mod self_waits;
mod semaphore;
mod store;
mod waiting;
