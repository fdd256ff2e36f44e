//! Tickets: where a thread sleeps while another thread of its process performs its operation, and
//! how it gets the result.

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

/// The ticket of an operation, on which its thread sleeps.
#[derive(Default)]
pub(super) struct Ticket {
    place: Mutex<TicketState>,
    moved: Signal,
}

#[derive(Default)]
struct TicketState {
    state: Progress,
    /// The thread has to check at once whether it can take its operation back.
    reconsiders: bool,
    /// The thread's wait has ended.
    unwanted: bool,
    /// The thread has unwound.
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
    /// The thread is the next leader, with this operation.
    Leads(Box<Operation>),
    /// The thread was woken, or its sleep has ended.
    Nothing,
    /// Only in a simulated process that is being killed: no thread of this process runs any more.
    Killed,
}

/// An outcome, and what has become of the operation.
pub(super) struct Completion {
    pub(super) outcome: OperationOutcome,
    pub(super) in_doubt: Option<Doubt>,
    /// For an acquisition: the token of its last attempt.
    pub(super) token: Option<Token>,
    /// For an extension: the permits that remain, and the tokens that were not in the record.
    pub(super) renewing: Vec<Renewing>,
    pub(super) gone: Vec<Token>,
}

impl Ticket {
    fn place(&self) -> MutexGuard<'_, TicketState> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread, to check whether it can take its operation back.
    pub(super) fn wake_to_reconsider(&self) {
        self.place().reconsiders = true;
        self.moved.wake_all();
    }

    /// Whether no thread waits for the operation any more.
    pub(super) fn is_unwanted(&self) -> bool {
        let place = self.place();
        place.unwanted || place.abandoned
    }

    /// Records that the thread's wait has ended.
    pub(super) fn is_not_wanted_any_more(&self) {
        self.place().unwanted = true;
    }

    /// Passes the lead to the thread, with its operation; returns the operation if the thread has
    /// unwound.
    pub(super) fn leads(&self, operation: Operation) -> Option<Operation> {
        let mut place = self.place();
        if place.abandoned {
            return Some(operation);
        }
        place.state = Progress::Leads(Box::new(operation));
        self.moved.wake_all();
        None
    }

    /// Records that the thread unwinds. True if the lead was passed to it.
    pub(super) fn is_abandoned(&self) -> bool {
        let mut place = self.place();
        place.abandoned = true;
        matches!(std::mem::take(&mut place.state), Progress::Leads(_))
    }

    /// Returns what there is for the thread, or else sleeps for the time that `limit` returns for
    /// whether the thread's wait has ended.
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

    /// Passes the completion to the thread, and wakes it.
    pub(super) fn complete(&self, completion: Completion) {
        self.place().state = Progress::Completed(Box::new(completion));
        self.moved.wake_all();
    }
}

impl Completion {
    pub(super) fn new(operation: Operation, outcome: OperationOutcome) -> Completion {
        let Operation { kind, in_doubt, .. } = operation;
        let (renewing, gone) = (Vec::new(), Vec::new());
        let completion = Completion { outcome, in_doubt, token: None, renewing, gone };
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
    /// simulated process is being killed.
    pub(super) fn not_tried() -> Completion {
        let outcome = OperationOutcome::NoRoom { refusal: None };
        let (renewing, gone) = (Vec::new(), Vec::new());
        Completion { outcome, in_doubt: None, token: None, renewing, gone }
    }
}
