//! A lock or permits by handle: held for one lease, or kept.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use memlock_core::{
    Answer, Extension, Lock, Loss, Notice, Permit, Release, RenewOptions, Renewal, Report, Result,
    fork,
};

use crate::boundary::{invalid, millis, to_millis};

/// What a holder is told: it could not be renewed so far, or is not to be, and ends in `left_ms`.
/// Told once for each time that half of the lease is gone so.
pub const MEMLOCK_LEASE_AT_RISK: c_int = 1;
/// What a holder is told, and why it is lost: it could not be renewed before its lease was over.
/// The server was out of reach, or this process stood still.
pub const MEMLOCK_LOST_EXPIRED: c_int = 2;
/// What a holder is told, and why it is lost: it was found to be gone from the server, or
/// another's.
pub const MEMLOCK_LOST_GONE: c_int = 3;
/// What a holder is told, and why it is lost: it was held for as long as was allowed.
pub const MEMLOCK_LOST_MAX_HOLD: c_int = 4;

/// What is called when there is something to tell of a lock or permits that are kept:
/// MEMLOCK_LEASE_AT_RISK and how long they are certainly ours yet, or one of MEMLOCK_LOST_EXPIRED,
/// MEMLOCK_LOST_GONE and MEMLOCK_LOST_MAX_HOLD, and 0. `arg` is what memlock_lock_renew() or
/// memlock_permit_renew() was given.
///
/// It is called on the renewer's thread, a thread of memlock's in which no signal handler runs, but
/// that of a crash in it, and which renews nothing of the same client until it returns: so it must
/// not wait or work for long, and no C++ exception may leave it. It may call every function of
/// memlock, also for the handle that it is about, and may even give that back, if no other thread
/// uses it then; what that one's memlock_lock_check() has found itself it may be told of before
/// that returns. Two callbacks must not give back each other's handles: each would wait until the
/// other has ended. Programs and threads that it starts have the same signals blocked, and SIGTERM
/// would not end them: whoever starts some restores the mask first, by pthread_sigmask().
pub type memlock_renewal_callback =
    Option<unsafe extern "C" fn(what: c_int, left_ms: i64, arg: *mut c_void)>;

/// What is held for a lease, as the core has it.
pub(crate) trait Leased: Sized {
    fn remaining(&self) -> Duration;
    fn release(&mut self) -> Result<Release>;
    fn extend(&mut self, lease: Duration) -> Result<Extension>;
    fn check(&self) -> Result<bool>;
    fn renew(self, renew: RenewOptions) -> Result<Renewal>;
    fn abandon(self);
    fn let_go(&mut self) -> Option<Release>;
    fn report(&self, answer: Answer) -> Report;
}

impl Leased for Lock {
    fn remaining(&self) -> Duration {
        self.remaining()
    }

    fn release(&mut self) -> Result<Release> {
        self.unlock()
    }

    fn extend(&mut self, lease: Duration) -> Result<Extension> {
        self.extend(lease)
    }

    fn check(&self) -> Result<bool> {
        self.check()
    }

    fn renew(self, renew: RenewOptions) -> Result<Renewal> {
        self.renew(renew)
    }

    fn abandon(self) {
        self.abandon();
    }

    fn let_go(&mut self) -> Option<Release> {
        self.let_go()
    }

    fn report(&self, answer: Answer) -> Report {
        self.report(answer)
    }
}

impl Leased for Permit {
    fn remaining(&self) -> Duration {
        self.remaining()
    }

    fn release(&mut self) -> Result<Release> {
        self.release()
    }

    fn extend(&mut self, lease: Duration) -> Result<Extension> {
        self.extend(lease)
    }

    fn check(&self) -> Result<bool> {
        self.check()
    }

    fn renew(self, renew: RenewOptions) -> Result<Renewal> {
        self.renew(renew)
    }

    fn abandon(self) {
        self.abandon();
    }

    fn let_go(&mut self) -> Option<Release> {
        self.let_go()
    }

    fn report(&self, answer: Answer) -> Report {
        self.report(answer)
    }
}

/// What is said of what could not be released when its handle was dropped.
fn left_behind() -> Report {
    let sentence = "The server does not answer, so it was not released: it is taken off at the client's next contact \
                    with the server, or ends with its lease.";
    Report::new(Answer::Unknown, sentence)
}

/// One acquisition, as a C handle has it.
pub(crate) struct Hold<L> {
    process: u64,
    state: State<L>,
}

enum State<L> {
    Plain(L),
    /// Shared with the calls that look at it: one that finds it lost may have the callback give the
    /// handle back meanwhile.
    Renewal(Arc<Renewal>, Option<Arc<Told>>),
    /// It was to be kept, and could not be.
    Released,
}

impl<L: Leased> Hold<L> {
    pub(crate) fn new(leased: L) -> Hold<L> {
        Hold { process: fork::generation(), state: State::Plain(leased) }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match &self.state {
            State::Plain(leased) => leased.remaining(),
            // Its callback may give the handle back if this finds it lost.
            State::Renewal(kept, _) => Arc::clone(kept).remaining(),
            State::Released => Duration::ZERO,
        }
    }

    /// The answer with a sentence about what this handle holds.
    pub(crate) fn report(&self, answer: Answer) -> Report {
        match &self.state {
            State::Plain(leased) => leased.report(answer),
            State::Renewal(kept, _) => kept.report(answer),
            State::Released => Report::new(
                answer,
                "The handle holds nothing: no thread could be started to renew its lease, and it was released.",
            ),
        }
    }

    pub(crate) fn extend(&mut self, lease_ms: i64) -> Result<Report> {
        let is_ours = self.is_ours();
        let answer = match &mut self.state {
            State::Plain(leased) => leased.extend(millis(lease_ms)?)?.into(),
            State::Renewal(..) if is_ours => {
                return Err(invalid(
                    "What is kept is renewed by itself, always for the lease that it had when that began.",
                ));
            }
            State::Renewal(..) | State::Released => Answer::NotHeld,
        };
        Ok(self.report(answer))
    }

    pub(crate) fn renew(
        &mut self,
        max_hold_ms: i64,
        callback: memlock_renewal_callback,
        arg: *mut c_void,
    ) -> Result<Report> {
        let max_hold = match max_hold_ms {
            -1 => None,
            1.. => Some(millis(max_hold_ms)?),
            _ => {
                let sentence =
                    format!("max_hold_ms is {max_hold_ms}: give -1, or a time in milliseconds.");
                return Err(invalid(sentence));
            }
        };
        match &self.state {
            _ if !self.is_ours() => return Ok(self.report(Answer::NotHeld)),
            State::Released => return Ok(self.report(Answer::NotHeld)),
            State::Renewal(..) => return Err(invalid("It is kept already.")),
            State::Plain(leased) if leased.remaining().is_zero() => {
                return Ok(leased.report(Answer::Lost));
            }
            State::Plain(_) => {}
        }
        let State::Plain(leased) = std::mem::replace(&mut self.state, State::Released) else {
            return Ok(self.report(Answer::NotHeld));
        };
        let told = callback.map(|function| Arc::new(Told::new(function, arg)));
        let tell = told.clone().map(|told| Box::new(move |notice| told.tell(notice)) as _);
        let kept = leased.renew(RenewOptions { max_hold, on_notice: tell })?;
        self.state = State::Renewal(Arc::new(kept), told.clone());
        // From now on the callback finds its handle as it is to be, and may give it back: so
        // nothing of it is used here any more.
        if let Some(told) = told {
            told.begin();
        }
        Ok(Answer::Ok.into())
    }

    /// Releases what is kept; `None` when it is not. When this returns, nobody is told any more:
    /// unless it is the callback that calls this, it is not running either.
    pub(crate) fn end_keeping(&self) -> Option<Result<Report>> {
        let State::Renewal(kept, told) = &self.state else { return None };
        let released = kept.release();
        if let Some(told) = told
            && self.is_ours()
        {
            told.end();
        }
        Some(released.map(|released| kept.report(released)))
    }

    /// Releases it as a destructor does, and tells how it went. When this returns, nobody is told
    /// any more, as after [`Hold::end_keeping`].
    pub(crate) fn let_go(&self) -> Option<Report> {
        let State::Renewal(kept, told) = &self.state else { return None };
        let released = kept.let_go();
        if let Some(told) = told
            && self.is_ours()
        {
            told.end();
        }
        Some(released.map_or_else(left_behind, |released| kept.report(released)))
    }

    /// Ends it, after [`Hold::let_go`] answered this.
    pub(crate) fn drop_after(self, kept: Option<Report>) -> Report {
        match self.state {
            State::Plain(mut leased) => {
                leased.let_go().map_or_else(left_behind, |released| leased.report(released.into()))
            }
            _ => kept.unwrap_or_else(|| Answer::NotHeld.into()),
        }
    }

    /// Ends it, after [`Hold::end_keeping`] answered this.
    pub(crate) fn end(self, kept: Option<Result<Report>>) -> Result<Report> {
        match (self.state, kept) {
            (State::Plain(mut leased), _) => match leased.release() {
                Ok(released) => Ok(leased.report(released.into())),
                Err(error) => {
                    leased.abandon();
                    Err(error)
                }
            },
            (State::Renewal(kept, _), Some(Err(error))) => {
                kept.abandon();
                Err(error)
            }
            (_, Some(done)) => done,
            (_, None) => Ok(Answer::NotHeld.into()),
        }
    }

    /// Nothing of the handle is used any more once the server is asked: see [`State::Renewal`].
    pub(crate) fn check(&self) -> Result<Report> {
        let says = |there| if there { Answer::Ok } else { Answer::Lost };
        match &self.state {
            _ if !self.is_ours() => Ok(self.report(Answer::NotHeld)),
            State::Plain(leased) => Ok(leased.report(says(leased.check()?))),
            State::Renewal(kept, _) => {
                let kept = kept.clone();
                let there = kept.check()?;
                // The callback, or another thread, has given it back.
                let is_given_back = !there && kept.lost().is_none();
                Ok(kept.report(if is_given_back { Answer::NotHeld } else { says(there) }))
            }
            State::Released => Ok(self.report(Answer::NotHeld)),
        }
    }

    /// Waits until it is lost, for at most so long, and tells why it was. As in [`Hold::check`],
    /// nothing of the handle is used meanwhile.
    pub(crate) fn wait_lost(&self, limit: Option<Duration>) -> (Option<Loss>, Report) {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let left =
            || end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        let in_time =
            if limit.is_some_and(|limit| limit.is_zero()) { Answer::Ok } else { Answer::TimedOut };
        match &self.state {
            _ if !self.is_ours() => (None, self.report(Answer::NotHeld)),
            State::Released => (None, self.report(Answer::NotHeld)),
            State::Plain(leased) => {
                while !left().min(leased.remaining()).is_zero() {
                    thread::sleep(left().min(leased.remaining()));
                }
                let loss = leased.remaining().is_zero().then_some(Loss::Expired);
                (loss, leased.report(loss.map_or(in_time, |_| Answer::Lost)))
            }
            State::Renewal(kept, _) => {
                let kept = kept.clone();
                let mut loss = kept.wait_lost(left());
                let is_held = loss.is_some() || kept.is_held();
                if !is_held {
                    loss = kept.lost();
                }
                let answer = match loss {
                    Some(_) => Answer::Lost,
                    None if is_held => in_time,
                    // The callback has given it back.
                    None => Answer::NotHeld,
                };
                (loss, kept.report(answer))
            }
        }
    }

    fn is_ours(&self) -> bool {
        self.process == fork::generation()
    }
}

pub(crate) fn number(loss: Loss) -> c_int {
    match loss {
        Loss::Expired => MEMLOCK_LOST_EXPIRED,
        Loss::Gone => MEMLOCK_LOST_GONE,
        Loss::MaxHold => MEMLOCK_LOST_MAX_HOLD,
    }
}

/// A callback and its argument, which C may free as soon as the handle is given back.
struct Told {
    function: unsafe extern "C" fn(c_int, i64, *mut c_void),
    arg: *mut c_void,
    course: Mutex<Course>,
    changed: Condvar,
}

#[derive(Default)]
struct Course {
    /// The handle is one that is kept.
    begun: bool,
    /// The handle is given back.
    over: bool,
    /// In which thread the callback runs.
    running: Option<ThreadId>,
}

// SAFETY: the header says in which thread the callback is called, and that its argument goes there.
unsafe impl Send for Told {}
// SAFETY: as above; and it is called by one thread at a time, the renewer's.
unsafe impl Sync for Told {}

impl Told {
    fn new(function: unsafe extern "C" fn(c_int, i64, *mut c_void), arg: *mut c_void) -> Told {
        Told { function, arg, course: Mutex::default(), changed: Condvar::new() }
    }

    fn begin(&self) {
        self.course().begun = true;
        self.changed.notify_all();
    }

    fn tell(&self, notice: Notice) {
        {
            let mut course = self.wait_while(|course| !course.begun && !course.over);
            if course.over {
                return;
            }
            course.running = Some(thread::current().id());
        }
        let (what, left_ms) = match notice {
            Notice::AtRisk(left) => (MEMLOCK_LEASE_AT_RISK, to_millis(left)),
            Notice::Lost(loss) => (number(loss), 0),
        };
        let process = fork::generation();
        // SAFETY: a function that C gave us for this, and its argument is good until `end` has
        // returned.
        unsafe { (self.function)(what, left_ms, self.arg) };
        // In a child that it made the mutex may stay locked by a thread that is only in the parent.
        if fork::generation() != process {
            return;
        }
        self.course().running = None;
        self.changed.notify_all();
    }

    /// Nothing is told any more when this returns.
    fn end(&self) {
        self.course().over = true;
        self.changed.notify_all();
        let us = thread::current().id();
        drop(self.wait_while(|course| course.running.is_some_and(|thread| thread != us)));
    }

    fn course(&self) -> MutexGuard<'_, Course> {
        self.course.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, not_yet: impl Fn(&Course) -> bool) -> MutexGuard<'_, Course> {
        let course = self.course();
        self.changed
            .wait_while(course, |course| not_yet(course))
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
