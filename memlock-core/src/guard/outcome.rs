//! How a release, an extension or a renewal ended.

use std::fmt;

use crate::error::Answer;

/// How a release ended.
#[must_use = "a lock that was lost may have been another's meanwhile: look for `Release::Lost`"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// It was ours until now, and is free.
    Released,
    /// It was no longer ours when we got there: the lease ran out, or the server lost it.
    Lost,
    /// This handle holds nothing: it was unlocked before, or belongs to the parent of this process.
    NotHeld,
}

/// How an extension ended.
#[must_use = "what was lost is not held any more: look for `Extension::Lost`"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// It is ours for the new lease, counted from when the call was made.
    Extended,
    /// It was no longer ours when we got there: the lease ran out, or the server lost it.
    Lost,
    /// This handle holds nothing: it was unlocked before, or belongs to the parent of this process.
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

/// Why something that was kept is not held any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It could not be renewed before its lease was over: the server was out of reach, or this
    /// process stood still.
    Expired,
    /// It was found to be gone, or another's: the server has lost it, or an operator has taken it
    /// away.
    Gone,
    /// It was held for as long as was allowed.
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
