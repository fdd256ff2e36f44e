//! Cutting connections at every byte of what passes: one place after the other, for each kind of exchange.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use memlock_tests::proxy::Fault;

/// One burst in so many is cut, so that most of what is begun comes to an end.
const EVERY: u64 = 3;
/// The longest answer to commands that read an item, to others, and to an introduction; in steps of so many bytes.
const READING: (usize, usize) = (240, 1);
const WRITING: (usize, usize) = (64, 1);
const INTRODUCTION: (usize, usize) = (6000, 97);

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
    /// By the verbs of an exchange: the next place, and how often all places were done.
    places: HashMap<String, (usize, usize)>,
    cuts: usize,
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
            Side::Request => (burst.len(), 1),
            Side::Reply if kind.contains("stats") => INTRODUCTION,
            Side::Reply if kind.contains('g') => READING,
            Side::Reply => WRITING,
        };
        walks.cuts += 1;
        let (next, laps) = walks.places.entry(kind).or_default();
        if *next > end {
            (*next, *laps) = (0, *laps + 1);
        }
        let place = *next;
        *next += step;
        Some(match self.side {
            Side::Request => Fault::CutRequestAfter(place),
            Side::Reply => Fault::CutReplyAfter(place),
        })
    }

    /// How far it came, in words.
    pub(crate) fn summary(&self) -> String {
        let walks = self.walks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut done: Vec<&str> =
            walks.places.iter().filter(|(_, (_, laps))| *laps > 0).map(|(kind, _)| kind.as_str()).collect();
        done.sort_unstable();
        let mut text = format!("{} cuts; at every byte of: ", walks.cuts);
        // Writing to a string does not fail.
        let _ = write!(text, "{}", if done.is_empty() { "nothing".to_owned() } else { done.join(", ") });
        text
    }
}

/// The verbs of a burst, such as `ms+mg`; of a long one only the first few.
fn kind(burst: &[u8]) -> String {
    let text = String::from_utf8_lossy(burst);
    let known = ["ms", "mg", "md", "ma", "append", "prepend", "stats"];
    let verbs = text.lines().filter_map(|line| line.split(' ').next());
    verbs.filter(|verb| known.contains(verb)).take(5).collect::<Vec<_>>().join("+")
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
}
