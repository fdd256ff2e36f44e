//! Distinct lists: one id per key, one first insert per key, and no inserts after a tear-down.

use std::collections::{BTreeMap, BTreeSet};

use memlock_core::Insertion;

use crate::server::{Cause, Change};

#[derive(Debug, Default)]
pub(crate) struct Lists {
    /// The generation of each session on the server.
    now: BTreeMap<String, String>,
    generations: BTreeMap<String, Generation>,
    violation: Option<String>,
}

#[derive(Debug, Default)]
struct Generation {
    /// The task that set it up.
    maker: Option<usize>,
    ids: BTreeMap<String, u64>,
    keys: BTreeMap<u64, String>,
    firsts: BTreeMap<String, u32>,
    /// The server lost part of it.
    lossy: bool,
    /// Keys of calls that had no answer: no caller may have got the answer that it was first.
    silent: BTreeSet<String>,
    /// Inserts in progress, by task.
    open: BTreeMap<usize, (usize, String)>,
}

impl Lists {
    pub(crate) fn changed(&mut self, change: &Change, by: Option<usize>) {
        let Some(name) = change.key.strip_prefix("list:") else { return };
        if name.starts_with('%') {
            if change.cause == Cause::Loss
                && let Some(generation) =
                    self.generations.iter_mut().find(|(text, _)| name.contains(text.as_str()))
            {
                generation.1.lossy = true;
            }
            return;
        }
        let generation = change
            .after
            .as_ref()
            .and_then(|value| Some(String::from_utf8_lossy(value).split(' ').nth(1)?.to_owned()));
        match generation {
            Some(generation) => {
                self.generations.entry(generation.clone()).or_default().maker = by;
                self.now.insert(name.to_owned(), generation);
            }
            None => drop(self.now.remove(name)),
        }
    }

    /// The generation of a session on the server.
    pub(crate) fn generation(&self, session: &str) -> Option<String> {
        self.now.get(session).cloned()
    }

    /// Whether that task set it up.
    pub(crate) fn is_by(&self, generation: &str, task: usize) -> bool {
        self.generations.get(generation).is_some_and(|it| it.maker == Some(task))
    }

    /// How many generations that task has set up.
    pub(crate) fn made_by(&self, task: usize) -> usize {
        self.generations.values().filter(|it| it.maker == Some(task)).count()
    }

    pub(crate) fn begins(&mut self, task: usize, process: usize, generation: &str, key: &str) {
        if let Some(generation) = self.generations.get_mut(generation) {
            generation.open.insert(task, (process, key.to_owned()));
        }
    }

    pub(crate) fn killed(&mut self, process: usize) {
        for generation in self.generations.values_mut() {
            let open = std::mem::take(&mut generation.open);
            for (task, (of_process, key)) in open {
                if of_process == process {
                    generation.silent.insert(key);
                } else {
                    generation.open.insert(task, (of_process, key));
                }
            }
        }
    }

    /// The answer to an insert into that generation; `None` if it failed.
    pub(crate) fn answered(
        &mut self,
        task: usize,
        text: &str,
        key: &str,
        answer: Option<Option<Insertion>>,
    ) {
        let Some(generation) = self.generations.get_mut(text) else { return };
        generation.open.remove(&task);
        let Some(Some(insertion)) = answer else {
            generation.silent.insert(key.to_owned());
            return;
        };
        if generation.lossy {
            return;
        }
        let id = insertion.id();
        let known = *generation.ids.entry(key.to_owned()).or_insert(id);
        let known_key = generation.keys.entry(id).or_insert_with(|| key.to_owned()).clone();
        let firsts = generation.firsts.entry(key.to_owned()).or_default();
        *firsts += u32::from(matches!(insertion, Insertion::First(_)));
        let firsts = *firsts;
        if known != id {
            self.report_violation(format!("the key {key} has the id {known} and the id {id}"));
        } else if known_key != key {
            self.report_violation(format!("the id {id} belongs to {known_key} and to {key}"));
        } else if firsts > 1 {
            self.report_violation(format!("{firsts} callers were told to be first with {key}"));
        }
    }

    pub(crate) fn report_violation(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    pub(crate) fn violation(&self, at_the_end: bool) -> Option<String> {
        let unclaimed = || {
            let whole = self.generations.values().filter(|it| !it.lossy);
            whole
                .flat_map(|it| {
                    it.firsts
                        .iter()
                        .filter(|(key, firsts)| **firsts == 0 && !it.silent.contains(*key))
                })
                .map(|(key, _)| key)
                .next()
        };
        let nobody = || {
            unclaimed().map(|key| {
                format!("no caller was told to be first with {key}, and all calls were answered")
            })
        };
        self.violation.clone().or_else(|| if at_the_end { nobody() } else { None })
    }
}
