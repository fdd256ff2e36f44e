//! The handle of a distinct list: its session, and queries.

use std::time::Duration;

use crate::clock::Moment;
use crate::context::Context;
use crate::error::{Answer, Error, ErrorKind, Result};
use crate::lease::Lease;
use crate::mutation::{self, Mutation};
use crate::name::{Key, check_member};
use crate::owner::Token;
use crate::primitives::set_up::SetUp;
use crate::report::{self, Report};
use crate::store::{Expiry, Failure, Item, Op, Reply, Returns, Version};
use crate::subject::Subject;
use crate::target::{ATTEMPTS, Target};

/// For how long a half-finished insert may belong to a client that is still at work.
pub(super) const GRACE: Duration = Duration::from_millis(100);

/// How much longer than the session its items are stored, so that none of them expires before the
/// session.
pub(super) const TTL_SLACK: Duration = Duration::from_secs(2);

/// A named set of keys with ids, shared by all clients that know the session's name.
///
/// The handle may be used from several threads, each with a clone. A clone that was made before
/// [`DistinctList::set_up`] is not bound to the session of that call.
#[derive(Clone, Debug)]
pub struct DistinctList {
    pub(super) target: Target,
    pub(super) joined: Option<Generation>,
    /// Whether this handle has set the session up, or joined it by a set-up, and so must not use a
    /// later session of the same name.
    pub(super) bound: bool,
}

/// One set-up of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Generation {
    pub(super) token: Token,
    /// The token as text, for keys.
    pub(super) text: String,
    pub(super) ends: Moment,
}

impl DistinctList {
    pub(crate) fn new(context: Context, session: &[u8]) -> DistinctList {
        let key = context.keys().session(session);
        DistinctList {
            target: Target::new(context, "distinct list", key),
            joined: None,
            bound: false,
        }
    }

    /// Sets the session up, or joins it if it exists. The session and all its keys end after
    /// `duration` (1 second to 366 days), counted from the first set-up. Two round trips, or one to
    /// join.
    ///
    /// From now on, this handle belongs to that session: once the session is torn down, inserts are
    /// refused, even if another client sets up another session of the same name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a duration out of range; [`ErrorKind::Unreachable`],
    /// [`ErrorKind::Unknown`], [`ErrorKind::Protocol`].
    pub fn set_up(&mut self, duration: Duration) -> Result<SetUp> {
        let lease = Lease::new(duration).map_err(|error| self.said("Setting up", error))?;
        let mut tried = Vec::new();
        let mut error = None;
        for _ in 0..ATTEMPTS {
            // Most callers find an existing session: read first, and write only if there is
            // none.
            let mut found = self.look_up().map_err(|error| Failure { error, sent: false });
            if let Ok(None) = found {
                // A new token each time: a session of an earlier attempt may have been set up,
                // joined and torn down in the meantime, and clients that joined it must not
                // find it again.
                let fresh = self.target.context.identity()?.token();
                tried.push(fresh);
                let generation = Generation::new(fresh, self.target.now() + duration);
                let value = format!("{SESSION_FORMAT} {fresh}");
                let counter = self.counter(&generation);
                let setting_up = [
                    Op::add(&counter, b"0", item_expiry(duration), Returns::Version),
                    Op::add(&self.target.key, value.as_bytes(), lease.into(), Returns::Version),
                    Op::get(&self.target.key),
                ];
                found = self.target.run(&setting_up).map(|replies| match replies.last() {
                    Some(Reply::Value(item)) => Generation::parse(item, self.target.now()),
                    _ => None,
                });
            }
            match found {
                // A failure may have left a session without its counter, which no client could
                // use.
                Ok(Some(found)) if error.is_some() && !self.has_counter(&found)? => {
                    self.remove_session(&found)?
                }
                Ok(Some(found)) => {
                    let created = tried.contains(&found.token);
                    (self.joined, self.bound) = (Some(found), true);
                    return Ok(if created { SetUp::Created } else { SetUp::Joined });
                }
                // The session ended between the two steps, or memlock did not write the item.
                Ok(None) => {}
                Err(failure) if !failure.sent && error.is_none() => {
                    return Err(self.said("Setting up", failure.error));
                }
                Err(failure) => error = Some(in_doubt(failure.error)),
            }
        }
        Err(self.said("Setting up", error.unwrap_or_else(|| self.not_a_session())))
    }

    /// Ends the session for all clients, in one atomic step. False if there was none: it was never
    /// set up, has expired or was torn down, or is another session than the one of this handle.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], [`ErrorKind::Unknown`], [`ErrorKind::Protocol`].
    pub fn tear_down(&mut self) -> Result<bool> {
        let mut error = None;
        let mut meant = None;
        for _ in 0..ATTEMPTS {
            let found = self.session().map_err(|why| {
                self.said("Tearing down", why.after_write(error.is_some(), "session"))
            })?;
            let found = found.filter(|(found, _)| {
                self.is_mine(found) || mutation::has(Mutation::TearDownAnySession)
            });
            // A session other than the one that was found first is not the one to be torn down.
            let found = found.filter(|(found, _)| *meant.get_or_insert(found.token) == found.token);
            let Some((_, version)) = found else {
                // The session is gone. If the reply to the delete was lost, that delete removed
                // it.
                return Ok(error.is_some());
            };
            match self.target.one(Op::Delete { key: &self.target.key, version }) {
                Ok(Reply::Deleted) => return Ok(true),
                Ok(Reply::Missing) => return Ok(error.is_some()),
                Ok(_) => {}
                Err(failure) if !failure.sent && error.is_none() => {
                    return Err(self.said("Tearing down", failure.error));
                }
                Err(failure) => error = Some(in_doubt(failure.error)),
            }
        }
        Err(self.said("Tearing down", error.unwrap_or_else(|| self.not_a_session())))
    }

    /// The id of a key; `Some(None)` if the key is not in the list, `None` if there is no such
    /// session. One round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an empty key or one above 64 KiB; [`ErrorKind::Unreachable`],
    /// [`ErrorKind::Protocol`].
    pub fn id(&mut self, key: impl AsRef<[u8]>) -> Result<Option<Option<u64>>> {
        check_member(key.as_ref()).map_err(|error| self.said("Reading", error))?;
        self.within(|list, generation| {
            let key = list.key_item(generation, key.as_ref());
            let replies = list.target.read(&[Op::get(&key), Op::get(&list.target.key)])?;
            let id = match replies.first() {
                Some(Reply::Value(item)) => KeyItem::parse(&item.value).and_then(|item| item.id),
                _ => None,
            };
            Ok(list.still_on(generation, replies.last()).then_some(id))
        })
    }

    /// Whether a key is in the list; `None` if there is no such session. One round trip.
    ///
    /// # Errors
    /// As [`DistinctList::id`].
    pub fn contains(&mut self, key: impl AsRef<[u8]>) -> Result<Option<bool>> {
        Ok(self.id(key)?.map(|id| id.is_some()))
    }

    /// The number of ids that were drawn; `None` if there is no such session. This is the number of
    /// keys, plus one for each inserter that died or was overtaken half-way. One round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], [`ErrorKind::Protocol`].
    pub fn count(&mut self) -> Result<Option<u64>> {
        self.within(|list, generation| {
            let counter = list.counter(generation);
            let replies = list.target.read(&[Op::get(&counter), Op::get(&list.target.key)])?;
            let count = match replies.first() {
                Some(Reply::Value(item)) => parse_number(&item.value),
                // The server lost the counter, and the session is over.
                _ => None,
            };
            Ok(count.filter(|_| list.still_on(generation, replies.last())))
        })
    }

    pub(super) fn has_counter(&self, generation: &Generation) -> Result<bool> {
        let counter = self.target.get_other(&self.counter(generation));
        Ok(counter.map_err(|error| self.said("Setting up", in_doubt(error)))?.is_some())
    }

    /// Removes the session's item if it belongs to this generation.
    pub(super) fn remove_session(&self, generation: &Generation) -> Result<()> {
        let found = self.session();
        let found = found.map_err(|error| self.said("Setting up", in_doubt(error)))?;
        if let Some((found, version)) = found
            && found.token == generation.token
        {
            // The next round finds out whether this succeeded.
            let _ = self.target.one(Op::Delete { key: &self.target.key, version });
        }
        Ok(())
    }

    /// Whether the session that this handle knows has outlived its duration.
    pub(crate) fn has_ended(&self) -> bool {
        let now = self.target.now();
        self.joined.as_ref().is_none_or(|joined| joined.ends < now)
    }

    /// The session's name, for people; the server's key if the name has more than 200 bytes.
    pub fn name(&self) -> String {
        self.target.name()
    }

    /// The session's server, for people, such as `memcached at 10.0.0.7:11211`.
    pub fn server(&self) -> String {
        self.target.server()
    }

    /// The session, as errors and reports name it.
    pub fn subject(&self) -> Subject {
        self.target.subject()
    }

    /// Reports that there is no such session, or another than the one of this handle:
    /// [`Answer::NotFound`] with a sentence.
    pub fn report_not_found(&self) -> Report {
        report::not_set_up(&self.target)
    }

    /// Reports the result of a set-up or an insert: [`Answer::Exists`] and [`Answer::Duplicate`]
    /// with a sentence that names the list and the server.
    pub fn report(&self, answer: impl Into<Answer>) -> Report {
        let answer = answer.into();
        let tell: fn(&Subject) -> String = match answer {
            Answer::Exists => {
                |subject| format!("The {subject} was already set up, and was joined.")
            }
            Answer::Duplicate => |subject| format!("The key was already in the {subject}."),
            other => return other.into(),
        };
        Report::naming(self.target.subject(), answer, tell)
    }

    /// Runs a read in the session that this handle belongs to, or else in the existing session.
    /// `None` if there is none.
    pub(super) fn within<T>(
        &mut self,
        mut read: impl FnMut(&DistinctList, &Generation) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        // A second time, if another session has replaced the one that was known.
        for _ in 0..2 {
            let Some(generation) = self.generation()? else { return Ok(None) };
            let found = read(self, &generation).map_err(|error| self.said("Reading", error))?;
            if found.is_some() || self.bound {
                return Ok(found);
            }
            self.joined = None;
        }
        Ok(None)
    }

    /// The generation of the session: the known one, or else the one on the server.
    pub(super) fn generation(&mut self) -> Result<Option<Generation>> {
        if self.joined.is_none() {
            self.joined = self.look_up().map_err(|error| self.said("Reading", error))?;
        }
        Ok(self.joined.clone())
    }

    pub(super) fn look_up(&self) -> Result<Option<Generation>> {
        Ok(self.session()?.map(|(generation, _)| generation))
    }

    /// The existing session, and the version of its item.
    pub(super) fn session(&self) -> Result<Option<(Generation, Version)>> {
        let now = self.target.now();
        let item = self.target.get()?;
        Ok(item.and_then(|item| Some((Generation::parse(&item, now)?, item.version))))
    }

    pub(super) fn is_mine(&self, found: &Generation) -> bool {
        !self.bound || self.joined.as_ref().is_some_and(|joined| joined.token == found.token)
    }

    /// Whether a read of the session's item shows the same generation.
    pub(super) fn still_on(&self, generation: &Generation, session: Option<&Reply>) -> bool {
        let Some(Reply::Value(item)) = session else { return false };
        let found = Generation::parse(item, self.target.now());
        found.is_some_and(|found| found.token == generation.token)
    }

    pub(super) fn counter(&self, generation: &Generation) -> Key {
        self.target.context.keys().list_item('c', &generation.text, b"")
    }

    pub(super) fn key_item(&self, generation: &Generation, key: &[u8]) -> Key {
        self.target.context.keys().list_item('k', &generation.text, key)
    }

    pub(super) fn id_item(&self, generation: &Generation, id: u64) -> Key {
        self.target.context.keys().list_item('n', &generation.text, id.to_string().as_bytes())
    }

    /// The TTL of items that are stored now.
    pub(super) fn expiry(&self, generation: &Generation) -> Expiry {
        item_expiry(generation.ends.since(self.target.now()))
    }

    pub(super) fn not_a_session(&self) -> Error {
        let text = format!(
            "The item {} changes too fast, or was not written by memlock: choose another session name \
             or prefix.",
            self.target.key
        );
        Error::new(ErrorKind::Protocol, text)
    }

    pub(super) fn said(&self, doing: &str, error: Error) -> Error {
        self.target.said(doing, error)
    }
}

pub(super) const SESSION_FORMAT: &str = "memlock-list/1";

impl Generation {
    pub(super) fn new(token: Token, ends: Moment) -> Generation {
        Generation { token, text: token.to_string(), ends }
    }

    pub(super) fn parse(item: &Item, now: Moment) -> Option<Generation> {
        let mut fields = std::str::from_utf8(&item.value).ok()?.split(' ');
        if fields.next()? != SESSION_FORMAT {
            return None;
        }
        let token = fields.next()?.parse().ok()?;
        let remaining =
            item.remaining.unwrap_or(crate::lease::MAX_LEASE).min(2 * crate::lease::MAX_LEASE);
        // Too late rather than too early: the items have to outlive the session, on the server's
        // clock.
        Some(Generation::new(token, now + remaining + remaining / crate::lease::DRIFT as u32))
    }
}

/// The value of a key's item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyItem {
    /// `None` while the key is only claimed.
    pub(super) id: Option<u64>,
    pub(super) token: Token,
}

impl KeyItem {
    pub(super) fn parse(value: &[u8]) -> Option<KeyItem> {
        let (id, token) = std::str::from_utf8(value).ok()?.split_once(' ')?;
        let id = if id == "?" { None } else { Some(id.parse().ok()?) };
        Some(KeyItem { id, token: token.parse().ok()? })
    }
}

impl std::fmt::Display for KeyItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.id {
            Some(id) => write!(f, "{id} {}", self.token),
            None => write!(f, "? {}", self.token),
        }
    }
}

pub(super) fn item_expiry(left: Duration) -> Expiry {
    Expiry::After(left.min(crate::lease::MAX_LEASE) + TTL_SLACK)
}

pub(super) fn parse_number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.trim_end().parse().ok()
}

/// The error after a write whose outcome is not known.
fn in_doubt(error: Error) -> Error {
    error.after_write(true, "session")
}
