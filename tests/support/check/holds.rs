//! The holds of mutexes.

use std::time::Duration;

use memlock_core::Answer;

use crate::history::{Call, Op};

/// One acquisition of a mutex, from its grant to its end.
#[derive(Debug)]
pub struct HoldInterval<'a> {
    /// The call that was granted it.
    pub lock: &'a Call,
    /// When the grant was known.
    pub granted: Duration,
    /// Its fence.
    pub fence: u64,
    /// Until when it is certainly held.
    pub deadline: Duration,
    /// The extensions of it.
    pub extended: Vec<&'a Call>,
    /// The releases of it: more than one if the first failed.
    pub released: Vec<&'a Call>,
    /// The critical section, if it was entered without a lease.
    pub entered_late: Option<&'a Call>,
}

impl HoldInterval<'_> {
    /// Until when no other client may be granted it.
    pub fn until(&self) -> Duration {
        let lost = self.extended.iter().find(|call| call.answer() == Some(Answer::Lost));
        let given_up = self.released.first().into_iter().chain(lost).map(|call| call.began).min();
        self.deadline.min(given_up.unwrap_or(Duration::MAX))
    }

    /// Whether it was held when the grant was known. A thread that slept from the grant until past
    /// its deadline got no wrong answer, and was never inside.
    pub fn is_valid(&self) -> bool {
        self.granted < self.until()
    }
}

/// Puts together what each thread did between a grant and its end. The calls are
/// [`by_thread`](crate::history::by_thread).
pub fn holds<'a>(calls: &[&'a Call]) -> Vec<HoldInterval<'a>> {
    let mut holds: Vec<HoldInterval<'a>> = Vec::new();
    for call in calls {
        // The first calls of a history may be cut off: then there is no hold to them.
        let last = holds.last_mut().filter(|hold| hold.lock.who == call.who);
        match (&call.op, &call.done, last) {
            (Op::Lock { .. }, Some(done), _) if done.answer == Answer::Ok => {
                holds.push(HoldInterval {
                    lock: call,
                    granted: done.at,
                    fence: done.first,
                    deadline: Duration::from_nanos(done.second),
                    extended: Vec::new(),
                    released: Vec::new(),
                    entered_late: None,
                })
            }
            (Op::Extend { .. }, done, Some(hold)) => {
                hold.extended.push(call);
                // A lost one reports that nothing is left; when it was lost is checked elsewhere.
                if let Some(done) = done.as_ref().filter(|done| done.answer != Answer::Lost) {
                    hold.deadline = Duration::from_nanos(done.second);
                }
            }
            (Op::Unlock, _, Some(hold)) => hold.released.push(call),
            (Op::Inside, _, Some(hold)) if hold.deadline <= hold.granted => {
                hold.entered_late.get_or_insert(call);
            }
            _ => {}
        }
    }
    holds
}
