//! The handle of a call that was started: its result, and cancelling it.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use memlock_core::{Answer, Lock, Pending, Permit, Report, Result, fork};

use crate::boundary::{enter, enter_pending, give, invalid, lent, put, quietly, take_back};
use crate::calls::{Calls, Handle};
use crate::lock::memlock_lock;
use crate::semaphore::memlock_permit;
use crate::taken_over::TakenOver;

/// A call that was started and does not block its caller: an acquisition, or a release. A thread of
/// the client carries it out. The handle belongs to the caller, who frees it by
/// memlock_pending_close() **in every case**: also when the call has ended, whatever its answer,
/// and in a child made by fork.
///
/// Use a handle from one thread at a time, except that any thread may call memlock_pending_cancel()
/// until the handle is closed.
pub struct memlock_pending {
    kind: Kind,
    call: Mutex<Call>,
    arg: *mut c_void,
    /// By which the client's calls know it.
    number: u64,
    calls: Arc<Calls>,
    /// The generation of the process whose call it is.
    process: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Lock,
    Permits,
    Release,
}

pub(super) type Granted<T> = std::result::Result<T, Report>;

pub(super) enum Call {
    Lock(Pending<Granted<Lock>>),
    Permits(u32, Pending<Granted<Permit>>),
    Release(Pending<Report>),
    Ended(Report, Option<Grant>),
}

/// What was granted and has not been taken.
pub(super) enum Grant {
    Lock(memlock_lock),
    Permits(memlock_permit),
}

impl Call {
    fn kind(&self) -> Kind {
        match self {
            Call::Lock(_) => Kind::Lock,
            Call::Permits(..) => Kind::Permits,
            Call::Release(_) | Call::Ended(..) => Kind::Release,
        }
    }

    /// The end of the call, if it has ended.
    fn ended(&mut self, calls: &Arc<Calls>) -> Option<(&Report, &mut Option<Grant>)> {
        let end = match self {
            Call::Lock(pending) => pending
                .take()
                .map(|result| end(result, |lock| Grant::Lock(memlock_lock::new(lock, calls)))),
            Call::Permits(count, pending) => {
                let permits = *count;
                pending.take().map(|result| {
                    end(result, |permit| {
                        Grant::Permits(memlock_permit::new(permit, permits, calls))
                    })
                })
            }
            Call::Release(pending) => {
                pending.take().map(|result| (result.unwrap_or_else(Report::from), None))
            }
            Call::Ended(..) => None,
        };
        if let Some((report, grant)) = end {
            *self = Call::Ended(report, grant);
        }
        match self {
            Call::Ended(report, grant) => Some((report, grant)),
            _ => None,
        }
    }

    fn notify(&self, waker: Waker) {
        match self {
            Call::Lock(pending) => pending.notify(waker),
            Call::Permits(_, pending) => pending.notify(waker),
            Call::Release(pending) => pending.notify(waker),
            Call::Ended(..) => waker.wake(),
        }
    }

    fn cancel(&self) {
        match self {
            Call::Lock(pending) => pending.cancel(),
            Call::Permits(_, pending) => pending.cancel(),
            Call::Release(_) | Call::Ended(..) => {}
        }
    }
}

fn end<T>(result: Result<Granted<T>>, grant: impl FnOnce(T) -> Grant) -> (Report, Option<Grant>) {
    match result {
        Ok(Ok(granted)) => (Answer::Ok.into(), Some(grant(granted))),
        Ok(Err(report)) => (report, None),
        Err(error) => (error.into(), None),
    }
}

impl memlock_pending {
    /// Begins a call, and writes its handle to `place`, before it can be handed to another thread.
    ///
    /// # Errors
    /// If no descriptor can be opened: nothing was begun.
    ///
    /// # Safety
    /// `place` is writable.
    pub(super) unsafe fn start(
        calls: &Arc<Calls>,
        arg: *mut c_void,
        begin: impl FnOnce() -> Call,
        place: *mut *mut memlock_pending,
    ) -> Result<()> {
        calls.prepare()?;
        let call = begin();
        calls.add(|number, waker| {
            call.notify(waker);
            let handle = give(memlock_pending {
                kind: call.kind(),
                call: Mutex::new(call),
                arg,
                number,
                calls: Arc::clone(calls),
                process: fork::generation(),
            });
            // SAFETY: the caller's promise.
            unsafe { place.write(handle) };
            // SAFETY: the handle is removed from the calls before it is freed.
            let cancel =
                |handle: *mut c_void| unsafe { &*handle.cast::<memlock_pending>() }.cancel();
            Handle { pointer: handle.cast(), cancel }
        })
    }

    /// Whether this process is a child of the one whose call it is. Its parent's threads may have
    /// been at work on the call at the fork, so nothing of it is touched.
    fn is_inherited(&self) -> bool {
        self.process != fork::generation()
    }

    fn call(&self) -> MutexGuard<'_, Call> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancel(&self) {
        if !self.is_inherited() {
            self.call().cancel();
        }
    }

    /// In a child: the parent's call.
    fn report_inherited(&self) -> Report {
        let answer = match self.kind {
            Kind::Lock | Kind::Permits => Answer::Interrupted,
            Kind::Release => Answer::NotHeld,
        };
        Report::new(
            answer,
            "This process is a child made by fork: the call is its parent's, and goes on there.",
        )
    }

    /// The answer of the call, if it has ended.
    fn report(&self) -> Option<Report> {
        if self.is_inherited() {
            return Some(self.report_inherited());
        }
        self.call().ended(&self.calls).map(|(report, _)| report.clone())
    }

    /// As [`memlock_pending::report`], and hands over what was granted by `put`.
    fn take(&self, kind: Kind, put: impl FnOnce(Grant) -> Result<()>) -> Result<Option<Report>> {
        if self.kind != kind {
            let wrong = match self.kind {
                Kind::Lock => "acquires a lock: call memlock_pending_take_lock()",
                Kind::Permits => "acquires permits: call memlock_pending_take_permit()",
                Kind::Release => "releases something: call memlock_pending_poll()",
            };
            return Err(invalid(format!("This is a call that {wrong}.")));
        }
        if self.is_inherited() {
            return Ok(Some(self.report_inherited()));
        }
        let mut call = self.call();
        let Some((report, grant)) = call.ended(&self.calls) else { return Ok(None) };
        match grant.take() {
            Some(granted) => put(granted)?,
            None if *report == Answer::Ok => {
                return Err(invalid("What this call was granted has been taken before."));
            }
            None => {}
        }
        Ok(Some(report.clone()))
    }

    /// Ends what the handle stands for.
    fn close(self: Box<memlock_pending>) {
        if self.is_inherited() {
            // Leaked: see `is_inherited`.
            std::mem::forget(self);
            return;
        }
        self.calls.remove(self.number);
        match self.call.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Call::Ended(_, Some(Grant::Lock(lock))) => {
                drop(TakenOver::new(lock).release_in_background());
            }
            Call::Ended(_, Some(Grant::Permits(permit))) => {
                drop(TakenOver::new(permit).release_in_background());
            }
            call => drop(call),
        }
    }
}

/// Tells whether a call has ended, and its answer, without taking what it was granted. Never
/// blocks; no I/O. May be called any number of times, and always gives the same answer once the
/// call has ended.
///
/// Returns MEMLOCK_PENDING while the call is in progress, and then what the blocking function would
/// have returned: for memlock_acquire_start() the answers of memlock_mutex_lock(), for
/// memlock_semaphore_acquire_start() those of memlock_semaphore_acquire(), for
/// memlock_release_start() and memlock_permit_release_start() those of memlock_unlock() and
/// memlock_permit_release(). memlock_last_error() names the lock and the server, as after those.
/// MEMLOCK_INTERRUPTED: the call was cancelled, by memlock_pending_cancel(),
/// memlock_client_cancel_waits() or memlock_client_close().
///
/// In a child made by fork the call is the parent's: it returns MEMLOCK_INTERRUPTED for an
/// acquisition, and MEMLOCK_NOT_HELD for a release. MEMLOCK_INVALID for NULL.
///
/// # Safety
/// `pending` is NULL or a pending call that is not closed, used by no other thread during the call.
#[must_use = "the answer says whether the call has ended"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_pending_poll(pending: *const memlock_pending) -> c_int {
    // SAFETY: the caller's promise.
    enter_pending(|| Ok(unsafe { lent(pending, "pending") }?.report()))
}

/// As memlock_pending_poll(), for a call of memlock_acquire_start(). With MEMLOCK_OK the lock is
/// handed over, once, in *lock: it is the caller's, to be released by memlock_release_start(),
/// memlock_unlock() or memlock_lock_drop(), and independent of `pending`, which must still be
/// closed. With all other answers *lock is NULL.
///
/// Returns MEMLOCK_INVALID when the lock has been taken before, and, without an effect, for a call
/// that acquires no lock.
///
/// # Safety
/// As memlock_pending_poll(); `lock` is NULL or writable.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_pending_take_lock(
    pending: *mut memlock_pending,
    lock: *mut *mut memlock_lock,
) -> c_int {
    enter_pending(|| {
        // SAFETY: the caller's promise.
        unsafe { put(lock, std::ptr::null_mut(), "lock") }?;
        // SAFETY: as above.
        unsafe { lent(pending, "pending") }?.take(Kind::Lock, |grant| match grant {
            // SAFETY: as above.
            Grant::Lock(granted) => unsafe { put(lock, give(granted), "lock") },
            Grant::Permits(_) => Ok(()),
        })
    })
}

/// As memlock_pending_take_lock(), for permits and a call of memlock_semaphore_acquire_start(). The
/// permits are to be released by memlock_permit_release_start(), memlock_permit_release() or
/// memlock_permit_drop().
///
/// # Safety
/// As memlock_pending_poll(); `permit` is NULL or writable.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_pending_take_permit(
    pending: *mut memlock_pending,
    permit: *mut *mut memlock_permit,
) -> c_int {
    enter_pending(|| {
        // SAFETY: the caller's promise.
        unsafe { put(permit, std::ptr::null_mut(), "permit") }?;
        // SAFETY: as above.
        unsafe { lent(pending, "pending") }?.take(Kind::Permits, |grant| match grant {
            // SAFETY: as above.
            Grant::Permits(granted) => unsafe { put(permit, give(granted), "permit") },
            Grant::Lock(_) => Ok(()),
        })
    })
}

/// The argument that the call was started with; NULL for NULL. Also in a child made by fork.
///
/// # Safety
/// `pending` is NULL or a pending call that is not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_pending_arg(
    pending: *const memlock_pending,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { pending.as_ref() }.map_or(std::ptr::null_mut(), |pending| pending.arg)
}

/// Cancels an acquisition that is in progress. It ends soon, with MEMLOCK_INTERRUPTED, and is
/// handed out by memlock_client_next_ended() like any other; nothing is held then, and no entry is
/// left in the queue. A call that has just been granted what it waits for may still end with
/// MEMLOCK_OK. The handle must still be closed; a call whose end is of no interest can be closed at
/// once instead.
///
/// Returns MEMLOCK_OK, also for a call that has ended, for a release, which is carried out all the
/// same, and in a child made by fork, without an effect there. MEMLOCK_INVALID for NULL. No I/O.
/// Thread-safe as long as the handle is not closed.
///
/// # Safety
/// `pending` is NULL or a pending call that is not closed before this call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_pending_cancel(pending: *const memlock_pending) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { lent(pending, "pending") }?.cancel();
        Ok(Answer::Ok)
    })
}

/// Frees the handle of a call that was started, at any moment. Never blocks. A release is carried
/// out all the same. An acquisition that is in progress is cancelled, and is not handed out any
/// more by memlock_client_next_ended(). A lock or permits that it was granted, also at this moment,
/// and that were not taken are released by the client, which wakes the next waiter; they stay until
/// the end of their lease if the program ends before. What was taken stays the caller's. In a child
/// made by fork only the child's handle is freed. NULL is allowed.
///
/// # Safety
/// `pending` is NULL or a pending call, and is not used afterwards by any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_pending_close(pending: *mut memlock_pending) {
    quietly(|| {
        // SAFETY: the caller's promise.
        if let Some(pending) = unsafe { take_back(pending) } {
            pending.close();
        }
    });
}
