//! A renewed lease: the state that the renewal thread and the holder share, how the lease is lost,
//! and how the loss is reported.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::entries::Entries;
use super::notice::{Notice, NoticeCallback};
use super::renewable::Renewable;
use crate::clock::Moment;
use crate::fork;
use crate::guard::outcome::Loss;
use crate::mutation::{self, Mutation};
use crate::target::Target;
use crate::thread::Signal;

/// The state that the renewal thread and the holder share. None of its mutexes is locked during a
/// request to a server.
pub(crate) struct RenewalEntry {
    pub(super) target: Target,
    pub(super) process: u64,
    pub(super) fence: Option<u64>,
    /// What the holder has, for messages, such as `permit of the semaphore …`.
    pub(super) what: String,
    pub(super) lease: Duration,
    /// The index of the server, among those of the client.
    pub(super) server: usize,
    /// `None` while the guard is being released and afterwards, and while the renewal thread cleans
    /// up after a loss.
    pub(super) held: Mutex<Option<Box<dyn Renewable>>>,
    /// The holder has begun to release it: it is no longer renewed, whatever the result.
    pub(super) let_go: AtomicBool,
    /// The renewal thread cleans up after a loss, or has done so.
    pub(super) cleaned: AtomicBool,
    /// Set by the first thread that detects the loss. The renewal thread reports it.
    pub(super) lost: Mutex<Option<Loss>>,
    pub(super) was_lost: Signal,
    pub(super) longest: Option<Moment>,
    pub(super) on_notice: Option<NoticeCallback>,
    pub(super) state: Mutex<RenewalState>,
}

/// The progress of the renewal.
pub(super) struct RenewalState {
    /// When to renew the lease, or to retry.
    pub(super) due: Moment,
    /// Whether a renewal has failed since the last success.
    pub(super) overdue: bool,
    /// The last pause after a failure.
    pub(super) retry: Duration,
    /// The risk was reported to the holder.
    pub(super) warned: bool,
    /// The loss was reported to the holder.
    pub(super) reported: bool,
    /// The item may have a version that is not known: it is read before it is renewed.
    pub(super) in_doubt: bool,
}

impl RenewalEntry {
    pub(super) fn is_ours(&self) -> bool {
        self.process == fork::generation()
    }

    pub(super) fn held(&self) -> MutexGuard<'_, Option<Box<dyn Renewable>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, RenewalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the guard was neither released nor is being released.
    pub(super) fn is_renewed(&self) -> bool {
        self.held().is_some()
    }

    pub(super) fn why_over(&self) -> Loss {
        let longest = self.longest.is_some_and(|longest| longest <= self.target.now());
        if longest { Loss::MaxHold } else { Loss::Expired }
    }

    /// Why it was lost, if known. Nothing is known in a child: a thread of its parent may have locked
    /// the mutex.
    pub(super) fn loss(&self) -> Option<Loss> {
        if !self.is_ours() {
            return None;
        }
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a loss. No I/O: the renewal thread reports the loss, and cleans up.
    pub(super) fn note(&self, loss: Loss) {
        let first = {
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            let first = lost.is_none();
            lost.get_or_insert(loss);
            first
        };
        if first {
            self.was_lost.wake_all();
            Entries::<RenewalEntry>::of(&self.target.context).hurry();
        }
    }

    /// Makes threads that wait for a loss read the state again.
    pub(super) fn wake_waiters(&self) {
        // A thread that read the state before this point is waiting by now.
        drop(self.lost.lock().unwrap_or_else(PoisonError::into_inner));
        self.was_lost.wake_all();
    }

    /// Reports a loss to the holder, once. If the guard was released, the release returns the loss.
    pub(super) fn tell_loss(&self) {
        if let Some(loss) = self.loss()
            && self.is_renewed()
            && (!std::mem::replace(&mut self.state().reported, true)
                || mutation::has(Mutation::TellTwice))
            && !mutation::has(Mutation::LoseSilently)
        {
            self.notify(Notice::Lost(loss));
        }
    }

    /// Cleans up on the server after a reported loss. The lease is no longer renewed. `silent`
    /// servers are not contacted; a server that turns out to be silent is added.
    pub(super) fn clean_up(&self, silent: &mut BTreeSet<usize>) {
        let Some(loss) = self.loss() else { return };
        // The holder has detected the loss just now.
        if self.is_renewed() && !self.state().reported {
            return;
        }
        self.forget();
        let taken = {
            let mut held = self.held();
            // A caller that finds `held` empty has to know why.
            self.cleaned.store(held.is_some(), Ordering::Release);
            held.take()
        };
        if let Some(mut held) = taken {
            // A renewal may have succeeded late, after it was given up.
            let came_late = loss != Loss::Gone && !held.remaining().is_zero();
            let in_doubt = self.state().in_doubt || came_late;
            if !held.lose(in_doubt, !silent.contains(&self.server)) {
                silent.insert(self.server);
            }
            *self.held() = Some(held);
        }
    }

    /// Stops the renewal.
    pub(super) fn forget(&self) {
        self.let_go.store(true, Ordering::Release);
        Entries::of(&self.target.context).forget(self);
    }

    pub(super) fn abandon(&self) {
        let taken = if self.is_ours() { self.held().take() } else { None };
        if let Some(mut held) = taken {
            self.forget();
            self.wake_waiters();
            held.give_up();
        }
    }

    pub(super) fn notify(&self, notice: Notice) {
        let what = &self.what;
        match notice {
            Notice::AtRisk(left) if self.why_over() == Loss::MaxHold => {
                log::warn!(
                    "The {what} was held for as long as was allowed; it ends in {left:.1?}."
                );
            }
            Notice::AtRisk(left) => {
                log::warn!(
                    "The lease of the {what} could not be renewed so far; it ends in {left:.1?}."
                );
            }
            Notice::Lost(loss) => log::warn!("The {what} is lost: {loss}."),
        }
        let Some(on_notice) = &self.on_notice else { return };
        let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| on_notice(notice)));
        if called.is_err() {
            log::error!("The notice callback of the {what} panicked.");
        }
    }
}
