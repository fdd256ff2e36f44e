//! Distinct lists over a store that loses packets, gives false replies, and has items that others
//! wrote: sessions, keys and ids of any value. For the input see `scene`.

use std::collections::HashMap;
use std::time::Duration;

use super::input::Input;
use super::scene::Scene;
use memlock_core::{DistinctList, Insertion};

pub fn run(data: &[u8]) {
    let mut scene = Scene::new(data, 40);
    let (client, honest) = (scene.client(), scene.honest);
    let mut handles =
        ["x", "x", "y"].map(|session| client.distinct_list(session).expect("a plain name"));
    let mut first = HashMap::new();
    while let Some((what, program)) = scene.next_call() {
        let place = usize::from(what >> 4) % handles.len();
        // Only while one session lasts do ids stay as they are.
        let known = if place < 2 { Some(&mut first) } else { None };
        step(&mut handles[place], what & 15, program, known.filter(|_| honest));
    }
}

/// Each key's id, and whether a caller was answered that it was first; of one session.
type First = HashMap<Vec<u8>, (u64, bool)>;

fn step(list: &mut DistinctList, what: u8, program: &mut Input<'_>, first: Option<&mut First>) {
    match what {
        0..=2 => {
            let seconds = [1, 60, 3600, 366 * 86_400][usize::from(program.byte()) % 4];
            let _ = list.set_up(Duration::from_secs(seconds.max(60)));
        }
        3..=8 => {
            let keys: Vec<&[u8]> = (0..=what % 4).map(|_| short_key(program)).collect();
            let Ok(Some(answers)) = list.insert_many(&keys) else { return };
            assert_eq!(answers.len(), keys.len());
            if let Some(first) = first {
                keys.iter().zip(answers).for_each(|(key, answer)| note(first, key, answer));
            }
        }
        9 => {
            let key = short_key(program);
            if let (Ok(Some(found)), Some(first)) = (list.id(key), first)
                && let Some(&(id, _)) = first.get(key)
            {
                assert_eq!(found, Some(id), "a key keeps its id");
            }
        }
        10 => {
            let count = list.count();
            if let (Ok(Some(count)), Some(first)) = (count, first) {
                assert!(first.values().all(|&(id, _)| (1..=count).contains(&id)));
            }
        }
        11 | 12 => walk(list, first),
        // Of the first session there is one only.
        _ => {
            if first.is_none() {
                let _ = list.tear_down();
            }
        }
    }
}

fn walk(list: &mut DistinctList, first: Option<&mut First>) {
    let Ok(Some(entries)) = list.entries() else { return };
    let mut last = 0;
    let mut walked = HashMap::new();
    for entry in entries.take(1000) {
        let Ok((id, key)) = entry else { return };
        assert!(id > last, "in the order of ids");
        last = id;
        walked.insert(key, id);
    }
    if let Some(first) = first {
        for (key, (id, _)) in first {
            assert_eq!(walked.get(key), Some(&*id), "what was in the list is walked through");
        }
    }
}

fn note(first: &mut First, key: &[u8], answer: Insertion) {
    let is_first = matches!(answer, Insertion::First(_));
    let (id, taken) = *first.entry(key.to_vec()).or_insert((answer.id(), false));
    assert_eq!(id, answer.id(), "a key keeps its id");
    assert!(!(is_first && taken), "one only is first");
    assert!(
        first.iter().all(|(other, &(known, _))| known != id || other == key),
        "an id is one key's"
    );
    first.insert(key.to_vec(), (id, taken || is_first));
}

fn short_key<'a>(program: &mut Input<'a>) -> &'a [u8] {
    let length = usize::from(program.byte() % 4);
    program.bytes(length)
}
