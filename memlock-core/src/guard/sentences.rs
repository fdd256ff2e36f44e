//! Messages about a lock or a permit that is, or was, held: how a release, an extension or a check
//! ended.

use std::time::Duration;

use super::outcome::Loss;
use crate::clock::Moment;
use crate::error::Answer;
use crate::report::{Report, brief};
use crate::subject::Subject;
use crate::target::Target;

/// What is known of a lock or a permit that is, or was, held.
pub(crate) struct LeaseState {
    /// Whether this process, rather than its parent, acquired it.
    pub(crate) ours: bool,
    pub(crate) lease: Duration,
    /// `None`: no longer known.
    pub(crate) deadline: Option<Moment>,
    pub(crate) now: Moment,
    /// Why the renewal thread found it lost.
    pub(crate) loss: Option<Loss>,
}

/// The report on a release, an extension or a check. `what`: the part of the target
/// that the holder has, for messages.
pub(crate) fn ended(
    answer: Answer,
    target: &Target,
    what: impl FnOnce(&Subject) -> String,
    state: impl FnOnce() -> LeaseState,
) -> Report {
    if answer == Answer::Ok {
        return answer.into();
    }
    let (subject, state) = (target.subject(), state());
    let what = what(&subject);
    let lease = brief(state.lease);
    let sentence = match answer {
        Answer::NotHeld if state.ours => format!("The {what} is not held: it was released before."),
        Answer::NotHeld => {
            format!(
                "The {what} is not held by this process: its parent acquired it, and a fork holds \
                 nothing."
            )
        }
        Answer::Lost => {
            let why = match (
                state.loss,
                state.deadline.map(|deadline| (deadline <= state.now, deadline)),
            ) {
                (Some(Loss::MaxHold), _) => "it was held for as long as max_hold allows".to_owned(),
                (Some(Loss::Expired), _) => {
                    format!("it could not be renewed before its lease of {lease} was over")
                }
                (None, Some((true, deadline))) => {
                    format!("its lease of {lease} ended {} ago", brief(state.now.since(deadline)))
                }
                (None, None) => format!("its lease of {lease} was over, or {GONE}"),
                (Some(Loss::Gone), _) | (None, Some((false, _))) => {
                    format!("before its lease of {lease} was over, {GONE}")
                }
            };
            format!("The {what} was lost: {why}.")
        }
        Answer::TimedOut => format!("The {what} was not lost before the limit of the wait passed."),
        other => return other.into(),
    };
    Report::naming(subject, answer, |_| sentence)
}

/// Why a lock or permit is lost before its lease has expired.
const GONE: &str =
    "the server lost the item (by a restart, a flush or an eviction), or it was released by force";
