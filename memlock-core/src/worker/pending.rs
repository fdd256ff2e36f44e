//! A call in progress.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Context as TaskContext, Poll, Waker};

use super::drive::{self, Job, Next, Place, Turning};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::fork;
use crate::store::Route;
use crate::sync::{AtomicBool, Mutex, MutexGuard};

/// A call in progress, which a thread of the client carries out. It is a future of no particular
/// runtime: it may be awaited in any, and polled by any thread.
///
/// Dropping it cancels the call. What it was granted is then released by the client's thread, which
/// also wakes the next waiter. A call that only frees or confirms something is carried out all the same.
#[must_use = "the call is cancelled when this is dropped"]
pub struct Pending<T: Send + 'static> {
    shared: Arc<Shared<T>>,
    context: Context,
    route: Route,
    place: Option<Place>,
    /// The [`fork::generation`] in which the call began.
    process: u64,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    is_cancelled: AtomicBool,
}

enum State<T> {
    Under(Option<Waker>),
    Done(Result<T>),
    Taken,
}

impl<T> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The other end of a [`Pending`]: the job completes it. One that is dropped fails.
pub(crate) struct Completer<T> {
    shared: Arc<Shared<T>>,
}

/// Has a job made and driven that completes the result.
pub(crate) fn pending<T: Send + 'static>(
    context: &Context,
    route: Route,
    job: impl FnOnce(Completer<T>) -> Box<dyn Job>,
) -> Pending<T> {
    let state = Mutex::new(State::Under(None));
    let shared = Arc::new(Shared { state, is_cancelled: AtomicBool::new(false) });
    let completer = Completer { shared: Arc::clone(&shared) };
    let mut pending = Pending {
        shared,
        context: context.clone(),
        route,
        place: None,
        process: fork::generation(),
    };
    match drive::start(context, route, job(completer)) {
        Ok(place) => pending.place = Some(place),
        Err(error) => *pending.shared.state() = State::Done(Err(error)),
    }
    pending
}

impl<T> Completer<T> {
    /// Whether nobody wants the result any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.shared.is_cancelled.load(Ordering::SeqCst)
    }

    /// Completes the call. Returns the result if it was cancelled meanwhile.
    pub(crate) fn complete(&self, result: Result<T>) -> Option<Result<T>> {
        let mut state = self.shared.state();
        let State::Under(waker) = &mut *state else { return Some(result) };
        let waker = waker.take();
        *state = State::Done(result);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        None
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        let text = "The call ended without a result: this is an error in memlock.";
        let _ = self.complete(Err(Error::new(ErrorKind::Internal, text)));
    }
}

impl<T: Send + 'static> Pending<T> {
    /// Cancels the call, if it is a wait: it ends soon, as interrupted. What it is granted at the same
    /// time is released.
    pub fn cancel(&self) {
        if self.is_inherited() {
            return;
        }
        self.shared.is_cancelled.store(true, Ordering::SeqCst);
        self.place.iter().for_each(Place::wake);
    }

    /// The result, if the call has ended and nobody has taken it yet.
    ///
    /// # Errors
    /// The errors of the call.
    pub fn take(&mut self) -> Option<Result<T>> {
        if self.is_inherited() {
            return Some(Err(fork::astray()));
        }
        let mut state = self.shared.state();
        match &*state {
            State::Done(_) => match std::mem::replace(&mut *state, State::Taken) {
                State::Done(result) => Some(result),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the call has ended.
    pub fn is_done(&self) -> bool {
        self.is_inherited() || !matches!(*self.shared.state(), State::Under(_))
    }

    /// Has this called, by whatever thread, when the call has ended; at once if it has ended.
    pub fn notify(&self, waker: Waker) {
        if self.is_inherited() {
            return waker.wake();
        }
        let mut state = self.shared.state();
        match &mut *state {
            State::Under(place) => *place = Some(waker),
            _ => {
                drop(state);
                waker.wake();
            }
        }
    }
}

impl<T: Send + 'static> Pending<T> {
    /// Whether this process is a child of the one whose call it is: the call goes on there.
    fn is_inherited(&self) -> bool {
        self.process != fork::generation()
    }
}

impl<T: Send + 'static> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Result<T>> {
        if let Some(result) = self.take() {
            return Poll::Ready(result);
        }
        let mut state = self.shared.state();
        match &mut *state {
            State::Under(place) => {
                match place {
                    Some(waker) if waker.will_wake(task.waker()) => {}
                    place => *place = Some(task.waker().clone()),
                }
                Poll::Pending
            }
            State::Done(_) => match std::mem::replace(&mut *state, State::Taken) {
                State::Done(result) => Poll::Ready(result),
                _ => Poll::Pending,
            },
            // Polled again after it was ready.
            State::Taken => Poll::Pending,
        }
    }
}

/// A call that is carried out in one turn, whether or not anybody wants its result.
struct Once<F, T> {
    body: Option<F>,
    completer: Completer<T>,
}

impl<T: Send, F: FnOnce(bool) -> Result<T> + Send> Job for Once<F, T> {
    fn turn(&mut self, at: &Turning<'_>) -> Next {
        if let Some(body) = self.body.take() {
            self.completer.complete(body(at.skips));
        }
        Next::Done
    }
}

/// Has a call carried out by a thread of the client. `body` is told whether the server did not answer a
/// moment ago, so that it is not to be asked.
pub(crate) fn call<T: Send + 'static>(
    context: &Context,
    route: Route,
    body: impl FnOnce(bool) -> Result<T> + Send + 'static,
) -> Pending<T> {
    pending(context, route, |completer| Box::new(Once { body: Some(body), completer }))
}

/// A call that has failed before it began.
pub(crate) struct Failed<T> {
    completer: Completer<T>,
    error: Option<Error>,
}

impl<T> Failed<T> {
    pub(crate) fn new(completer: Completer<T>, error: Error) -> Failed<T> {
        Failed { completer, error: Some(error) }
    }
}

impl<T: Send> Job for Failed<T> {
    fn turn(&mut self, _at: &Turning<'_>) -> Next {
        if let Some(error) = self.error.take() {
            self.completer.complete(Err(error));
        }
        Next::Done
    }
}

/// Drops what nobody has taken, where it may take its time.
struct Discarded<T>(Option<T>);

impl<T: Send> Job for Discarded<T> {
    fn turn(&mut self, _at: &Turning<'_>) -> Next {
        self.0 = None;
        Next::Done
    }
}

/// Has a value dropped by a thread of the client; by this one if none can be started.
pub(crate) fn discard<T: Send + 'static>(context: &Context, route: Route, value: T) {
    let _ = drive::start(context, route, Box::new(Discarded(Some(value))));
}

impl<T: Send + 'static> Drop for Pending<T> {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        self.shared.is_cancelled.store(true, Ordering::SeqCst);
        let before = std::mem::replace(&mut *self.shared.state(), State::Taken);
        match before {
            State::Under(_) => self.place.iter().for_each(Place::wake),
            State::Done(Ok(value)) => discard(&self.context, self.route, value),
            State::Done(Err(_)) | State::Taken => {}
        }
    }
}

impl<T: Send + 'static> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}
