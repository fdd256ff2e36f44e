//! What is held while the command runs.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::{Error, ErrorKind, Loss, Notice, Release, RenewOptions, Renewal, Token};

use crate::args::Run;
use crate::duration;
use crate::exit::{CliError, Status};
use crate::out;

use super::signals::{self, Signals};
use super::target::{Acquired, Target};

/// For how long a release is tried again, and the pause before it is.
const RELEASING: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(250);

/// A lock, or permits.
pub(super) struct Held {
    what: What,
    token: Token,
    /// The server was asked for it, and has it no more.
    is_gone: AtomicBool,
    /// The server has not answered a release: a later one cannot tell whether it was lost before.
    was_in_doubt: bool,
}

enum What {
    Renewed(Renewal),
    Leased(Acquired),
}

impl Held {
    /// Renews what was acquired, unless the command line says otherwise.
    pub(super) fn new(acquired: Acquired, target: &Target, args: &Run) -> Result<Held, CliError> {
        // With --verbose, the library has said so.
        if let Some(mismatch) = target.mismatch()
            && !args.quiet
            && !log::log_enabled!(log::Level::Warn)
        {
            out::complain(&mismatch);
        }
        let token = acquired.token();
        let what = if args.no_renew {
            What::Leased(acquired)
        } else {
            What::Renewed(renewed(target, acquired.renew(renew(target, args)))?)
        };
        Ok(Held { what, token, is_gone: AtomicBool::new(false), was_in_doubt: false })
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    pub(super) fn fence(&self) -> Option<u64> {
        match &self.what {
            What::Renewed(renewal) => renewal.fence(),
            What::Leased(guard) => guard.fence(),
        }
    }

    /// The time for which it is guaranteed to be held, if it is not renewed.
    pub(super) fn remaining(&self) -> Duration {
        match &self.what {
            What::Renewed(renewal) => renewal.remaining(),
            What::Leased(guard) => guard.remaining(),
        }
    }

    /// Asks the server whether it is still held. True when it is known to be lost; a server that
    /// does not answer has not lost it.
    pub(super) fn is_found_lost(&self) -> bool {
        let there = match &self.what {
            What::Renewed(renewal) => renewal.check(),
            What::Leased(guard) => guard.check(),
        };
        let lost = there.is_ok_and(|there| !there);
        self.is_gone.fetch_or(lost, Ordering::Relaxed);
        lost
    }

    /// Why it is not ours any more, as far as is known.
    pub(super) fn lost(&self) -> Option<String> {
        match &self.what {
            What::Renewed(renewal) => renewal.lost().map(|loss| loss.to_string()),
            _ if self.remaining().is_zero() => {
                Some("its lease is over, and was not to be renewed".to_owned())
            }
            _ if self.is_gone.load(Ordering::Relaxed) => Some(Loss::Gone.to_string()),
            _ => None,
        }
    }

    /// Releases it. An outage at this moment is tolerated for [`RELEASING`], but not beyond the
    /// lease, nor against a signal that is to end us.
    pub(super) fn release(&mut self, signals: Signals) -> memlock_core::Result<Release> {
        let until = SystemClock.now() + self.remaining().min(RELEASING);
        loop {
            let released = self.try_to_release();
            let is_outage = released.as_ref().is_err_and(Error::is_outage);
            self.was_in_doubt |= released.as_ref().is_err_and(|it| it.kind() == ErrorKind::Unknown);
            if !is_outage || SystemClock.now() + PAUSE >= until || signals.is_to_end() {
                return released;
            }
            SystemClock.sleep(PAUSE);
        }
    }

    /// Whether a release may have been carried out without an answer.
    pub(super) fn was_in_doubt(&self) -> bool {
        self.was_in_doubt
    }

    fn try_to_release(&mut self) -> memlock_core::Result<Release> {
        match &mut self.what {
            What::Renewed(renewal) => renewal.release(),
            What::Leased(guard) => guard.release(),
        }
    }

    /// Until when the command may rely on it, in Unix seconds; `None` when that is not known.
    pub(super) fn deadline(&self, args: &Run) -> Option<u64> {
        let left = match (args.no_renew, args.max_hold) {
            (true, _) => self.remaining(),
            (false, Some(longest)) => longest,
            (false, None) => return None,
        };
        Some(duration::after(left))
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

/// That no thread can be started that renews it is the system's fault.
fn renewed(target: &Target, renewal: memlock_core::Result<Renewal>) -> Result<Renewal, CliError> {
    renewal.map_err(|error| match error.kind() {
        ErrorKind::Internal => {
            CliError::new(Status::SYSTEM, format!("{target} cannot be renewed. {error}"))
        }
        _ => error.into(),
    })
}

/// How it is renewed: with a warning when it is at risk, and a wake-up of the main thread when it
/// is lost.
fn renew(target: &Target, args: &Run) -> RenewOptions {
    let name = target.to_string();
    let began = SystemClock.now();
    let longest = args.max_hold;
    let tell = move |notice| match notice {
        Notice::AtRisk(left) => {
            let held = SystemClock.now().since(began);
            let why = match longest {
                Some(longest) if held.saturating_add(left) >= longest => {
                    "has almost been held for as long as --max-hold allows"
                }
                _ => "could not be renewed so far",
            };
            out::complain(&format!("{name} {why}, and ends in {}.", duration::brief(left)));
        }
        Notice::Lost(_) => signals::wake(),
    };
    RenewOptions { max_hold: args.max_hold, on_notice: Some(Box::new(tell)) }
}
