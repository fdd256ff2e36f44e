//! Losses that a holder is told of.

use std::fmt;
use std::time::Duration;

use memlock_core::Answer;

use super::verdict::Verdict;
use crate::history::Call;

/// Checks the answers "lost" of these calls. Before the deadline such an answer is true only from
/// `lost_from` on, the moment from which the server may have lost what was held. `text` says what
/// was lost.
pub(super) fn are_told_truly<'a>(
    calls: impl Iterator<Item = &'a &'a Call>,
    deadline: Duration,
    lost_from: impl Fn() -> Option<Duration>,
    text: fmt::Arguments<'_>,
    verdict: &mut Verdict,
) {
    let is_early = |call: &&&Call| call.answer() == Some(Answer::Lost) && call.ended() < deadline;
    for lost in calls.filter(is_early) {
        match lost_from() {
            Some(from) if from <= lost.ended() => verdict.losses.push(text.to_string()),
            _ => verdict.breach(text),
        }
    }
}
