//! Cutting connections at every byte of what passes: one place after the other, for each kind of
//! exchange.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use memlock_tests::proxy::Fault;

/// One burst in so many is cut, so that most of what is begun comes to an end.
const EVERY: u64 = 3;
/// The longest answer to commands that read an item, to others, and to an introduction; in steps of
/// so many bytes, each lap beginning one byte further on.
const READING: (usize, usize) = (240, 1);
const WRITING: (usize, usize) = (64, 1);
const INTRODUCTION: (usize, usize) = (6000, 97);
/// A semaphore's item has a line for each holder.
const READING_SEMAPHORE: (usize, usize) = (700, 7);
const SEMAPHORE_STEP: usize = 5;
/// How the exchanges about semaphores are recognized.
const OF_SEMAPHORES: &str = " (semaphore)";

/// On which side of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Request,
    Reply,
}

/// Where the walk through each kind of exchange stands.
#[derive(Debug, Default)]
struct Walks {
    bursts: u64,
    /// By the verbs of an exchange: how the walk through it stands.
    places: HashMap<String, Walk>,
    cuts: usize,
}

/// The walk through one kind of exchange.
#[derive(Debug, Default)]
struct Walk {
    next: usize,
    /// How often the end was reached, and how long a step is.
    laps: usize,
    step: usize,
}

/// Chooses where to cut.
#[derive(Clone, Debug)]
pub(crate) struct Cutter {
    side: Side,
    walks: Arc<Mutex<Walks>>,
}

impl Cutter {
    pub(crate) fn new(side: Side) -> Cutter {
        Cutter { side, walks: Arc::default() }
    }

    /// What is to happen to this burst.
    pub(crate) fn decide(&self, burst: &[u8]) -> Option<Fault> {
        let mut walks = self.walks.lock().unwrap_or_else(PoisonError::into_inner);
        walks.bursts += 1;
        if !walks.bursts.is_multiple_of(EVERY) {
            return None;
        }
        let kind = kind(burst);
        let (end, step) = match self.side {
            Side::Request if kind.ends_with(OF_SEMAPHORES) => (burst.len(), SEMAPHORE_STEP),
            Side::Request => (burst.len(), 1),
            Side::Reply if kind.contains("stats") => INTRODUCTION,
            Side::Reply if kind.contains("mg") && kind.ends_with(OF_SEMAPHORES) => {
                READING_SEMAPHORE
            }
            Side::Reply if kind.contains("mg") => READING,
            Side::Reply => WRITING,
        };
        walks.cuts += 1;
        let walk = walks.places.entry(kind).or_default();
        walk.step = step;
        if walk.next > end {
            walk.laps += 1;
            walk.next = walk.laps % step;
        }
        let place = walk.next;
        walk.next += step;
        Some(match self.side {
            Side::Request => Fault::CutRequestAfter(place),
            Side::Reply => Fault::CutReplyAfter(place),
        })
    }

    /// How far it came, in words.
    pub(crate) fn summary(&self) -> String {
        let walks = self.walks.lock().unwrap_or_else(PoisonError::into_inner);
        let done = |which: &dyn Fn(&Walk) -> bool| {
            let mut kinds: Vec<&str> = walks
                .places
                .iter()
                .filter(|(_, walk)| which(walk))
                .map(|(kind, _)| kind.as_str())
                .collect();
            kinds.sort_unstable();
            if kinds.is_empty() { "nothing".to_owned() } else { kinds.join(", ") }
        };
        let mut text = format!(
            "{} cuts; at every byte of: {}",
            walks.cuts,
            done(&|walk| walk.laps >= walk.step)
        );
        if walks.places.values().any(|walk| (1..walk.step).contains(&walk.laps)) {
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "; at some bytes of: {}",
                done(&|walk| (1..walk.step).contains(&walk.laps))
            );
        }
        text
    }
}

/// The verbs of a burst, such as `ms+mg`; of a long one only the first few.
fn kind(burst: &[u8]) -> String {
    let text = String::from_utf8_lossy(burst);
    let known = ["ms", "mg", "md", "ma", "add", "cas", "append", "prepend", "stats"];
    let verbs = text.lines().filter_map(|line| line.split(' ').next());
    let verbs = verbs.filter(|verb| known.contains(verb)).take(5).collect::<Vec<_>>().join("+");
    if text.contains(" semaphore:") { verbs + OF_SEMAPHORES } else { verbs }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_comes_to_every_byte_and_its_end() {
        let cutter = Cutter::new(Side::Request);
        let burst = b"ms k 1\r\na\r\n";
        let cuts: Vec<_> = (0..60).filter_map(|_| cutter.decide(burst)).collect();
        for place in 0..=burst.len() {
            assert!(cuts.contains(&Fault::CutRequestAfter(place)), "{place}");
        }
        assert_eq!(cutter.summary(), "20 cuts; at every byte of: ms");
    }

    #[test]
    fn a_walk_in_steps_comes_to_every_byte_in_the_end() {
        let cutter = Cutter::new(Side::Request);
        let burst = b"cas semaphore:k 0 0 1 5\r\na\r\n";
        let few: Vec<_> = (0..24).filter_map(|_| cutter.decide(burst)).collect();
        assert_eq!(
            cutter.summary(),
            "8 cuts; at every byte of: nothing; at some bytes of: cas (semaphore)"
        );
        let rest: Vec<_> = (0..100).filter_map(|_| cutter.decide(burst)).collect();
        for place in 0..=burst.len() {
            let cut = Fault::CutRequestAfter(place);
            assert!(few.contains(&cut) || rest.contains(&cut), "{place}");
        }
        assert!(cutter.summary().ends_with("at every byte of: cas (semaphore)"));
    }
}
