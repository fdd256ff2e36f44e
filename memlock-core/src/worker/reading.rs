//! What a job is about to read, and what was read of it ahead.
//!
//! It is handed to the job for one turn, and serves only for the first thing that the job asks in that
//! turn. So nothing that the job itself has done is newer.

use std::time::Duration;

use crate::clock::Moment;
use crate::store::{Op, Reply};

/// For how long what was read counts as just read, from before it was asked for.
pub(super) const FRESH: Duration = Duration::from_millis(50);

/// What a waiter reads next if nothing arrives for it: its queue, its target or both.
pub(crate) struct Reading<'a> {
    pub(crate) queue: Option<Op<'a>>,
    pub(crate) target: Option<Op<'a>>,
}

impl<'a> Reading<'a> {
    /// The operations, in their order.
    pub(super) fn ops(&self) -> impl Iterator<Item = Op<'a>> {
        self.queue.into_iter().chain(self.target)
    }

    /// Takes the replies to them off all that was read. `asked`: a moment before that.
    pub(super) fn answered(
        &self,
        asked: Moment,
        replies: &mut impl Iterator<Item = Reply>,
    ) -> ReadAhead {
        let mut reply = |op: &Option<Op<'a>>| op.as_ref().and_then(|_| replies.next());
        ReadAhead { asked, queue: reply(&self.queue), target: reply(&self.target) }
    }
}

/// What was read ahead for one waiter.
pub(crate) struct ReadAhead {
    asked: Moment,
    pub(crate) queue: Option<Reply>,
    pub(crate) target: Option<Reply>,
}

impl ReadAhead {
    /// Whether it is what the waiter is about to read now.
    pub(crate) fn serves(&self, target: bool, queue: bool, now: Moment) -> bool {
        (self.target.is_some(), self.queue.is_some()) == (target, queue) && self.is_fresh(now)
    }

    pub(super) fn is_fresh(&self, now: Moment) -> bool {
        now.since(self.asked) <= FRESH
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Keyspace;

    #[test]
    fn what_was_read_serves_for_the_same_questions_and_not_for_long() {
        let key = Keyspace::default().lock(b"x");
        let asked = Moment::from_boot(Duration::from_secs(9));
        let later = |ms| asked + Duration::from_millis(ms);
        for (queue, target) in [(true, true), (false, true), (true, false)] {
            let op = |is_asked: bool| is_asked.then(|| Op::get(&key));
            let reading = Reading { queue: op(queue), target: op(target) };
            let both = [Reply::Missing, Reply::Exists];
            let mut replies = both.clone().into_iter().skip(usize::from(!queue));
            let ahead = reading.answered(asked, &mut replies);
            assert_eq!(ahead.queue, queue.then_some(Reply::Missing));
            assert_eq!(ahead.target, target.then_some(Reply::Exists));
            assert_eq!(replies.len(), usize::from(!target));
            assert!(ahead.serves(target, queue, later(50)));
            assert!(!ahead.serves(target, queue, later(51)));
            assert!(!ahead.serves(!target, queue, asked) && !ahead.serves(target, !queue, asked));
            // A store that gave too few replies.
            let none = reading.answered(asked, &mut both.into_iter().skip(2));
            assert!(!none.serves(target, queue, asked));
        }
    }
}
