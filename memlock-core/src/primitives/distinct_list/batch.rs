//! A batch of keys that are being inserted, in rounds: each claims new keys, reads those that existed,
//! and commits what is claimed.

use std::collections::HashMap;
use std::time::Duration;

use super::insertion::Insertion;
use super::list::{DistinctList, GRACE, Generation, KeyItem};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::owner::Token;
use crate::store::{Failure, Op, Reply, Returns, Stored, Version};
use crate::target::ATTEMPTS;

/// More rounds mean that something is wrong with the server: a key needs one round, or some twenty
/// during another inserter's grace period.
const MOST_ROUNDS: usize = 200;

/// The longest pause before a key that another client has claimed is read again.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// A batch of keys that are being inserted.
pub(super) struct Batch<'a> {
    list: &'a DistinctList,
    generation: Generation,
    token: Token,
    /// Each distinct key once.
    entries: Vec<Entry<'a>>,
    /// For each given key: its entry, and whether it is the occurrence that may be first.
    given: Vec<(usize, bool)>,
}

struct Entry<'a> {
    name: &'a [u8],
    key: Key,
    stage: Stage,
    /// Since when the key has been seen claimed by another client.
    waiting_since: Option<Moment>,
    /// An id that was drawn and written before another client committed the key.
    overtaken: Option<(u64, Key, Version)>,
}

/// How far the insert of a key has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// To be claimed.
    New,
    /// The key's item exists, but its content is not known.
    Unread,
    /// To be committed over this version: this client's claim, or the claim of another client whose
    /// grace period has passed.
    Claimed(Version),
    /// Committed by this insert, with this id and version of the key's item. Whether the id's item
    /// was stored is not known: a server may refuse one operation of a packet and carry out the next.
    Committed(u64, Version),
    /// Done.
    Answered(Insertion),
}

/// Why a round was aborted: a failure that may be retried, or the end of the session.
enum Stop {
    Failed(Failure),
    SessionGone,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

impl<'a> Batch<'a> {
    pub(super) fn new(
        list: &'a DistinctList,
        generation: Generation,
        token: Token,
        keys: &[&'a [u8]],
    ) -> Batch<'a> {
        let mut places = HashMap::with_capacity(keys.len());
        let mut entries = Vec::with_capacity(keys.len());
        let mut given = Vec::with_capacity(keys.len());
        for &name in keys {
            let place = *places.entry(name).or_insert(entries.len());
            let first = place == entries.len();
            if first {
                let key = list.key_item(&generation, name);
                entries.push(Entry {
                    name,
                    key,
                    stage: Stage::New,
                    waiting_since: None,
                    overtaken: None,
                });
            }
            given.push((place, first));
        }
        Batch { list, generation, token, entries, given }
    }

    /// Runs rounds until every key has a result. `None` if the session is gone.
    pub(super) fn run(&mut self) -> Result<Option<Vec<Insertion>>> {
        let clock = self.list.target.context.clock();
        let mut failures = 0;
        let mut in_doubt = false;
        let mut pause = Duration::from_millis(1);
        for _ in 0..MOST_ROUNDS {
            match self.round() {
                Ok(()) => failures = 0,
                Err(Stop::SessionGone) => return Ok(None),
                Err(Stop::Failed(failure)) => {
                    failures += 1;
                    in_doubt |= failure.sent;
                    if !in_doubt {
                        return Err(failure.error);
                    }
                    if failures == ATTEMPTS {
                        // After a refusal nothing is under way.
                        if !failure.error.is_outage() {
                            let _ = self.take_back();
                        }
                        return self.answers().map(Some).ok_or_else(|| uncommitted(failure.error));
                    }
                    // Requests under way may have arrived: the items are read back. The token
                    // identifies the claims of this batch.
                    self.reset(Stage::New);
                    continue;
                }
            }
            if let Some(answers) = self.answers() {
                return Ok(Some(answers));
            }
            if self.entries.iter().any(|entry| entry.waiting_since.is_some()) {
                clock.sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        Err(Error::new(
            ErrorKind::Unknown,
            "The server loses items as fast as they are stored: give it more memory.",
        ))
    }

    /// The result for each given key, if all have one.
    fn answers(&self) -> Option<Vec<Insertion>> {
        let answer = |&(place, first): &(usize, bool)| match self.entries[place].stage {
            Stage::Answered(answer) if first => Some(answer),
            Stage::Answered(answer) => Some(Insertion::Duplicate(answer.id())),
            _ => None,
        };
        self.given.iter().map(answer).collect()
    }

    fn round(&mut self) -> std::result::Result<(), Stop> {
        self.claim()?;
        self.read()?;
        self.complete()?;
        self.commit()
    }

    /// Sets the stage of all keys that have no result.
    fn reset(&mut self, stage: Stage) {
        for entry in &mut self.entries {
            if !matches!(entry.stage, Stage::Answered(_)) {
                entry.stage = stage;
            }
        }
    }

    /// Claims new keys by adding their items.
    fn claim(&mut self) -> std::result::Result<(), Stop> {
        let places = self.places(|stage| stage == Stage::New);
        if places.is_empty() {
            return Ok(());
        }
        let claim = KeyItem { id: None, token: self.token }.to_string();
        let (expiry, returns) = (self.list.expiry(&self.generation), Returns::Version);
        // If there is only one key, its item is read in the same packet, so that a duplicate costs
        // one round trip.
        let alone = places.len() == 1;
        let mut ops = Vec::with_capacity(places.len() + 2);
        for &place in &places {
            let (key, value) = (&self.entries[place].key, claim.as_bytes());
            ops.push(Op::add(key, value, expiry, returns));
        }
        if alone {
            ops.push(Op::get(&self.entries[places[0]].key));
        }
        let replies = self.run_in_session(&mut ops)?;
        drop(ops);
        for (&place, reply) in places.iter().zip(&replies) {
            self.entries[place].stage = match reply {
                Reply::Stored(stored) => Stage::Claimed(stored.version),
                _ => Stage::Unread,
            };
        }
        if let (true, Stage::Unread) = (alone, self.entries[places[0]].stage) {
            self.classify(places[0], &replies[1]);
        }
        Ok(())
    }

    /// Reads the items of keys that existed before.
    fn read(&mut self) -> std::result::Result<(), Stop> {
        let places = self.places(|stage| stage == Stage::Unread);
        if places.is_empty() {
            return Ok(());
        }
        // The session may end while a claim of another inserter is waited for.
        let waits = places.iter().any(|&place| self.entries[place].waiting_since.is_some());
        let mut ops: Vec<Op<'_>> =
            places.iter().map(|&place| Op::get(&self.entries[place].key)).collect();
        let replies =
            if waits { self.run_in_session(&mut ops)? } else { self.list.target.run(&ops)? };
        drop(ops);
        for (&place, reply) in places.iter().zip(&replies) {
            self.classify(place, reply);
        }
        Ok(())
    }

    /// Sets the stage of a key by the content of its item.
    fn classify(&mut self, place: usize, reply: &Reply) {
        let now = self.list.target.now();
        let entry = &mut self.entries[place];
        let Reply::Value(item) = reply else {
            // The item existed a moment ago: the server has lost it.
            entry.stage = Stage::New;
            return;
        };
        entry.stage = match KeyItem::parse(&item.value) {
            Some(KeyItem { id: Some(id), token }) if token == self.token => {
                Stage::Committed(id, item.version)
            }
            Some(KeyItem { id: Some(id), .. }) => {
                return self.answer(place, Insertion::Duplicate(id));
            }
            Some(KeyItem { id: None, token }) if token == self.token => {
                Stage::Claimed(item.version)
            }
            // Claimed by another client, which is at work or dead.
            _ if now.since(*entry.waiting_since.get_or_insert(now)) >= GRACE => {
                Stage::Claimed(item.version)
            }
            _ => Stage::Unread,
        };
        if entry.stage != Stage::Unread {
            entry.waiting_since = None;
        }
    }

    fn answer(&mut self, place: usize, answer: Insertion) {
        let entry = &mut self.entries[place];
        (entry.stage, entry.waiting_since) = (Stage::Answered(answer), None);
        if let Some((id, key, version)) = entry.overtaken.take()
            && answer.id() != id
        {
            // The drawn id becomes a hole. If this fails, walks skip it by the id in the key's
            // item.
            let _ = self.list.target.one(Op::Delete { key: &key, version });
        }
    }

    /// Stores the ids' items that are missing of committed keys, without which walks would not find
    /// these keys.
    fn complete(&mut self) -> std::result::Result<(), Stop> {
        let (mut whole, unlisted) = self.committed()?;
        if !unlisted.is_empty() {
            let (expiry, returns) = (self.list.expiry(&self.generation), Returns::Version);
            let mut ops = Vec::with_capacity(unlisted.len() + 1);
            for it in &unlisted {
                ops.push(Op::add(&it.id_item, self.entries[it.place].name, expiry, returns));
            }
            self.run_in_session(&mut ops)?;
        }
        whole.extend(unlisted);
        self.are_first(&whole);
        Ok(())
    }

    /// Removes committed keys whose ids' items the server refuses to store: they would be duplicates
    /// for all, and in no walk. The other committed keys get their results.
    fn take_back(&mut self) -> std::result::Result<(), Stop> {
        self.reset(Stage::Unread);
        self.read()?;
        let (whole, unlisted) = self.committed()?;
        self.are_first(&whole);
        if !unlisted.is_empty() {
            let remove = |it: &Numbered| Op::Delete {
                key: &self.entries[it.place].key,
                version: it.version,
            };
            let ops: Vec<Op<'_>> = unlisted.iter().map(remove).collect();
            self.list.target.run(&ops)?;
        }
        Ok(())
    }

    fn are_first(&mut self, committed: &[Numbered]) {
        for it in committed {
            self.answer(it.place, Insertion::First(it.id));
        }
    }

    /// The committed keys whose ids' items the server has, and the others.
    fn committed(&self) -> std::result::Result<(Vec<Numbered>, Vec<Numbered>), Stop> {
        let committed = |place: usize| match self.entries[place].stage {
            Stage::Committed(id, version) => Some(self.number(place, id, version)),
            _ => None,
        };
        let all: Vec<_> = (0..self.entries.len()).filter_map(committed).collect();
        if all.is_empty() {
            return Ok((all, Vec::new()));
        }
        let mut ops = all.iter().map(|it| Op::get(&it.id_item)).collect();
        let replies = self.run_in_session(&mut ops)?;
        drop(ops);
        let mut replies = replies.into_iter();
        Ok(all.into_iter().partition(|_| replies.next() != Some(Reply::Missing)))
    }

    /// Draws ids for the claimed keys, writes the ids' items and commits the keys' items.
    fn commit(&mut self) -> std::result::Result<(), Stop> {
        let claimed = |place: usize| match self.entries[place].stage {
            Stage::Claimed(version) => Some((place, version)),
            _ => None,
        };
        let claimed: Vec<_> = (0..self.entries.len()).filter_map(claimed).collect();
        if claimed.is_empty() {
            return Ok(());
        }
        let list = self.list;
        let counter = list.counter(&self.generation);
        let by = claimed.len() as u64;
        let count = list.target.one(Op::Increment { key: &counter, by, initial: None })?;
        let Reply::Number(last) = count else {
            // The server lost the counter: ids would be issued twice, so the session is over.
            return Err(Stop::SessionGone);
        };
        let Some(before) = last.checked_sub(claimed.len() as u64) else {
            return Err(Stop::SessionGone);
        };
        let (expiry, returns) = (list.expiry(&self.generation), Returns::Version);
        let drawn = claimed.into_iter().zip(before + 1..=last);
        let drawn: Vec<_> =
            drawn.map(|((place, version), id)| self.number(place, id, version)).collect();
        let commit = |it: &Numbered| KeyItem { id: Some(it.id), token: self.token }.to_string();
        let values: Vec<String> = drawn.iter().map(commit).collect();
        let mut ops = Vec::with_capacity(2 * drawn.len() + 1);
        for (draw, value) in drawn.iter().zip(&values) {
            let (entry, version) = (&self.entries[draw.place], draw.version);
            ops.push(Op::add(&draw.id_item, entry.name, expiry, returns));
            let (key, value) = (&entry.key, value.as_bytes());
            ops.push(Op::CompareAndSet { key, version, value, expiry, returns });
        }
        let replies = self.run_in_session(&mut ops)?;
        drop(ops);
        for (draw, replies) in drawn.iter().zip(replies.chunks(2)) {
            match replies {
                [Reply::Stored(_), _] if mutation::has(Mutation::ClaimersAreFirst) => {
                    self.entries[draw.place].stage = Stage::Answered(Insertion::First(draw.id));
                }
                [Reply::Stored(_), Reply::Stored(_)] => {
                    self.entries[draw.place].stage = Stage::Answered(Insertion::First(draw.id));
                }
                // Overtaken: another client has committed the key, either with this id (as a walk
                // does) or with another.
                [Reply::Stored(Stored { version, .. }), _] => {
                    let entry = &mut self.entries[draw.place];
                    entry.overtaken = Some((draw.id, draw.id_item.clone(), *version));
                    entry.stage = Stage::Unread;
                }
                // The id was issued before: the counter was tampered with.
                _ => return Err(Stop::SessionGone),
            }
        }
        Ok(())
    }

    fn number(&self, place: usize, id: u64, version: Version) -> Numbered {
        Numbered { place, id, id_item: self.list.id_item(&self.generation, id), version }
    }

    /// Runs operations and reads the session in the same packet. If the session is over, the
    /// operations do not count.
    fn run_in_session<'o>(&self, ops: &mut Vec<Op<'o>>) -> std::result::Result<Vec<Reply>, Stop>
    where
        'a: 'o,
    {
        ops.push(Op::get(&self.list.target.key));
        let mut replies = self.list.target.run(ops)?;
        let session = replies.pop();
        if self.list.still_on(&self.generation, session.as_ref())
            || mutation::has(Mutation::InsertWithoutSession)
        {
            Ok(replies)
        } else {
            Err(Stop::SessionGone)
        }
    }

    fn places(&self, wanted: impl Fn(Stage) -> bool) -> Vec<usize> {
        (0..self.entries.len()).filter(|&place| wanted(self.entries[place].stage)).collect()
    }
}

/// A key with the id that was drawn for it.
struct Numbered {
    place: usize,
    id: u64,
    id_item: Key,
    /// Of the key's item.
    version: Version,
}

fn uncommitted(error: Error) -> Error {
    if !error.is_outage() {
        return error;
    }
    error.told_as(ErrorKind::Unknown, |why| {
        format!("The keys were sent, and neither the replies nor the items could be read ({why})")
    })
}
