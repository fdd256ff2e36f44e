//! The outcome of a release, an extension or a renewal.

use std::fmt;

use crate::error::Answer;

/// The outcome of a release.
#[must_use = "a lock that was lost may have been another's meanwhile: look for `Release::Lost`"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The lock or permit is free now, and no other holder had it until now: also if the lease had
    /// ended, and the server still had the item.
    Released,
    /// The server no longer had the lock or permit for this holder: the lease expired, or the
    /// server lost the item. Another holder may have had it meanwhile. Also if the lease had ended,
    /// and the item that the server still had may be of a request that was late.
    Lost,
    /// This guard holds nothing: it was released before, or belongs to the parent of this process.
    NotHeld,
}

/// The outcome of an extension.
#[must_use = "what was lost is not held any more: look for `Extension::Lost`"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// The lock or permit is held for the new lease, counted from when the call was made. No other
    /// holder had it until now: also if the old lease had ended, and the server still had the item.
    Extended,
    /// The server no longer had the lock or permit for this holder: the lease expired, or the
    /// server lost the item. Another holder may have had it meanwhile. Also if the lease had ended,
    /// and the item that the server still had may be of a request that was late.
    Lost,
    /// This guard holds nothing: it was released before, or belongs to the parent of this process.
    NotHeld,
}

impl From<Release> for Answer {
    fn from(release: Release) -> Answer {
        match release {
            Release::Released => Answer::Ok,
            Release::Lost => Answer::Lost,
            Release::NotHeld => Answer::NotHeld,
        }
    }
}

impl From<Extension> for Answer {
    fn from(extension: Extension) -> Answer {
        match extension {
            Extension::Extended => Answer::Ok,
            Extension::Lost => Answer::Lost,
            Extension::NotHeld => Answer::NotHeld,
        }
    }
}

/// Why a renewed lock or permit was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The lease could not be renewed before it expired: the server was unreachable, or this
    /// process was stopped.
    Expired,
    /// The lock or permit was gone from the server, or had another owner: the server lost the item,
    /// or an operator removed it.
    Gone,
    /// The lock or permit was held for as long as `max_hold` allows.
    MaxHold,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Expired => "it could not be renewed before its lease was over",
            Loss::Gone => "it was gone from the server, or another's",
            Loss::MaxHold => "it was held for as long as was allowed",
        })
    }
}
