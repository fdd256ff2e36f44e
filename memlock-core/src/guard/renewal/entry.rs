//! A hold: what the renewer and the owner share, how it is lost, and how the loss is reported.

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

/// What the renewer and the owner share. No mutex of it is locked during a request to a server.
pub(crate) struct RenewalEntry {
    pub(super) target: Target,
    pub(super) process: u64,
    pub(super) fence: Option<u64>,
    /// What sentences are about.
    pub(super) subject: String,
    pub(super) lease: Duration,
    /// Which of the client's servers it is on.
    pub(super) server: usize,
    /// Empty while it is being released, and afterwards; and while the renewer cleans up after a
    /// loss.
    pub(super) held: Mutex<Option<Box<dyn Renewable>>>,
    /// Its owner has begun to release it: it is not renewed any more, whatever the result.
    pub(super) let_go: AtomicBool,
    /// The renewer cleans up after a loss, or has done so.
    pub(super) cleaned: AtomicBool,
    /// Set by the thread that finds out first. The renewer reports it.
    pub(super) lost: Mutex<Option<Loss>>,
    pub(super) was_lost: Signal,
    pub(super) longest: Option<Moment>,
    pub(super) on_notice: Option<NoticeCallback>,
    pub(super) state: Mutex<RenewalState>,
}

/// How far the renewer got with it.
pub(super) struct RenewalState {
    /// When it is to be renewed, or tried again.
    pub(super) due: Moment,
    /// A renewal has failed since the last one that succeeded.
    pub(super) overdue: bool,
    /// How long to wait after the next failure.
    pub(super) retry: Duration,
    /// The risk was reported to the owner.
    pub(super) warned: bool,
    /// The loss was reported to the owner.
    pub(super) reported: bool,
    /// It may have another version than we know of: to be read before it is renewed.
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

    /// Whether it was not released, nor is about to be.
    pub(super) fn is_renewed(&self) -> bool {
        self.held().is_some()
    }

    pub(super) fn why_over(&self) -> Loss {
        let longest = self.longest.is_some_and(|longest| longest <= self.target.now());
        if longest { Loss::MaxHold } else { Loss::Expired }
    }

    /// Why it was lost, as far as that is known.
    pub(super) fn loss(&self) -> Option<Loss> {
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is not held any more. No I/O: the renewer tells it, and cleans up.
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

    /// Threads that wait for its loss are to read it again.
    pub(super) fn wake_waiters(&self) {
        // A thread that read it before waits by now.
        drop(self.lost.lock().unwrap_or_else(PoisonError::into_inner));
        self.was_lost.wake_all();
    }

    /// Tells its owner, once, unless it was released: then that is the answer.
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

    /// What is to be done on the server after a loss that was reported. It is renewed no longer.
    /// `silent` servers are not asked, and one that turns out to be silent is added.
    pub(super) fn clean_up(&self, silent: &mut BTreeSet<usize>) {
        let Some(loss) = self.loss() else { return };
        // Its owner has found it out just now.
        if self.is_renewed() && !self.state().reported {
            return;
        }
        self.forget();
        let taken = {
            let mut held = self.held();
            // A caller that finds its place empty is to know why.
            self.cleaned.store(held.is_some(), Ordering::Release);
            held.take()
        };
        if let Some(mut held) = taken {
            // A renewal may have come through after all when it had been given up.
            let came_late = loss != Loss::Gone && !held.remaining().is_zero();
            let in_doubt = self.state().in_doubt || came_late;
            if !held.lose(in_doubt, !silent.contains(&self.server)) {
                silent.insert(self.server);
            }
            if fork::is_astray() {
                return;
            }
            *self.held() = Some(held);
        }
    }

    /// Renews it no more.
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
        let key = &self.target.key;
        match notice {
            Notice::AtRisk(left) if self.why_over() == Loss::MaxHold => {
                log::warn!("{key} was held for as long as was allowed; it ends in {left:.1?}.");
            }
            Notice::AtRisk(left) => {
                log::warn!(
                    "The lease of {key} could not be renewed so far; it ends in {left:.1?}."
                );
            }
            Notice::Lost(loss) => log::warn!("{key} is lost: {loss}."),
        }
        // A callback for that may fork: a child renews nothing.
        let Some(on_notice) = self.on_notice.as_ref().filter(|_| !fork::is_astray()) else {
            return;
        };
        let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| on_notice(notice)));
        if called.is_err() {
            log::error!("The notice callback of {key} panicked.");
        }
    }
}
