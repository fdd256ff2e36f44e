//! Whether a wait is for what its own thread or event loop has to release afterwards: see
//! [`bound`](crate::bound).

use std::cell::Cell;
use std::time::Duration;

use super::acquire::Acquire;
use crate::error::{Error, ErrorKind, Result};
use crate::owner::Token;
use crate::store::Reply;
use crate::target::Target;

/// How often a waiter that reads nothing else asks a server that does not answer.
const INTERVAL: Duration = Duration::from_secs(1);

/// What is released only after the wait.
pub(crate) struct SelfWait {
    tokens: Vec<Token>,
    /// Whether the target was not compared with the tokens yet.
    is_open: Cell<bool>,
}

impl SelfWait {
    pub(crate) fn new(tokens: Vec<Token>) -> SelfWait {
        let is_open = Cell::new(!tokens.is_empty());
        SelfWait { tokens, is_open }
    }

    /// Reads and checks the target, unless this was done. If the server does not answer, it remains to be
    /// done.
    ///
    /// # Errors
    /// [`ErrorKind::Deadlock`].
    pub(crate) fn ask<G: Acquire>(&self, acquire: &G, target: &Target) -> Result<()> {
        if !self.is_open.get() {
            return Ok(());
        }
        target.one(acquire.inspection()).map_or(Ok(()), |reply| self.check(acquire, &reply))
    }

    /// Checks whether the wait could end only after the waiter has released what it holds, by the reply
    /// to an inspection of the target.
    ///
    /// # Errors
    /// [`ErrorKind::Deadlock`].
    pub(super) fn check<G: Acquire>(&self, acquire: &G, reply: &Reply) -> Result<()> {
        self.is_open.set(false);
        if self.tokens.is_empty() || !acquire.needs(reply, &self.tokens) {
            return Ok(());
        }
        let text = "The caller already holds what it waits for, and would wait for itself: release that \
                    first, or limit the wait.";
        Err(Error::new(ErrorKind::Deadlock, text))
    }

    /// When to ask again; `None`: never.
    pub(super) fn interval(&self) -> Option<Duration> {
        self.is_open.get().then_some(INTERVAL)
    }
}
