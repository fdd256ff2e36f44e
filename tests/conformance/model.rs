//! A store against a model of one: random batches, each answered by both.
//!
//! `MEMLOCK_SEED` replays a run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::name::{Key, Keyspace};
use memlock_core::store::memory::Memory;
use memlock_core::store::{
    Epoch, Expiry, Op, Reply, Returns, Route, Store, Stored, Version, schemes,
};
use memlock_tests::chance::{Chance, seed_of_run};
use memlock_tests::{assert_safe, assert_safe_eq};

use crate::bench::Bench;

behaviours! {
    in Rust:
    random_batches_are_answered_as_by_a_model
}

const BATCHES: usize = 1500;
const HOUR: Expiry = Expiry::After(Duration::from_secs(3600));

/// An operation without versions, which differ from store to store.
#[derive(Clone, Debug)]
enum Step {
    Add(usize, Vec<u8>, Returns),
    Get(usize, bool),
    /// With this one of the versions that were seen of the key, the last one first.
    Set(usize, usize, Vec<u8>, Returns),
    Delete(usize, usize),
    Append(usize, Vec<u8>),
    Prepend(usize, Vec<u8>),
    Increment(usize, u64, bool),
}

/// The first keys hold text, the others numbers.
const TEXTS: usize = 3;
const KEYS: usize = 5;

fn step(chance: &mut Chance) -> Step {
    let (text, number) = (chance.index(TEXTS), TEXTS + chance.index(KEYS - TEXTS));
    let value: Vec<u8> = (0..chance.index(12)).map(|_| chance.number() as u8).collect();
    let returns = [Returns::Nothing, Returns::Version, Returns::Fence][chance.index(3)];
    // The last version more often than an older one.
    let age = [0, 0, 0, 1, 2][chance.index(5)];
    match chance.index(10) {
        0..3 => Step::Add(text, value, returns),
        3 => Step::Get(chance.index(KEYS), chance.index(2) == 0),
        4 | 5 => Step::Set(text, age, value, returns),
        6 | 7 => Step::Delete(chance.index(KEYS), age),
        8 if chance.index(2) == 0 => Step::Append(text, value),
        8 => Step::Prepend(text, value),
        _ => Step::Increment(number, chance.number() % 1000, chance.index(2) == 0),
    }
}

/// One of the two stores, and what was seen of its versions.
struct Side {
    store: Arc<dyn Store>,
    keys: Vec<Key>,
    versions: Vec<Vec<Version>>,
}

impl Side {
    fn version(&self, key: usize, age: usize) -> Version {
        let seen = &self.versions[key];
        seen.iter().rev().nth(age).copied().unwrap_or(Version::new(Epoch::new(1, 1), 1))
    }

    fn run(&mut self, steps: &[Step]) -> Vec<Reply> {
        let expiry = HOUR;
        let ops: Vec<Op<'_>> = steps
            .iter()
            .map(|step| match *step {
                Step::Add(key, ref value, returns) => {
                    Op::add(&self.keys[key], value, expiry, returns)
                }
                Step::Get(key, fence) => Op::Get { key: &self.keys[key], fence },
                Step::Set(key, age, ref value, returns) => Op::CompareAndSet {
                    key: &self.keys[key],
                    version: self.version(key, age),
                    value,
                    expiry,
                    returns,
                },
                Step::Delete(key, age) => {
                    Op::Delete { key: &self.keys[key], version: self.version(key, age) }
                }
                Step::Append(key, ref value) => Op::Append { key: &self.keys[key], value },
                Step::Prepend(key, ref value) => Op::Prepend { key: &self.keys[key], value },
                Step::Increment(key, by, creates) => Op::Increment {
                    key: &self.keys[key],
                    by,
                    initial: creates.then_some((by, HOUR)),
                },
            })
            .collect();
        // All items of one test are on the server that owns the first.
        let replies = self.store.run(Route::of(&self.keys[0]), &ops).unwrap();
        for (step, reply) in steps.iter().zip(&replies) {
            let (Some(version), key) = (version_of(reply), key_of(step)) else { continue };
            if self.versions[key].last() != Some(&version) {
                self.versions[key].push(version);
            }
        }
        replies
    }
}

fn key_of(step: &Step) -> usize {
    match *step {
        Step::Add(key, ..)
        | Step::Get(key, _)
        | Step::Set(key, ..)
        | Step::Delete(key, _)
        | Step::Append(key, _)
        | Step::Prepend(key, _)
        | Step::Increment(key, ..) => key,
    }
}

fn version_of(reply: &Reply) -> Option<Version> {
    match reply {
        Reply::Stored(stored) => Some(stored.version),
        Reply::Value(item) => Some(item.version),
        _ => None,
    }
}

fn random_batches_are_answered_as_by_a_model(bench: &Bench) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let seed = seed_of_run();
    let mut chance = Chance(seed);
    let keyspace = Keyspace::new(&format!("{}:", bench.unique)).unwrap();
    let side = |store: Arc<dyn Store>| Side {
        store,
        keys: (0..KEYS).map(|key| keyspace.lock(format!("{key}").as_bytes())).collect(),
        versions: vec![Vec::new(); KEYS],
    };
    let mut model = side(Arc::new(Memory::new(Arc::clone(&clock))));
    let mut tested = side(schemes::connect(&bench.place.store_url, &clock).unwrap());
    // Which version of the one is which of the other; and the greatest fence of each key.
    let mut same: HashMap<Version, Version> = HashMap::new();
    let mut fences = [0; KEYS];
    for number in 0..BATCHES {
        let steps: Vec<Step> = (0..=chance.index(6)).map(|_| step(&mut chance)).collect();
        let (expected, got) = (model.run(&steps), tested.run(&steps));
        let context =
            || format!("MEMLOCK_SEED={seed}, batch {number}: {steps:?}\n{expected:?}\n{got:?}");
        assert_eq!(expected.len(), got.len(), "{}", context());
        for (step, (expected, got)) in steps.iter().zip(expected.iter().zip(&got)) {
            let agree = match (expected, got) {
                (Reply::Stored(one), Reply::Stored(other)) => {
                    let rises = rises(&mut fences[key_of(step)], step, *other);
                    assert_safe!(rises, "the fence did not rise: {}", context());
                    *same.entry(one.version).or_insert(other.version) == other.version
                }
                (Reply::Value(one), Reply::Value(other)) => {
                    one.value == other.value
                        && *same.entry(one.version).or_insert(other.version) == other.version
                }
                (one, other) => one == other,
            };
            assert!(agree, "{}", context());
        }
    }
    let mut pairs: Vec<&Version> = same.values().collect();
    pairs.sort_by_key(|version| version.number());
    pairs.dedup();
    assert_safe_eq!(pairs.len(), same.len(), "MEMLOCK_SEED={seed}: a version was given twice");
}

/// Whether a fence that was asked for is greater than all of the key before.
fn rises(last: &mut u64, step: &Step, stored: Stored) -> bool {
    let asked = matches!(step, Step::Add(.., Returns::Fence) | Step::Set(.., Returns::Fence));
    if !asked {
        return true;
    }
    stored.fence > std::mem::replace(last, stored.fence)
}
