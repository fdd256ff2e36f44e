//! Where a thread sleeps whose operation another thread of its process carries out, and what that
//! one tells it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::operation::{Acquisition, Doubt, Extend, Kind, Operation, OperationOutcome, Renewing};
use crate::owner::Token;
use crate::thread::Signal;

/// An operation whose thread sleeps.
pub(super) struct Entry {
    pub(super) operation: Operation,
    pub(super) ticket: Arc<Ticket>,
}

/// What such a thread sleeps on.
#[derive(Default)]
pub(super) struct Ticket {
    place: Mutex<TicketState>,
    moved: Signal,
}

#[derive(Default)]
struct TicketState {
    state: Progress,
    /// Its thread is to check at once whether it can withdraw its operation.
    reconsiders: bool,
    /// Its wait has ended.
    unwanted: bool,
    /// Its thread is gone.
    abandoned: bool,
}

#[derive(Default)]
enum Progress {
    /// Listed, or in a batch.
    #[default]
    Waits,
    Leads(Box<Operation>),
    Completed(Box<Completion>),
}

/// What a thread finds on its ticket.
pub(super) enum Found {
    Completed(Box<Completion>),
    /// It is the next leader, and this is its operation.
    Leads(Box<Operation>),
    /// It was woken, or slept for as long as it was to.
    Nothing,
    /// No thread of this process will do anything any more.
    Killed,
}

/// An outcome, and what its operation has become meanwhile.
pub(super) struct Completion {
    pub(super) outcome: OperationOutcome,
    pub(super) in_doubt: Option<Doubt>,
    /// Of an acquisition: under which it was asked for last.
    pub(super) token: Option<Token>,
    /// Of an extension: those that are left, and those that were not there.
    pub(super) renewing: Vec<Renewing>,
    pub(super) gone: Vec<Token>,
    /// It is to stand in the queue, and is counted there until `Combiner::leaves_queue`.
    pub(super) in_queue: bool,
}

impl Ticket {
    fn place(&self) -> MutexGuard<'_, TicketState> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes its thread, to check whether it can withdraw its operation.
    pub(super) fn wake_to_reconsider(&self) {
        self.place().reconsiders = true;
        self.moved.wake_all();
    }

    /// Whether no thread waits for it any more.
    pub(super) fn is_unwanted(&self) -> bool {
        let place = self.place();
        place.unwanted || place.abandoned
    }

    /// Its wait has ended.
    pub(super) fn is_not_wanted_any_more(&self) {
        self.place().unwanted = true;
    }

    /// Hands the lead on to its thread, with its operation; gives that back if the thread is gone.
    pub(super) fn leads(&self, operation: Operation) -> Option<Operation> {
        let mut place = self.place();
        if place.abandoned {
            return Some(operation);
        }
        place.state = Progress::Leads(Box::new(operation));
        self.moved.wake_all();
        None
    }

    /// Its thread unwinds. True if the lead was handed on to it.
    pub(super) fn is_abandoned(&self) -> bool {
        let mut place = self.place();
        place.abandoned = true;
        matches!(std::mem::take(&mut place.state), Progress::Leads(_))
    }

    /// What there is for its thread, which sleeps for as long as `limit` says of whether its wait
    /// has ended, unless there is something already.
    pub(super) fn sleep(&self, limit: impl FnOnce(bool) -> Duration) -> Found {
        let mut place = self.place();
        match std::mem::take(&mut place.state) {
            Progress::Completed(completion) => return Found::Completed(completion),
            Progress::Leads(operation) => return Found::Leads(operation),
            Progress::Waits => {}
        }
        if std::mem::take(&mut place.reconsiders) {
            return Found::Nothing;
        }
        let limit = limit(place.unwanted);
        if self.moved.sleep(place, limit) { Found::Nothing } else { Found::Killed }
    }

    /// Tells its thread.
    pub(super) fn complete(&self, completion: Completion) {
        self.place().state = Progress::Completed(Box::new(completion));
        self.moved.wake_all();
    }
}

impl Completion {
    pub(super) fn new(operation: Operation, outcome: OperationOutcome) -> Completion {
        let Operation { kind, in_doubt, .. } = operation;
        let (renewing, gone) = (Vec::new(), Vec::new());
        let completion =
            Completion { outcome, in_doubt, token: None, renewing, gone, in_queue: false };
        match kind {
            Kind::Acquisition(Acquisition { token, .. }) => {
                Completion { token: Some(token), ..completion }
            }
            Kind::Extend(Extend { renewing, gone, .. }) => {
                Completion { renewing, gone, ..completion }
            }
            Kind::Release(_) => completion,
        }
    }

    /// The completion of an operation that was taken back before anything was sent for it, or whose
    /// process is another one now.
    pub(super) fn not_tried() -> Completion {
        let outcome = OperationOutcome::NoRoom { refusal: None };
        let (renewing, gone) = (Vec::new(), Vec::new());
        Completion { outcome, in_doubt: None, token: None, renewing, gone, in_queue: false }
    }
}
