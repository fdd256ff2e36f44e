//! Operations on items, and the replies of a store.

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::lease::Lease;
use crate::name::Key;

/// One operation on one item.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Stores the value unless the item exists: [`Reply::Stored`] or [`Reply::Written`], else
    /// [`Reply::Exists`].
    Add {
        /// The item.
        key: &'a Key,
        /// The value to store.
        value: &'a [u8],
        /// How long the item lives.
        expiry: Expiry,
        /// What the reply has to contain.
        returns: Returns,
        /// In which states of the server: otherwise [`Reply::NotAdmitted`].
        admission: Admission,
    },
    /// Reads the item: [`Reply::Value`] or [`Reply::Missing`].
    Get {
        /// The item.
        key: &'a Key,
        /// Whether [`Item::fence`] is needed.
        fence: bool,
    },
    /// Stores the value if the item still has this version: [`Reply::Stored`] or
    /// [`Reply::Written`], else [`Reply::VersionMismatch`] or [`Reply::Missing`].
    CompareAndSet {
        /// The item.
        key: &'a Key,
        /// The version that the item must have.
        version: Version,
        /// The value to store.
        value: &'a [u8],
        /// How long the item lives from now.
        expiry: Expiry,
        /// What the reply has to contain.
        returns: Returns,
    },
    /// Removes the item if it still has this version: [`Reply::Deleted`],
    /// [`Reply::VersionMismatch`] or [`Reply::Missing`].
    Delete {
        /// The item.
        key: &'a Key,
        /// The version that the item must have.
        version: Version,
    },
    /// Appends bytes to the item's value: [`Reply::Written`] or [`Reply::Missing`]. An item that
    /// cannot grow is left unchanged.
    Append {
        /// The item.
        key: &'a Key,
        /// The bytes to append.
        value: &'a [u8],
    },
    /// Prepends bytes to the item's value; otherwise as [`Op::Append`].
    Prepend {
        /// The item.
        key: &'a Key,
        /// The bytes to prepend.
        value: &'a [u8],
    },
    /// Adds to a decimal number: [`Reply::Number`] with the new number, or [`Reply::Missing`].
    Increment {
        /// The item.
        key: &'a Key,
        /// The number to add.
        by: u64,
        /// If there is no item: store this number with this lifetime, instead of replying
        /// [`Reply::Missing`].
        initial: Option<(u64, Expiry)>,
    },
}

impl<'a> Op<'a> {
    /// Adds an item, whatever the state of the server.
    pub fn add(key: &'a Key, value: &'a [u8], expiry: Expiry, returns: Returns) -> Op<'a> {
        Op::Add { key, value, expiry, returns, admission: Admission::Always }
    }

    /// Reads an item, without a fence.
    pub fn get(key: &'a Key) -> Op<'a> {
        Op::Get { key, fence: false }
    }

    /// The key of the item.
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

    /// Whether the operation is valid in this epoch. A version of another epoch means nothing to
    /// the server, so such an operation is not even sent; the reply is [`Reply::VersionMismatch`].
    pub fn is_of(&self, epoch: Epoch) -> bool {
        match self {
            Op::CompareAndSet { version, .. } | Op::Delete { version, .. } => {
                version.epoch == epoch
            }
            _ => true,
        }
    }

    /// Whether the operation may change an item.
    pub fn changes(&self) -> bool {
        !matches!(self, Op::Get { .. })
    }

    /// Whether the reply has to contain a fence.
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

/// In which states of the server an item is added. On a store without a
/// [`Guard`](super::recovery::Guard) no server ever recovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// In all of them.
    Always,
    /// It is a new grant: not while the server recovers.
    Grant,
    /// It puts back what was granted or confirmed in this earlier life: only in another life, and
    /// only while the server recovers.
    Reclaim(Epoch),
}

/// What the reply to a store operation has to contain. A store may save work for what is not
/// needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// Only that the item was stored: [`Reply::Written`]. If the store has no room for the new
    /// value, the item is left unchanged.
    Nothing,
    /// [`Reply::Stored`] with the version.
    Version,
    /// [`Reply::Stored`] with the version and a fence.
    Fence,
}

/// How long an item lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// At least this long: the store adds the possible error of its clock.
    After(Duration),
    /// Until the server's clock shows this time: see [`Store::time`](super::Store::time).
    At(Duration),
    /// Unchanged. The value is the [`Item::remaining`] that was read, for stores that need it
    /// again.
    Unchanged(Option<Duration>),
    /// Forever.
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
    /// The item was stored.
    Stored(Stored),
    /// The item was stored, and has a new version, which was not requested.
    Written,
    /// The item exists already; nothing was stored.
    Exists,
    /// There is no such item.
    Missing,
    /// The item has another version, or this version belongs to another epoch of the server.
    VersionMismatch,
    /// The server was not asked, because of its state: see [`Admission`].
    NotAdmitted,
    /// The item was removed.
    Deleted,
    /// The item.
    Value(Item),
    /// The new number.
    Number(u64),
}

/// The result of storing an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its version.
    pub version: Version,
    /// Greater than every fence given for this item before. Valid only if [`Returns::Fence`] was
    /// requested. [`Guarantees::fences_rise`](super::Guarantees::fences_rise) states across which
    /// events it rises.
    pub fence: u64,
}

/// An item as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its value.
    pub value: Vec<u8>,
    /// Its version.
    pub version: Version,
    /// The remaining time to live: at most this, and at least this less
    /// [`Guarantees::clock_error`](super::Guarantees::clock_error). `None` if the item never
    /// expires.
    pub remaining: Option<Duration>,
    /// A fence for the client that stored this item: greater than every fence given for this item
    /// to others before. Valid only if it was requested.
    pub fence: u64,
}

/// One life of one server. Versions of one epoch are not valid in the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(u64, u64);

impl Epoch {
    /// An epoch made of two numbers that together differ between any two lives.
    pub const fn new(first: u64, second: u64) -> Epoch {
        Epoch(first, second)
    }
}

/// A version: identifies one state of an item. No two states of an item within one epoch have the
/// same version. Only the store that gave it interprets it; all other code only compares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    epoch: Epoch,
    number: u64,
    note: u32,
}

impl Version {
    /// The version with this number, given in this epoch.
    pub const fn new(epoch: Epoch, number: u64) -> Version {
        Version { epoch, number, note: 0 }
    }

    /// The same version, with data that the store keeps beside the value and needs to overwrite it.
    #[must_use]
    pub const fn with_note(self, note: u32) -> Version {
        Version { note, ..self }
    }

    /// The epoch in which the version was given.
    pub const fn epoch(self) -> Epoch {
        self.epoch
    }

    /// The store's number.
    pub const fn number(self) -> u64 {
        self.number
    }

    /// The data that the store keeps beside the value.
    pub const fn note(self) -> u32 {
        self.note
    }
}

/// A batch that was not completed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What went wrong.
    pub error: Error,
    /// Whether the server may have received a part of the batch: if so, its effect is unknown.
    pub sent: bool,
}

impl Failure {
    /// The failure of something that came before the batch was sent, and changed no lock.
    pub(crate) fn unsent(error: Error) -> Failure {
        let sent = false;
        Failure { error: Failure { error, sent }.of_read(), sent }
    }

    /// A store gave fewer replies than there were operations.
    pub(crate) fn no_reply() -> Failure {
        let error = Error::new(ErrorKind::Internal, "The store gave no reply.");
        Failure { error, sent: true }
    }

    /// The same failure of a batch that may have changed something before.
    #[cfg(any(feature = "mysql", feature = "postgresql"))]
    pub(crate) fn behind(self, has_changed: bool) -> Failure {
        let sent = self.sent || has_changed;
        let error = match self.error.kind() {
            ErrorKind::Unreachable if sent => self.error.of_kind(ErrorKind::Unknown),
            _ => self.error,
        };
        Failure { error, sent }
    }

    /// The error of a batch that only read: nothing was changed, so its outcome is not unknown.
    pub(crate) fn of_read(self) -> Error {
        match self.error.kind() {
            ErrorKind::Unknown => self.error.of_kind(ErrorKind::Unreachable),
            _ => self.error,
        }
    }
}
