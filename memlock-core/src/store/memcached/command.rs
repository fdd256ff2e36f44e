//! The commands that carry out operations.
#![cfg_attr(
    not(any(fuzzing, test)),
    allow(unreachable_pub, reason = "the fuzzers read commands back")
)]
#![allow(missing_docs, reason = "the fields are the parts of the command line")]

use super::ttl::Ttl;
use crate::name::Key;
use crate::store::{Op, Returns};

/// One command.
#[derive(Clone, Copy, Debug)]
pub enum Command<'a> {
    /// `ms` that stores unless the item exists. It returns the version; but a server without room
    /// removes the item with that key.
    Add { key: &'a Key, value: &'a [u8], ttl: Ttl },
    /// `mg`.
    Get { key: &'a Key },
    /// `ms` with a version. It returns the new version; but a server without room removes the item.
    CompareAndSet { key: &'a Key, cas: u64, value: &'a [u8], ttl: Ttl },
    /// `add`, or `cas` with a version. They leave the item unchanged if there is no room, and
    /// return no version.
    Classic { key: &'a Key, cas: Option<u64>, flags: u32, value: &'a [u8], ttl: Ttl },
    /// `md` with a version.
    Delete { key: &'a Key, cas: u64 },
    /// `append`.
    Append { key: &'a Key, value: &'a [u8] },
    /// `prepend`.
    Prepend { key: &'a Key, value: &'a [u8] },
    /// `ma`.
    Increment { key: &'a Key, by: u64, initial: Option<(u64, Ttl)> },
    /// `ma` with an increment of 0, for the version that it draws.
    Stamp { key: &'a Key },
}

impl<'a> Command<'a> {
    /// The commands for an operation. `refuses`: the server refuses to store when it is full, so
    /// classic commands are needed to avoid losing items. Where a version is needed, a second
    /// command reads it.
    pub(super) fn of(op: &Op<'a>, refuses: bool) -> (Command<'a>, Option<Command<'a>>) {
        let (key, version, value, expiry, returns) = match *op {
            Op::Add { key, value, expiry, returns, .. } => (key, None, value, expiry, returns),
            Op::CompareAndSet { key, version, value, expiry, returns } => {
                (key, Some(version), value, expiry, returns)
            }
            Op::Get { key, .. } => return (Command::Get { key }, None),
            Op::Delete { key, version } => {
                return (Command::Delete { key, cas: version.number() }, None);
            }
            Op::Append { key, value } => return (Command::Append { key, value }, None),
            Op::Prepend { key, value } => return (Command::Prepend { key, value }, None),
            Op::Increment { key, by, initial } => {
                let initial = initial.map(|(first, expiry)| (first, Ttl::of(expiry)));
                return (Command::Increment { key, by, initial }, None);
            }
        };
        let (ttl, cas) = (Ttl::of(expiry), version.map(|version| version.number()));
        let flags = version.map_or(0, |version| version.note());
        let classic = Command::Classic { key, cas, flags, value, ttl };
        match (returns, refuses, cas) {
            (Returns::Nothing, ..) => (classic, None),
            (_, true, _) => (classic, Some(Command::Get { key })),
            (_, false, None) => (Command::Add { key, value, ttl }, None),
            (_, false, Some(cas)) => (Command::CompareAndSet { key, cas, value, ttl }, None),
        }
    }
}
