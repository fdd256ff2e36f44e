//! The runs around this one: each `memlock run` whose command, or what that has started, is this
//! process. Each holds something until its command ends, and may wait for this process until then.

use std::env;
use std::fmt::Write;

use memlock_core::{Bound, Token};

/// The variable with the tokens of the runs around a command, the outermost first.
pub(super) const TOKENS: &str = "MEMLOCK_TOKENS";

/// As many are passed on, so that a chain of runs of which each starts the next does not end at the
/// limits of the environment.
const MOST: usize = 64;

/// What the runs around this one were granted. They may have lost or released it since.
pub(super) struct Around {
    tokens: Vec<Token>,
    /// To the thread that waits.
    _bound: Vec<Bound>,
}

impl Around {
    pub(super) fn of_this_process() -> Around {
        let tokens = env::var(TOKENS).unwrap_or_default();
        let tokens = tokens.split_ascii_whitespace().filter_map(|token| token.parse().ok());
        let mut innermost: Vec<Token> = tokens.rev().take(MOST).collect();
        innermost.reverse();
        let bound = innermost.iter().copied().map(Bound::to_this_thread).collect();
        Around { tokens: innermost, _bound: bound }
    }

    /// The value of the variable for a command that runs under this token, too.
    pub(super) fn and(&self, token: Token) -> String {
        let mut tokens = String::new();
        for around in &self.tokens {
            let _ = write!(tokens, "{around} ");
        }
        tokens + &token.to_string()
    }
}
