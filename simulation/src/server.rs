//! The server: memcached's items, versions and expiry, with a clock that ticks once a second and
//! sometimes skips a second.

use std::collections::BTreeMap;
use std::time::Duration;

use memlock_core::store::memcached::{Life, Ttl};
use memlock_core::store::{Item, Op, Reply, Returns, Stored as StoredReply, Version};

use crate::time::{MILLI, Nanos, SECOND};

/// How long a thread of the server may be off its processor between drawing a version and storing.
pub(crate) const OFF_ITS_PROCESSOR: Nanos = 20 * MILLI;

/// Where the world's time begins, in Unix seconds.
const UNIX: u64 = 1_700_000_000;

/// Why an item changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A client's command.
    Command,
    /// It expired.
    Expiry,
    /// The server lost it: eviction, flush, or a restart without a guard.
    Loss,
    /// The server was restarted. Its clients agree on a guard, so holders put back what it has
    /// forgotten.
    Forgotten,
}

/// A change of an item.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) key: String,
    pub(crate) before: Option<Vec<u8>>,
    pub(crate) after: Option<Vec<u8>>,
    pub(crate) cause: Cause,
    /// The time of the server's clock at which it expires.
    pub(crate) expires: Option<u64>,
}

/// An operation on its way, which outlives the call that sent it.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    Add { key: String, value: Vec<u8>, ttl: Ttl },
    Get { key: String },
    CompareAndSet { key: String, version: Version, value: Vec<u8>, ttl: Ttl },
    Put { key: String, version: Option<Version>, value: Vec<u8>, ttl: Ttl },
    Delete { key: String, version: Version },
    Append { key: String, value: Vec<u8> },
    Prepend { key: String, value: Vec<u8> },
    Increment { key: String, by: u64, initial: Option<(u64, Ttl)> },
    Stamp { key: String },
}

impl Command {
    pub(crate) fn of(op: &Op<'_>) -> Command {
        let text = |key: &memlock_core::name::Key| key.as_str().to_owned();
        match *op {
            Op::Add { key, value, expiry, returns: Returns::Nothing, .. } => Command::Put {
                key: text(key),
                version: None,
                value: value.to_vec(),
                ttl: Ttl::of(expiry),
            },
            Op::CompareAndSet { key, version, value, expiry, returns: Returns::Nothing } => {
                Command::Put {
                    key: text(key),
                    version: Some(version),
                    value: value.to_vec(),
                    ttl: Ttl::of(expiry),
                }
            }
            Op::Add { key, value, expiry, .. } => {
                Command::Add { key: text(key), value: value.to_vec(), ttl: Ttl::of(expiry) }
            }
            Op::Get { key, .. } => Command::Get { key: text(key) },
            Op::CompareAndSet { key, version, value, expiry, .. } => Command::CompareAndSet {
                key: text(key),
                version,
                value: value.to_vec(),
                ttl: Ttl::of(expiry),
            },
            Op::Delete { key, version } => Command::Delete { key: text(key), version },
            Op::Append { key, value } => Command::Append { key: text(key), value: value.to_vec() },
            Op::Prepend { key, value } => {
                Command::Prepend { key: text(key), value: value.to_vec() }
            }
            Op::Increment { key, by, initial } => Command::Increment {
                key: text(key),
                by,
                initial: initial.map(|(first, expiry)| (first, Ttl::of(expiry))),
            },
        }
    }

    pub(crate) fn key(&self) -> &str {
        match self {
            Command::Add { key, .. }
            | Command::Get { key }
            | Command::CompareAndSet { key, .. }
            | Command::Put { key, .. }
            | Command::Delete { key, .. }
            | Command::Append { key, .. }
            | Command::Prepend { key, .. }
            | Command::Increment { key, .. }
            | Command::Stamp { key } => key,
        }
    }

    pub(crate) fn verb(&self) -> &'static str {
        match self {
            Command::Add { .. } => "add",
            Command::Get { .. } => "get",
            Command::CompareAndSet { .. } => "compare-and-set",
            Command::Put { .. } => "put",
            Command::Delete { .. } => "delete",
            Command::Append { .. } => "append",
            Command::Prepend { .. } => "prepend",
            Command::Increment { .. } => "increment",
            Command::Stamp { .. } => "stamp",
        }
    }

    /// Whether it may release a lock or permits.
    pub(crate) fn may_release(&self) -> bool {
        matches!(self, Command::Delete { .. } | Command::CompareAndSet { .. } | Command::Put { .. })
    }

    /// Whether a server that draws versions early does so for this command.
    pub(crate) fn draws_early(&self) -> bool {
        !matches!(
            self,
            Command::Get { .. }
                | Command::Delete { .. }
                | Command::Increment { .. }
                | Command::Stamp { .. }
        )
    }
}

#[derive(Clone, Debug)]
struct Stored {
    value: Vec<u8>,
    cas: u64,
    /// In the seconds that the clock shows; `None`: never.
    expires: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Server {
    items: BTreeMap<String, Stored>,
    cas: u64,
    life: Life,
    /// When its life began; `None`: long ago.
    pub(crate) started: Option<Nanos>,
    /// What its clock shows, in whole seconds.
    server_time: u64,
    /// How far its time is ahead of the world's.
    ahead: Nanos,
    /// The maximum time from tick to tick.
    pub(crate) tick: Nanos,
    changes: Vec<Change>,
    /// The version that the current command drew earlier.
    drawn: Option<u64>,
}

impl Server {
    /// A server that was started just now; with a guard, a day ago, so that it gives new grants.
    pub(crate) fn new(now: Nanos, ahead: Nanos, tick: Nanos, is_guarded: bool) -> Server {
        let server_time = (now + ahead) / SECOND;
        let age = if is_guarded { 86_400 } else { 0 };
        let life = Life { boot: UNIX + server_time - age, pid: 1 };
        Server {
            items: BTreeMap::new(),
            cas: 0,
            life,
            started: None,
            server_time,
            ahead,
            tick,
            changes: Vec::new(),
            drawn: None,
        }
    }

    pub(crate) fn life(&self) -> Life {
        self.life
    }

    pub(crate) fn value(&self, key: &str) -> Option<&[u8]> {
        self.items.get(key).map(|stored| &stored.value[..])
    }

    /// When the item expires, by a clock that is never late.
    pub(crate) fn ends(&self, key: &str) -> Option<Nanos> {
        self.items.get(key)?.expires.map(|second| self.world_time_of(second))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.items.keys().map(String::as_str)
    }

    /// Takes the changes since the last call.
    pub(crate) fn changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// The clock's once-a-second timer.
    pub(crate) fn tick(&mut self, now: Nanos) {
        self.server_time = (now + self.ahead) / SECOND;
        let over: Vec<String> = self
            .items
            .iter()
            .filter(|(_, it)| it.expires.is_some_and(|at| at <= self.server_time))
            .map(|(key, _)| key.clone())
            .collect();
        for key in over {
            self.set(&key, None, Cause::Expiry);
        }
    }

    pub(crate) fn lose(&mut self, key: &str) {
        self.set(key, None, Cause::Loss);
    }

    pub(crate) fn flush(&mut self, cause: Cause) {
        for key in self.items.keys().cloned().collect::<Vec<_>>() {
            self.set(&key, None, cause);
        }
    }

    /// The uptime that it tells: whole seconds of its clock, from 2 on.
    pub(crate) fn uptime(&self) -> u64 {
        2 + UNIX + self.server_time - self.life.boot
    }

    /// The server restarts, without any item of its last life.
    pub(crate) fn restart(&mut self, now: Nanos, is_guarded: bool) {
        self.flush(if is_guarded { Cause::Forgotten } else { Cause::Loss });
        self.started = Some(now);
        self.server_time = (now + self.ahead) / SECOND;
        self.life = Life { boot: UNIX + self.server_time, pid: self.life.pid + 1 };
        self.cas = 0;
    }

    fn set(&mut self, key: &str, to: Option<Stored>, cause: Cause) {
        let after = to.as_ref().map(|stored| stored.value.clone());
        let expires = to.as_ref().and_then(|stored| stored.expires);
        let before = match to {
            Some(stored) => self.items.insert(key.to_owned(), stored),
            None => self.items.remove(key),
        };
        let before = before.map(|stored| stored.value);
        self.changes.push(Change { key: key.to_owned(), before, after, cause, expires });
    }

    fn store(&mut self, key: &str, value: Vec<u8>, expires: Option<u64>) -> Version {
        let cas = self.drawn.take().unwrap_or_else(|| self.draw());
        self.set(key, Some(Stored { value, cas, expires }), Cause::Command);
        self.version(cas)
    }

    /// The next version's number.
    pub(crate) fn draw(&mut self) -> u64 {
        self.cas += 1;
        self.cas
    }

    fn version(&self, cas: u64) -> Version {
        self.life.version(cas)
    }

    fn expiry(&self, ttl: Ttl) -> Option<u64> {
        match ttl {
            Ttl::For(seconds) | Ttl::Left(seconds) => Some(self.server_time + seconds),
            Ttl::Until(second) => Some(second),
            Ttl::Never => None,
        }
    }

    /// What its clock shows.
    pub(crate) fn time(&self) -> u64 {
        self.server_time
    }

    /// When a clock that is never late would show that second, in the world's time.
    pub(crate) fn world_time_of(&self, second: u64) -> Nanos {
        second.saturating_mul(SECOND).saturating_sub(self.ahead)
    }

    /// Runs a command, which may have drawn its version earlier. The server compares cas ids only:
    /// the connection checks that a version belongs to this life of the server.
    pub(crate) fn run(&mut self, command: &Command, drawn: Option<u64>) -> Reply {
        self.drawn = drawn;
        // An item that was stored after its expiry is never found.
        let over = |it: &Stored| it.expires.is_some_and(|at| at <= self.server_time);
        if self.items.get(command.key()).is_some_and(over) {
            self.set(command.key(), None, Cause::Expiry);
        }
        let found = self.items.get(command.key()).cloned();
        match (command, found) {
            (Command::Add { .. }, Some(_)) => Reply::Exists,
            (Command::Add { key, value, ttl }, None) => {
                with_version(self.store(key, value.clone(), self.expiry(*ttl)))
            }
            (Command::Get { .. }, Some(stored)) => Reply::Value(Item {
                version: self.version(stored.cas),
                remaining: stored
                    .expires
                    .map(|at| Duration::from_secs(at.saturating_sub(self.server_time))),
                fence: 0,
                value: stored.value,
            }),
            (Command::CompareAndSet { key, version, value, ttl }, Some(stored))
                if stored.cas == version.number() =>
            {
                with_version(self.store(key, value.clone(), self.expiry(*ttl)))
            }
            (Command::Put { key, version: None, value, ttl }, None) => {
                self.store(key, value.clone(), self.expiry(*ttl));
                Reply::Written
            }
            (Command::Put { version: None, .. }, Some(_)) => Reply::Exists,
            (Command::Put { key, version: Some(version), value, ttl }, Some(stored))
                if stored.cas == version.number() =>
            {
                self.store(key, value.clone(), self.expiry(*ttl));
                Reply::Written
            }
            (Command::Delete { key, version }, Some(stored)) if stored.cas == version.number() => {
                self.set(key, None, Cause::Command);
                Reply::Deleted
            }
            (
                Command::CompareAndSet { .. } | Command::Put { .. } | Command::Delete { .. },
                Some(_),
            ) => Reply::VersionMismatch,
            (Command::Append { key, value }, Some(stored)) => {
                self.store(key, [&stored.value[..], value].concat(), stored.expires);
                Reply::Written
            }
            (Command::Prepend { key, value }, Some(stored)) => {
                self.store(key, [value, &stored.value[..]].concat(), stored.expires);
                Reply::Written
            }
            (Command::Increment { key, by, .. }, Some(stored)) => {
                let number: u64 = String::from_utf8_lossy(&stored.value).parse().unwrap_or(0);
                let number = number.wrapping_add(*by);
                self.store(key, number.to_string().into_bytes(), stored.expires);
                Reply::Number(number)
            }
            (Command::Increment { key, initial: Some((first, ttl)), .. }, None) => {
                self.store(key, first.to_string().into_bytes(), self.expiry(*ttl));
                Reply::Number(*first)
            }
            (Command::Stamp { .. }, _) => {
                let cas = self.draw();
                with_version(self.version(cas))
            }
            (_, None) => Reply::Missing,
        }
    }
}

fn with_version(version: Version) -> Reply {
    Reply::Stored(StoredReply { version, fence: 0 })
}
