//! A lock or permits behind a handle: held for one lease, or renewed.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use memlock_core::{
    Answer, Bound, Error, Guard, Loss, Notice, RenewOptions, Renewal, Report, Result, Token, fork,
};

use crate::boundary::{invalid, millis, to_millis};

/// Passed to a renewal callback: the lease has not been renewed so far, or is not to be renewed any
/// more, and expires in `left_ms`. Reported once each time that half of the lease has passed
/// without a renewal.
pub const MEMLOCK_LEASE_AT_RISK: c_int = 1;
/// Passed to a renewal callback, and a cause of a loss: the lease expired before it could be
/// renewed. The server was unreachable, or this process was stopped.
pub const MEMLOCK_LOST_EXPIRED: c_int = 2;
/// Passed to a renewal callback, and a cause of a loss: the lock or permit was found to be missing
/// on the server, or held by another holder.
pub const MEMLOCK_LOST_GONE: c_int = 3;
/// Passed to a renewal callback, and a cause of a loss: the maximum hold time has passed.
pub const MEMLOCK_LOST_MAX_HOLD: c_int = 4;

/// Called when the lease of a renewed lock or permit is at risk, or when the lock or permit was
/// lost. `event` is MEMLOCK_LEASE_AT_RISK, and `left_ms` the time in milliseconds for which it is
/// guaranteed to be held; or `event` is one of MEMLOCK_LOST_EXPIRED, MEMLOCK_LOST_GONE and
/// MEMLOCK_LOST_MAX_HOLD, and `left_ms` is 0. `arg` is the argument of memlock_lock_renew() or
/// memlock_permit_renew().
///
/// Runs on the renewal thread, a thread of memlock in which all signals are blocked except those
/// that a crash in that thread raises. The thread renews no other lease of the same client until
/// the callback returns. Therefore the callback must not wait or work for long, and no C++
/// exception may leave it. It may call every function of memlock, also for the handle that it
/// reports on, and may even free that handle if no other thread uses the handle then. A loss that
/// memlock_lock_check() or memlock_permit_check() detects may be reported to the callback before
/// that function returns. Two callbacks must not free each other's handles: each would wait until
/// the other has returned. Programs and threads that the callback starts inherit the blocked
/// signals, and SIGTERM would not end them: restore the mask by pthread_sigmask() before starting
/// any. A child that the callback forks may only call async-signal-safe functions, exec or _exit.
pub type memlock_renewal_callback =
    Option<unsafe extern "C" fn(event: c_int, left_ms: i64, arg: *mut c_void)>;

/// The report for a handle whose destructor could not release what it held.
fn report_not_released(error: &Error) -> Report {
    let sentence = format!(
        "The lock or permit was not released, or may not have been: it is released at the \
         client's next contact with the server, or expires with its lease. {error}"
    );
    Report::new(Answer::Unknown, sentence)
}

/// The acquisition behind a C handle.
pub(crate) struct Leased {
    process: u64,
    token: Token,
    bound: Option<Bound>,
    state: State,
}

enum State {
    Held(Box<dyn Guard>),
    /// Shared with the calls that inspect it: when one of them finds it lost, the callback may free
    /// the handle meanwhile.
    Renewed(Arc<Renewal>, Option<Arc<RenewalCallback>>),
    /// Renewing was to begin and failed.
    Released,
}

impl Leased {
    pub(crate) fn new(guard: impl Guard + 'static) -> Leased {
        let (process, token) = (fork::generation(), guard.token());
        Leased { process, token, bound: None, state: State::Held(Box::new(guard)) }
    }

    /// Binds it to this thread.
    pub(crate) fn bind(&mut self) -> Report {
        if !self.is_ours() || matches!(self.state, State::Released) {
            return self.report(Answer::NotHeld);
        }
        self.bound = Some(Bound::to_this_thread(self.token));
        Answer::Ok.into()
    }

    pub(crate) fn remaining(&self) -> Duration {
        match &self.state {
            State::Held(guard) => guard.remaining(),
            // Cloned, because the callback may free the handle when this call detects the loss.
            State::Renewed(renewal, _) => Arc::clone(renewal).remaining(),
            State::Released => Duration::ZERO,
        }
    }

    /// The answer with a sentence about what this handle holds.
    pub(crate) fn report(&self, answer: Answer) -> Report {
        match &self.state {
            State::Held(guard) => guard.report(answer),
            State::Renewed(renewal, _) => renewal.report(answer),
            State::Released => Report::new(
                answer,
                "The handle holds nothing: no thread could be started to renew the lease, and \
                 the lock or permit was released.",
            ),
        }
    }

    /// The SQL statement that releases it in a transaction of the caller's.
    pub(crate) fn release_sql(&mut self) -> Result<String> {
        match &mut self.state {
            State::Held(guard) => guard.release_sql(),
            State::Renewed(renewal, _) => renewal.release_sql(),
            State::Released => Err(invalid("The handle holds nothing.")),
        }
    }

    pub(crate) fn extend(&mut self, lease_ms: i64) -> Result<Report> {
        let is_ours = self.is_ours();
        let answer = match &mut self.state {
            State::Held(guard) => guard.extend(millis(lease_ms)?)?.into(),
            State::Renewed(..) if is_ours => {
                return Err(invalid(
                    "The lease cannot be extended: it is renewed automatically, always by the \
                     lease that it had when the renewal began. Release, and acquire with another \
                     lease.",
                ));
            }
            State::Renewed(..) | State::Released => Answer::NotHeld,
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
                    format!("max_hold_ms is {max_hold_ms}: give -1 or a time in milliseconds.");
                return Err(invalid(sentence));
            }
        };
        match &self.state {
            _ if !self.is_ours() => return Ok(self.report(Answer::NotHeld)),
            State::Released => return Ok(self.report(Answer::NotHeld)),
            State::Renewed(..) => {
                return Err(invalid(
                    "The lease is already renewed automatically: start the renewal once for each \
                     handle.",
                ));
            }
            State::Held(guard) if guard.remaining().is_zero() => {
                return Ok(guard.report(Answer::Lost));
            }
            State::Held(_) => {}
        }
        let State::Held(guard) = std::mem::replace(&mut self.state, State::Released) else {
            return Ok(self.report(Answer::NotHeld));
        };
        let callback = callback.map(|function| Arc::new(RenewalCallback::new(function, arg)));
        let on_notice =
            callback.clone().map(|callback| Box::new(move |notice| callback.call(notice)) as _);
        let renewal = guard.renew(RenewOptions { max_hold, on_notice })?;
        self.state = State::Renewed(Arc::new(renewal), callback.clone());
        // From now on the callback sees the handle in its final state, and may free it. Therefore
        // nothing of the handle is used below.
        if let Some(callback) = callback {
            callback.enable();
        }
        Ok(Answer::Ok.into())
    }

    /// Releases a renewed lock or permit; `None` when it is not renewed. When this returns, the
    /// callback is never called again and, unless this was called by the callback, is not running.
    pub(crate) fn stop_renewal(&self) -> Option<Result<Report>> {
        let State::Renewed(renewal, callback) = &self.state else { return None };
        let released = renewal.release();
        if let Some(callback) = callback
            && self.is_ours()
        {
            callback.disable();
        }
        Some(released.map(|released| renewal.report(released)))
    }

    /// Releases a renewed lock or permit as a destructor does, and returns the outcome. When this
    /// returns, the callback is never called again, as after [`Leased::stop_renewal`].
    pub(crate) fn stop_renewal_on_drop(&self) -> Option<Report> {
        let State::Renewed(renewal, callback) = &self.state else { return None };
        let released = renewal.let_go();
        if let Some(callback) = callback
            && self.is_ours()
        {
            callback.disable();
        }
        Some(match released {
            Ok(released) => renewal.report(released),
            Err(error) => report_not_released(&error),
        })
    }

    /// Releases it on drop; `stopped` is the result of [`Leased::stop_renewal_on_drop`].
    pub(crate) fn release_on_drop(self, stopped: Option<Report>) -> Report {
        match self.state {
            State::Held(mut guard) => match guard.let_go() {
                Ok(released) => guard.report(released.into()),
                Err(error) => report_not_released(&error),
            },
            _ => stopped.unwrap_or_else(|| Answer::NotHeld.into()),
        }
    }

    /// Releases it; `stopped` is the result of [`Leased::stop_renewal`].
    pub(crate) fn release(self, stopped: Option<Result<Report>>) -> Result<Report> {
        match (self.state, stopped) {
            (State::Held(mut guard), _) => match guard.release() {
                Ok(released) => Ok(guard.report(released.into())),
                Err(error) => {
                    guard.abandon();
                    Err(error)
                }
            },
            (State::Renewed(renewal, _), Some(Err(error))) => {
                renewal.abandon();
                Err(error)
            }
            (_, Some(done)) => done,
            (_, None) => Ok(Answer::NotHeld.into()),
        }
    }

    /// Nothing of the handle is used after the server was asked: see [`State::Renewed`].
    pub(crate) fn check(&self) -> Result<Report> {
        let answer = |is_held| if is_held { Answer::Ok } else { Answer::Lost };
        match &self.state {
            _ if !self.is_ours() => Ok(self.report(Answer::NotHeld)),
            State::Held(guard) => Ok(guard.report(answer(guard.check()?))),
            State::Renewed(renewal, _) => {
                let renewal = renewal.clone();
                let is_held = renewal.check()?;
                // The callback, or another thread, has released it.
                let is_released = !is_held && renewal.lost().is_none();
                Ok(renewal.report(if is_released { Answer::NotHeld } else { answer(is_held) }))
            }
            State::Released => Ok(self.report(Answer::NotHeld)),
        }
    }

    /// Waits until it is lost, for at most `timeout`, and returns the cause. As in
    /// [`Leased::check`], nothing of the handle is used meanwhile.
    pub(crate) fn wait_lost(&self, timeout: Option<Duration>) -> (Option<Loss>, Report) {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let left = || {
            deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            })
        };
        let not_lost = if timeout == Some(Duration::ZERO) { Answer::Ok } else { Answer::TimedOut };
        match &self.state {
            _ if !self.is_ours() => (None, self.report(Answer::NotHeld)),
            State::Released => (None, self.report(Answer::NotHeld)),
            State::Held(guard) => {
                while !left().min(guard.remaining()).is_zero() {
                    thread::sleep(left().min(guard.remaining()));
                }
                let loss = guard.remaining().is_zero().then_some(Loss::Expired);
                (loss, guard.report(loss.map_or(not_lost, |_| Answer::Lost)))
            }
            State::Renewed(renewal, _) => {
                let renewal = renewal.clone();
                let mut loss = renewal.wait_lost(left());
                let is_held = loss.is_some() || renewal.is_held();
                if !is_held {
                    loss = renewal.lost();
                }
                let answer = match loss {
                    Some(_) => Answer::Lost,
                    None if is_held => not_lost,
                    // The callback has released it.
                    None => Answer::NotHeld,
                };
                (loss, renewal.report(answer))
            }
        }
    }

    fn is_ours(&self) -> bool {
        self.process == fork::generation()
    }
}

pub(crate) fn loss_code(loss: Loss) -> c_int {
    match loss {
        Loss::Expired => MEMLOCK_LOST_EXPIRED,
        Loss::Gone => MEMLOCK_LOST_GONE,
        Loss::MaxHold => MEMLOCK_LOST_MAX_HOLD,
    }
}

/// A callback and its argument, which C may free as soon as the handle is freed.
struct RenewalCallback {
    function: unsafe extern "C" fn(c_int, i64, *mut c_void),
    arg: *mut c_void,
    state: Mutex<CallbackState>,
    changed: Condvar,
}

#[derive(Default)]
struct CallbackState {
    /// The handle is in its final state, so the callback may run.
    enabled: bool,
    /// The handle is being freed, so the callback must not run.
    disabled: bool,
    /// The thread that runs the callback.
    running: Option<ThreadId>,
}

// SAFETY: the header documents the thread that calls the callback with its argument.
unsafe impl Send for RenewalCallback {}
// SAFETY: as above; and only one thread at a time calls it, the renewal thread.
unsafe impl Sync for RenewalCallback {}

impl RenewalCallback {
    fn new(
        function: unsafe extern "C" fn(c_int, i64, *mut c_void),
        arg: *mut c_void,
    ) -> RenewalCallback {
        RenewalCallback { function, arg, state: Mutex::default(), changed: Condvar::new() }
    }

    fn enable(&self) {
        self.state().enabled = true;
        self.changed.notify_all();
    }

    fn call(&self, notice: Notice) {
        {
            let mut state = self.wait_while(|state| !state.enabled && !state.disabled);
            if state.disabled {
                return;
            }
            state.running = Some(thread::current().id());
        }
        let (event, left_ms) = match notice {
            Notice::AtRisk(left) => (MEMLOCK_LEASE_AT_RISK, to_millis(left)),
            Notice::Lost(loss) => (loss_code(loss), 0),
        };
        // SAFETY: C passed this function for this call, and its argument is valid until `disable`
        // has returned.
        unsafe { (self.function)(event, left_ms, self.arg) };
        self.state().running = None;
        self.changed.notify_all();
    }

    /// When this returns, the callback is never called again.
    fn disable(&self) {
        self.state().disabled = true;
        self.changed.notify_all();
        let this_thread = thread::current().id();
        drop(self.wait_while(|state| state.running.is_some_and(|thread| thread != this_thread)));
    }

    fn state(&self) -> MutexGuard<'_, CallbackState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(
        &self,
        is_waiting: impl Fn(&CallbackState) -> bool,
    ) -> MutexGuard<'_, CallbackState> {
        let state = self.state();
        self.changed
            .wait_while(state, |state| is_waiting(state))
            .unwrap_or_else(PoisonError::into_inner)
    }
}
