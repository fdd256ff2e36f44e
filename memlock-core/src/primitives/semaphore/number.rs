//! The number of permits that a handle goes on with. In every rolling deploy that changes the
//! number, handles are for some time opened with another number than the semaphore has.
//!
//! The number in the record applies to all clients, whatever a handle was opened with. A handle
//! compares the two when it learns the number: at its first use, and not again, so that it follows
//! a resize without a word.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use super::handle::Semaphore;
use super::mismatch::Mismatch;
use crate::error::{Error, Result};
use crate::fork::ForkLocal;
use crate::name::Key;

/// The most differences that a client remembers to have logged. A program that meets more logs some
/// of them again.
const MOST_LOGGED: usize = 1_000;

/// The differences that were logged: the semaphore, its number, and that of the handle.
type Logged = Mutex<HashSet<(Key, u32, u32)>>;

impl Semaphore {
    /// The same semaphore, with another reaction to a mismatch: see [`Mismatch`]. Without effect on
    /// a handle that was opened without a number.
    #[must_use]
    pub fn with_mismatch(&self, mismatch: Mismatch) -> Semaphore {
        // What this handle has accepted, the new one need not.
        Semaphore { mismatch, agreed: Arc::default(), ..self.clone() }
    }

    /// Says which number of permits applies, if the semaphore had another number than this handle
    /// was opened with when it was last used; otherwise `None`. No I/O.
    pub fn report_mismatch(&self) -> Option<String> {
        let number = self.agreed.load(Ordering::Relaxed);
        let opened = self.permits.filter(|&opened| number != 0 && opened != number)?;
        Some(self.followed(number, opened))
    }

    /// Learns the number of permits of a record. At the first use, acts on a mismatch. Returns the
    /// number that applies then.
    pub(super) fn agree(&self, number: u32) -> Result<u32> {
        match (self.opened_otherwise(number), self.mismatch) {
            (Some(opened), Mismatch::Refuse) => Err(self.refuse(number, opened)),
            (Some(opened), Mismatch::Resize) => {
                if let Some(before) = self.write_number(opened)?.filter(|&it| it != opened) {
                    let subject = self.subject();
                    log::info!("The {subject} had {before} permits, and has {opened} now.");
                }
                Ok(opened)
            }
            (opened, _) => {
                self.learn(number);
                self.log_mismatch(number, opened);
                Ok(number)
            }
        }
    }

    /// Learns the number of permits of a record, and accepts it. Returns the number to log as that
    /// of this handle, if it differs.
    pub(super) fn learn(&self, number: u32) -> Option<u32> {
        let opened = self.opened_otherwise(number);
        self.agreed.store(number, Ordering::Relaxed);
        opened
    }

    /// The number that the semaphore has to have for this handle to go on; `None`: any number.
    pub(super) fn expected(&self) -> Option<u32> {
        self.permits.filter(|_| self.mismatch != Mismatch::Follow && !self.knows_the_number())
    }

    /// The number that this handle was opened with, if that is another one than `number`, and this
    /// is the first number that the handle learns.
    fn opened_otherwise(&self, number: u32) -> Option<u32> {
        self.permits.filter(|&opened| opened != number && !self.knows_the_number())
    }

    pub(super) fn knows_the_number(&self) -> bool {
        self.agreed.load(Ordering::Relaxed) != 0
    }

    /// Logs that the handle was opened with another number, if it was.
    pub(super) fn log_mismatch(&self, number: u32, opened: Option<u32>) {
        let Some(opened) = opened else { return };
        let logged = self.target.context.extension(ForkLocal::<Logged>::new).get();
        let is_new = {
            let mut logged = logged.lock().unwrap_or_else(PoisonError::into_inner);
            if logged.len() >= MOST_LOGGED {
                logged.clear();
            }
            logged.insert((self.target.key.clone(), number, opened))
        };
        if is_new {
            log::warn!("{}", self.followed(number, opened));
        }
    }

    fn followed(&self, number: u32, opened: u32) -> String {
        let has = counted(number);
        format!(
            "The {} has {has}, and was opened with {opened}: {number} applies. Change it for all \
             programs with `memlock resize`.",
            self.subject()
        )
    }

    fn refuse(&self, number: u32, opened: u32) -> Error {
        let (subject, has) = (self.subject(), counted(number));
        let text = format!(
            "The {subject} has {has}, and was opened with {opened}: open it with {number}, or change \
             it for all programs with `memlock resize`."
        );
        Error::invalid(text).naming(subject)
    }
}

fn counted(permits: u32) -> String {
    let s = if permits == 1 { "" } else { "s" };
    format!("{permits} permit{s}")
}
