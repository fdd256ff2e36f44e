//! A store: a function from a batch of operations to replies. One call is one round trip.
//!
//! Everything above is written once over this trait. A store decides nothing: each operation is
//! atomic on its own, and what a reply means is the primitive's business. A test store is a wrapper
//! that loses, delays, evicts or restarts; a new store is one file that passes the same behaviour
//! suite, plus one line in `open`.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::hash::{fnv1a, mix};
use crate::lease::Ttl;
use crate::mutation::{self, Mutation};
use crate::name::Key;

pub(crate) mod memcached;
pub mod memory;
pub(crate) mod url;

use url::Url;

/// One operation on one item.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Stores the value unless there is an item: [`Reply::Stored`] or [`Reply::Exists`].
    Add {
        /// The item.
        key: &'a Key,
        /// What to store.
        value: &'a [u8],
        /// How long it lives.
        ttl: Ttl,
    },
    /// Reads: [`Reply::Value`] or [`Reply::Missing`].
    Get {
        /// The item.
        key: &'a Key,
    },
    /// Stores the value if the item still has that version: [`Reply::Stored`], [`Reply::VersionMismatch`]
    /// or [`Reply::Missing`].
    CompareAndSet {
        /// The item.
        key: &'a Key,
        /// The version it must have.
        version: Version,
        /// What to store.
        value: &'a [u8],
        /// How long it lives from now.
        ttl: Ttl,
    },
    /// Stores the value, where there is no item if `version` is `None`, else if the item still has
    /// that version: [`Reply::Written`], [`Reply::Exists`], [`Reply::VersionMismatch`] or
    /// [`Reply::Missing`]. Unlike [`Op::Add`] and [`Op::CompareAndSet`] it does not tell the new version;
    /// but a server that has no room leaves the item as it is.
    Put {
        /// The item.
        key: &'a Key,
        /// The version it must have, if it must be there.
        version: Option<Version>,
        /// What plain clients note about the value.
        flags: u32,
        /// What to store.
        value: &'a [u8],
        /// How long it lives from now, or until when.
        ttl: Ttl,
    },
    /// Removes the item if it still has that version: [`Reply::Deleted`], [`Reply::VersionMismatch`] or
    /// [`Reply::Missing`].
    Delete {
        /// The item.
        key: &'a Key,
        /// The version it must have.
        version: Version,
    },
    /// Adds bytes to the item's end: [`Reply::Written`] or [`Reply::Missing`]. An item that cannot
    /// grow, because the server has no room, is left as it is.
    Append {
        /// The item.
        key: &'a Key,
        /// What to add.
        value: &'a [u8],
    },
    /// Adds bytes in front of the item's value: as [`Op::Append`].
    Prepend {
        /// The item.
        key: &'a Key,
        /// What to add.
        value: &'a [u8],
    },
    /// Adds to a decimal number: [`Reply::Number`] with the new number, or [`Reply::Missing`].
    Increment {
        /// The item.
        key: &'a Key,
        /// How much to add.
        by: u64,
        /// Where there is no item: begin with this number and live this long, instead of answering
        /// [`Reply::Missing`].
        initial: Option<(u64, Ttl)>,
    },
    /// Gives a version greater than all that were given before: [`Reply::Stored`]. A store whose
    /// versions rise in the order in which items are stored has nothing to do for it, and answers
    /// [`Reply::Needless`].
    Stamp {
        /// An item that exists for nothing else.
        key: &'a Key,
    },
}

impl Op<'_> {
    /// Whether it makes sense to a server in that life: versions of another life mean nothing to
    /// it, and such an operation is not even sent. It is answered with [`Reply::VersionMismatch`].
    pub fn is_of(&self, life: Incarnation) -> bool {
        match self {
            Op::CompareAndSet { version, .. }
            | Op::Delete { version, .. }
            | Op::Put { version: Some(version), .. } => version.incarnation == life,
            _ => true,
        }
    }

    /// Whether it may change an item that anybody else reads.
    pub fn changes(&self) -> bool {
        !matches!(self, Op::Get { .. } | Op::Stamp { .. })
    }
}

/// What a store answers to one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It was stored, and this is the version it got.
    Stored(Version),
    /// It was written, and has another version, which is not told.
    Written,
    /// There is an item already; nothing was stored.
    Exists,
    /// There is no such item.
    Missing,
    /// The item has another version, or the server is not the incarnation that gave this one.
    VersionMismatch,
    /// It was removed.
    Deleted,
    /// The item.
    Value(Item),
    /// The number after counting.
    Number(u64),
    /// Versions rise by themselves: that which an item got is as good as a stamp.
    Needless,
}

/// An item as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its value.
    pub value: Vec<u8>,
    /// Its version.
    pub version: Version,
    /// Its remaining time to live in the server's whole seconds: it has at least two seconds less
    /// and at most this. `None` when it lives for ever.
    pub remaining: Option<Duration>,
    /// What plain clients note about the value, such as its type; 0 on what memlock writes.
    pub flags: u32,
}

/// One life of one server. Everything a server gave out in one life is worthless in the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation {
    /// When the server started, in Unix seconds of its own clock.
    pub boot: u64,
    /// Its process id, or whatever tells two lives in the same second apart.
    pub pid: u64,
}

/// Which state of an item it was: no two stores within one incarnation get the same number. It
/// rises from store to store only where the server sees to it; see [`Op::Stamp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// The server's life in which it was given.
    pub incarnation: Incarnation,
    /// The server's rising number (memcached's cas id).
    pub cas: u64,
}

impl Version {
    /// A fencing token, if the version was given after the item was stored: it rises from holder to
    /// holder and across restarts, as long as the server stores fewer than a million items a second
    /// on average and its clock is not set back.
    pub fn fence(self) -> u64 {
        if mutation::has(Mutation::FenceWithoutBoot) {
            return self.cas;
        }
        self.incarnation.boot.saturating_mul(1_000_000).saturating_add(self.cas)
    }

    /// The fence of who got an item by this version, and asked for a [`Op::Stamp`] behind it.
    pub(crate) fn fence_by(self, stamp: Option<&Reply>) -> u64 {
        match stamp {
            Some(&Reply::Stored(stamp)) if !mutation::has(Mutation::FenceWithoutStamp) => {
                stamp.fence()
            }
            _ => self.fence(),
        }
    }
}

/// Decides which of several servers owns some keys: a hash of the key they are all found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route(u64);

impl Route {
    /// The route of everything that belongs to `key`.
    pub fn of(key: &Key) -> Route {
        Route(mix(fnv1a(key.as_str().as_bytes())))
    }

    /// The pinned hash.
    pub fn hash(self) -> u64 {
        self.0
    }
}

/// A batch that did not come to its end.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What went wrong.
    pub error: Error,
    /// Whether the server may have got some of it: if so, what it did is not known.
    pub sent: bool,
}

impl Failure {
    /// The error of a batch that only read: nothing was changed, so there is nothing unknown about
    /// it.
    pub(crate) fn of_read(self) -> Error {
        match self.error.kind() {
            ErrorKind::Unknown => Error::new(ErrorKind::Unreachable, self.error.to_string()),
            _ => self.error,
        }
    }
}

/// A place that keeps items with versions and a time to live.
pub trait Store: Send + Sync + fmt::Debug {
    /// Runs `ops` in order on the server that owns `route`, each atomic on its own, in one round
    /// trip, and answers each with one reply.
    ///
    /// # Errors
    /// A [`Failure`] says whether the server may have got the request.
    fn run(&self, route: Route, ops: &[Op<'_>]) -> std::result::Result<Vec<Reply>, Failure>;

    /// As [`Store::run`], and calls `meanwhile`, at most once, as soon as the request has left; a
    /// store that cannot tell when that is calls it before.
    ///
    /// # Errors
    /// As [`Store::run`].
    fn run_while(
        &self,
        route: Route,
        ops: &[Op<'_>],
        meanwhile: &dyn Fn(),
    ) -> std::result::Result<Vec<Reply>, Failure> {
        meanwhile();
        self.run(route, ops)
    }

    /// Which of several servers owns `route`: what goes to one of them can go in one batch.
    fn server_of(&self, _route: Route) -> usize {
        0
    }

    /// Whether the server that owns `route` did not answer its last request in time, a short while
    /// ago. Whatever can do without that server then leaves it alone; calls of the user are tried
    /// all the same.
    fn is_silent(&self, _route: Route) -> bool {
        false
    }

    /// Closes the connections that nobody uses just now.
    fn disconnect(&self) {}

    /// The time of the server that owns `route`, in its own seconds, as far as it can be told
    /// without asking: rather too late than too early. They are the seconds of [`Ttl::Until`].
    /// `None` before the first contact.
    fn time(&self, route: Route) -> Option<u64>;

    /// The address by which this process was last connected to the server that owns `route`: where
    /// others who use that server can most likely reach us. `None` when there is none.
    fn local_address(&self, _route: Route) -> Option<IpAddr> {
        None
    }

    /// The servers, in the order of [`Store::server_of`]: for tools that look at them from outside.
    /// None where there is nothing to connect to.
    fn servers(&self) -> Vec<Address> {
        Vec::new()
    }
}

/// Where a server is, and how long it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Address {
    /// `host:port`, by which people and hashing know it.
    pub name: String,
    /// Its host's name or address.
    pub host: String,
    /// Its TCP port.
    pub port: u16,
    /// The limit of dialling it.
    pub connect_timeout: Duration,
    /// The limit of each wait for it.
    pub io_timeout: Duration,
}

/// The store that an URL names, for those who want to put something of their own between it and a
/// [`Client`](crate::Client). The client's own parameters are not known here.
///
/// # Errors
/// [`ErrorKind::Config`] for an URL that cannot be read.
pub fn connect(url: &str, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
    let mut url = Url::parse(url)?;
    let store = open(&mut url, clock)?;
    url.finish()?;
    Ok(store)
}

/// Makes the store that an URL names. The parameters it knows are taken out of `url`.
pub(crate) fn open(url: &mut Url, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
    match url.scheme.as_str() {
        "memcached" => Ok(Arc::new(memcached::Memcached::open(url, clock)?)),
        "memory" => Ok(memory::Memory::named(&url.authority, clock)?),
        other => Err(Error::config(format!(
            "The URL's scheme {other:?} is not known. The known ones are memcached:// and memory://."
        ))),
    }
}
