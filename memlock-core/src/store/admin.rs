//! What tools request from a store beyond its operations: all keys, raw values, and whether the
//! node is suitable for locks.

#[cfg(all(
    feature = "admin",
    any(feature = "memcached", feature = "mysql", feature = "postgresql", feature = "redis")
))]
pub(in crate::store) mod skew;

use std::time::Duration;

use crate::error::Result;

/// A server, or what stores the items instead of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The short name, such as `10.0.0.7:11211`, a path, or `memory://name`.
    pub name: String,
    /// The title for messages, such as `memcached at 10.0.0.7:11211`.
    pub title: String,
    /// Whether messages say that items are in it rather than on it.
    pub is_container: bool,
    /// How long a reply may take.
    pub timeout: Duration,
}

/// A connection of a tool to one node.
pub trait Admin {
    /// Measures the shortest round trip.
    ///
    /// # Errors
    /// As for any read.
    fn round_trip(&mut self) -> Result<Duration>;

    /// The keys of all items that `wanted` selects.
    ///
    /// # Errors
    /// As for any read; [`ErrorKind::Protocol`](crate::ErrorKind::Protocol), with what to do, if
    /// the node does not list its keys.
    fn keys(&mut self, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<String>>;

    /// The items with these keys, in the same order; `None` for an item that does not exist.
    ///
    /// # Errors
    /// As for any read.
    fn values(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>>;

    /// Whether the node is suitable for locks with leases of this length, and what to do if not.
    ///
    /// # Errors
    /// As for any read.
    fn health(&mut self, lease: Duration) -> Result<Vec<Finding>>;
}

/// An item's value and its remaining time to live; `None`: forever.
pub type Value = (Content, Option<Duration>);

/// The content of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The value.
    Bytes(Vec<u8>),
    /// Larger than any value that memlock writes, and not read: the size in bytes.
    TooLarge(usize),
}

impl Content {
    /// The value, if it was read.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Content::Bytes(bytes) => Some(bytes),
            Content::TooLarge(_) => None,
        }
    }
}

/// The rating of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Worth knowing; nothing to fix.
    Note,
    /// Something should be fixed.
    Warning,
    /// Locks cannot be trusted on this node.
    Bad,
}

/// One examined property.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The property that was examined, in one or two words.
    pub what: &'static str,
    /// The rating.
    pub verdict: Verdict,
    /// What was found.
    pub said: String,
    /// What to do.
    pub mend: Option<String>,
    /// Options with which the node should be started, in addition to its present ones.
    pub flags: Vec<String>,
    /// Whether further checks are pointless, because locks do not work there at all.
    pub is_fatal: bool,
}

impl Finding {
    /// A finding without advice.
    pub fn new(what: &'static str, verdict: Verdict, said: impl Into<String>) -> Finding {
        let said = said.into();
        Finding { what, verdict, said, mend: None, flags: Vec::new(), is_fatal: false }
    }

    /// Adds advice.
    #[must_use]
    pub fn mend(mut self, how: impl Into<String>) -> Finding {
        self.mend = Some(how.into());
        self
    }

    /// Adds an option to start the node with.
    #[must_use]
    pub fn flag(mut self, flag: impl Into<String>) -> Finding {
        self.flags.push(flag.into());
        self
    }

    /// Marks the finding as fatal: without this property locks do not work at all.
    #[must_use]
    pub fn fatal(mut self) -> Finding {
        self.is_fatal = true;
        self
    }
}
