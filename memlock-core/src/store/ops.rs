//! Operations on items, and what a store replies.

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::lease::Lease;
use crate::name::Key;

/// One operation on one item.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Stores the value unless there is an item: [`Reply::Stored`] or [`Reply::Written`], else
    /// [`Reply::Exists`].
    Add {
        /// The item.
        key: &'a Key,
        /// What to store.
        value: &'a [u8],
        /// How long it lives.
        expiry: Expiry,
        /// What the caller needs to know of the stored item.
        returns: Returns,
    },
    /// Reads: [`Reply::Value`] or [`Reply::Missing`].
    Get {
        /// The item.
        key: &'a Key,
        /// Whether [`Item::fence`] is needed.
        fence: bool,
    },
    /// Stores the value if the item still has that version: [`Reply::Stored`] or
    /// [`Reply::Written`], else [`Reply::VersionMismatch`] or [`Reply::Missing`].
    CompareAndSet {
        /// The item.
        key: &'a Key,
        /// The version it must have.
        version: Version,
        /// What to store.
        value: &'a [u8],
        /// How long it lives from now.
        expiry: Expiry,
        /// What the caller needs to know of the stored item.
        returns: Returns,
    },
    /// Removes the item if it still has that version: [`Reply::Deleted`],
    /// [`Reply::VersionMismatch`] or [`Reply::Missing`].
    Delete {
        /// The item.
        key: &'a Key,
        /// The version it must have.
        version: Version,
    },
    /// Adds bytes to the end of the item's value: [`Reply::Written`] or [`Reply::Missing`]. An item
    /// that cannot grow is left as it is.
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
        initial: Option<(u64, Expiry)>,
    },
}

impl<'a> Op<'a> {
    /// Reads an item, without a fence.
    pub fn get(key: &'a Key) -> Op<'a> {
        Op::Get { key, fence: false }
    }

    /// The item it is about.
    pub fn key(&self) -> &'a Key {
        match *self {
            Op::Add { key, .. }
            | Op::Get { key, .. }
            | Op::CompareAndSet { key, .. }
            | Op::Delete { key, .. }
            | Op::Append { key, .. }
            | Op::Prepend { key, .. }
            | Op::Increment { key, .. } => key,
        }
    }

    /// Whether it makes sense to a server in that life: versions of another life mean nothing to
    /// the server, and such an operation is not even sent. The reply is
    /// [`Reply::VersionMismatch`].
    pub fn is_of(&self, epoch: Epoch) -> bool {
        match self {
            Op::CompareAndSet { version, .. } | Op::Delete { version, .. } => {
                version.epoch == epoch
            }
            _ => true,
        }
    }

    /// Whether it may change an item.
    pub fn changes(&self) -> bool {
        !matches!(self, Op::Get { .. })
    }

    /// Whether the reply is to carry a fence.
    pub fn wants_fence(&self) -> bool {
        match *self {
            Op::Add { returns, .. } | Op::CompareAndSet { returns, .. } => {
                returns == Returns::Fence
            }
            Op::Get { fence, .. } => fence,
            _ => false,
        }
    }
}

/// What the caller needs to know of an item that it stores. A store may spare itself the work for
/// what is not needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// Only that it was stored: [`Reply::Written`]. If the store has no room for the new value, the
    /// item is left as it was.
    Nothing,
    /// [`Reply::Stored`] with the version.
    Version,
    /// [`Reply::Stored`] with the version and a fence.
    Fence,
}

/// How long an item lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// At least this long: the store adds what its clock may be wrong by.
    After(Duration),
    /// Until the server's clock shows so much: see [`Store::time`](super::Store::time).
    At(Duration),
    /// As before: this is what [`Item::remaining`] said, for stores that need it again.
    Unchanged(Option<Duration>),
    /// For ever.
    Never,
}

impl From<Lease> for Expiry {
    fn from(lease: Lease) -> Expiry {
        Expiry::After(lease.duration())
    }
}

/// The reply to one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It was stored.
    Stored(Stored),
    /// It was stored, and has another version, which was not asked for.
    Written,
    /// There is an item already; nothing was stored.
    Exists,
    /// There is no such item.
    Missing,
    /// The item has another version, or the server is in another life than the one that gave this
    /// version.
    VersionMismatch,
    /// It was removed.
    Deleted,
    /// The item.
    Value(Item),
    /// The number after counting.
    Number(u64),
}

/// What became of an item that was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its version.
    pub version: Version,
    /// Greater than every fence given for this item before. 0 unless [`Returns::Fence`] was asked
    /// for. [`Guarantees::fences_rise`](super::Guarantees::fences_rise) tells across what it rises.
    pub fence: u64,
}

/// An item as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its value.
    pub value: Vec<u8>,
    /// Its version.
    pub version: Version,
    /// Its remaining time to live: at most this, and at least
    /// [`Guarantees::clock_error`](super::Guarantees::clock_error) less. `None` when it lives for
    /// ever.
    pub remaining: Option<Duration>,
    /// A fence that the client that stored this item can use: greater than every fence given for
    /// this item to others before. 0 unless it was asked for.
    pub fence: u64,
}

/// One life of one server. Everything a server gave out in one life is worthless in the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(u64, u64);

impl Epoch {
    /// Made of two numbers that together differ from life to life.
    pub const fn new(first: u64, second: u64) -> Epoch {
        Epoch(first, second)
    }
}

/// Which state of an item it was. No two states of an item within one epoch have the same version.
/// It means something to the store that gave it; everything else only compares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    epoch: Epoch,
    number: u64,
    note: u32,
}

impl Version {
    /// The version with that number, given in that epoch.
    pub const fn new(epoch: Epoch, number: u64) -> Version {
        Version { epoch, number, note: 0 }
    }

    /// The same version, with what the store keeps beside the value and needs to write it over.
    #[must_use]
    pub const fn with_note(self, note: u32) -> Version {
        Version { note, ..self }
    }

    /// The server's life in which it was given.
    pub const fn epoch(self) -> Epoch {
        self.epoch
    }

    /// The store's number.
    pub const fn number(self) -> u64 {
        self.number
    }

    /// What the store keeps beside the value.
    pub const fn note(self) -> u32 {
        self.note
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
