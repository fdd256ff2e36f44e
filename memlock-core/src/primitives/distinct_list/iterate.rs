//! Enumeration in the order of ids, in batches.

use super::list::{DistinctList, GRACE, Generation, KeyItem};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Op, Reply, Returns};

/// How many ids are read at once.
const WINDOW: u64 = 256;
/// If more windows in a row have no key, the counter is greater than possible: it was tampered
/// with.
const MOST_EMPTY: usize = 1000;

impl DistinctList {
    /// Walks through the keys that were in the list when the walk began, in the order of their ids;
    /// `None` if there is no such session. Two round trips for each 256 keys.
    ///
    /// Unused ids are skipped, if necessary after a wait of a tenth of a second, once, for
    /// inserters that are at work. Half-finished inserts of dead inserters are completed. If the
    /// session ends during the walk, the walk ends with an error of kind [`ErrorKind::NotFound`].
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], [`ErrorKind::Protocol`].
    pub fn entries(&mut self) -> Result<Option<Entries>> {
        let Some(last) = self.count()? else { return Ok(None) };
        let Some(generation) = self.joined.clone() else { return Ok(None) };
        let began = self.target.now();
        Ok(Some(Entries {
            list: self.clone(),
            generation,
            next: 1,
            last,
            began,
            empty: 0,
            ready: Vec::new().into_iter(),
        }))
    }
}

/// Ids and their keys.
type Ids = Vec<(u64, Vec<u8>)>;

/// A walk through a list: ids and keys. See [`DistinctList::entries`].
#[derive(Debug)]
pub struct Entries {
    list: DistinctList,
    generation: Generation,
    next: u64,
    /// 0 if the walk ended early.
    last: u64,
    /// Inserts that were half-finished at this time are committed or dead after a grace period.
    began: Moment,
    /// The number of consecutive windows without a key.
    empty: usize,
    ready: std::vec::IntoIter<(u64, Vec<u8>)>,
}

impl Iterator for Entries {
    type Item = Result<(u64, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.ready.next() {
                return Some(Ok(entry));
            }
            if self.next > self.last {
                return None;
            }
            let window = self.window().and_then(|entries| {
                let entries = entries.ok_or_else(ended)?;
                self.empty = if entries.is_empty() { self.empty + 1 } else { 0 };
                if self.empty > MOST_EMPTY { Err(astray()) } else { Ok(entries) }
            });
            match window {
                Ok(entries) => self.ready = entries.into_iter(),
                Err(error) => {
                    self.last = 0;
                    return Some(Err(self.list.said("Reading", error)));
                }
            }
        }
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::NotFound, "The session ended during the walk.")
}

fn astray() -> Error {
    Error::protocol(
        "The list's counter is far beyond its keys: somebody else writes to it. Tear the session \
         down.",
    )
}

impl Entries {
    /// Reads the next ids. `None` if the session is gone.
    fn window(&mut self) -> Result<Option<Ids>> {
        let ids: Vec<u64> = (self.next..=self.last).take(WINDOW as usize).collect();
        let mut entries = loop {
            let Some((entries, uncommitted)) = self.read(&ids)? else { return Ok(None) };
            let clock = self.list.target.context.clock();
            let over = self.began + GRACE;
            if !uncommitted || clock.now() >= over {
                break entries;
            }
            clock.sleep(over.since(clock.now()));
        };
        entries.sort_unstable_by_key(|&(id, _)| id);
        self.next += ids.len() as u64;
        Ok(Some(entries))
    }

    /// The keys of these ids, and whether inserts of some of them may still be under way.
    fn read(&self, ids: &[u64]) -> Result<Option<(Ids, bool)>> {
        let Entries { list, generation, .. } = self;
        let items: Vec<_> = ids.iter().map(|&id| list.id_item(generation, id)).collect();
        let mut ops: Vec<Op<'_>> = items.iter().map(Op::get).collect();
        ops.push(Op::get(&list.target.key));
        let mut replies = list.target.read(&ops)?;
        if !list.still_on(generation, replies.pop().as_ref()) {
            return Ok(None);
        }
        let mut under_way = replies.contains(&Reply::Missing);
        let named: Ids = ids
            .iter()
            .zip(replies)
            .filter_map(|(&id, reply)| match reply {
                Reply::Value(item) => Some((id, item.value)),
                _ => None,
            })
            .collect();
        let keys: Vec<_> = named.iter().map(|(_, name)| list.key_item(generation, name)).collect();
        let ops: Vec<Op<'_>> = keys.iter().map(Op::get).collect();
        let replies = if ops.is_empty() { Vec::new() } else { list.target.read(&ops)? };
        let in_time = list.target.now() < self.began + GRACE;
        let mut entries = Vec::with_capacity(named.len());
        for (((id, name), key), reply) in named.into_iter().zip(&keys).zip(replies) {
            let Reply::Value(item) = reply else {
                // The server lost the key's item; the id's item still has the key.
                entries.push((id, name));
                continue;
            };
            match KeyItem::parse(&item.value) {
                Some(KeyItem { id: Some(committed), .. }) if committed == id => {
                    entries.push((id, name))
                }
                // The inserter was overtaken: the key has another id.
                Some(KeyItem { id: Some(_), .. }) | None => {}
                Some(KeyItem { id: None, .. }) if in_time => under_way = true,
                // The inserter died between the two writes: commit the key under the inserter's
                // token.
                Some(KeyItem { id: None, token }) => {
                    let value = KeyItem { id: Some(id), token }.to_string();
                    let expiry = list.expiry(generation);
                    let op = Op::CompareAndSet {
                        key,
                        version: item.version,
                        value: value.as_bytes(),
                        expiry,
                        returns: Returns::Version,
                    };
                    // The item's present content decides, whichever client wrote it.
                    let _ = list.target.one(op);
                    let now =
                        list.target.get_other(key)?.and_then(|item| KeyItem::parse(&item.value));
                    if now.is_some_and(|now| now.id == Some(id)) {
                        entries.push((id, name));
                    }
                }
            }
        }
        Ok(Some((entries, under_way)))
    }
}
