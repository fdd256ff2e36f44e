//! What tools ask a store for beyond its operations: all keys, values as they are, and whether what
//! keeps the items is fit for locks.

use std::time::Duration;

use crate::error::Result;

/// A server, or whatever keeps items in the place of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its short name, such as `10.0.0.7:11211`, a path, or `memory://name`.
    pub name: String,
    /// What it is, for sentences, such as `memcached at 10.0.0.7:11211`.
    pub title: String,
    /// Whether things are in it rather than on it.
    pub is_container: bool,
    /// How long an answer may take.
    pub timeout: Duration,
}

/// A connection of a tool to one node.
pub trait Admin {
    /// How long the shortest question takes.
    ///
    /// # Errors
    /// As for any read.
    fn round_trip(&mut self) -> Result<Duration>;

    /// The keys of all items that `wanted` wants.
    ///
    /// # Errors
    /// As for any read; [`ErrorKind::Protocol`](crate::ErrorKind::Protocol), with what to do, where
    /// the node does not tell its keys.
    fn keys(&mut self, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<String>>;

    /// The items of these keys, in their order; `None` for one that is not there.
    ///
    /// # Errors
    /// As for any read.
    fn values(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>>;

    /// Whether the node is fit for locks with leases of that length, and what to do if not.
    ///
    /// # Errors
    /// As for any read.
    fn health(&mut self, lease: Duration) -> Result<Vec<Finding>>;
}

/// An item's value, and how long it is kept yet; `None`: for ever.
pub type Value = (Content, Option<Duration>);

/// What is in an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The value.
    Bytes(Vec<u8>),
    /// More than memlock ever writes, which was not read: so many bytes.
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

/// How good something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Worth knowing, and nothing to mend.
    Note,
    /// Something should be mended.
    Warning,
    /// Locks cannot be trusted there.
    Bad,
}

/// One thing that was examined.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What was examined, in a word or two.
    pub what: &'static str,
    /// How good it is.
    pub verdict: Verdict,
    /// What was found.
    pub said: String,
    /// What to do.
    pub mend: Option<String>,
    /// The options with which the node should be started, besides those that it has.
    pub flags: Vec<String>,
    /// Whether nothing else need be tried, since locks do not work there at all.
    pub is_fatal: bool,
}

impl Finding {
    /// A finding without advice.
    pub fn new(what: &'static str, verdict: Verdict, said: impl Into<String>) -> Finding {
        let said = said.into();
        Finding { what, verdict, said, mend: None, flags: Vec::new(), is_fatal: false }
    }

    /// With what to do.
    #[must_use]
    pub fn mend(mut self, how: impl Into<String>) -> Finding {
        self.mend = Some(how.into());
        self
    }

    /// With an option to start the node with.
    #[must_use]
    pub fn flag(mut self, flag: impl Into<String>) -> Finding {
        self.flags.push(flag.into());
        self
    }

    /// Without it locks do not work at all.
    #[must_use]
    pub fn fatal(mut self) -> Finding {
        self.is_fatal = true;
        self
    }
}
