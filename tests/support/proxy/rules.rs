//! What is to happen to which bursts.

use std::fmt;
use std::time::Duration;

use crate::wire::{Burst, Command};

/// Which bursts a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// `ms` only if the key is free (`ME`).
    Adding,
    /// `ms` only over a known version (`C<number>`).
    Swapping,
    /// The classic `cas`.
    Putting,
    /// `md`
    Deleting,
    /// `ma`
    Counting,
    /// `stats`: a client that introduces itself.
    Stats,
    /// Every burst, that of a handshake too.
    Any,
}

/// What happens to a burst that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server never sees the burst. The connection stays open, and silent for good.
    DropRequest,
    /// The server sees that many bytes of the burst, and the rest of it that much later, even if
    /// the client has gone by then.
    DelayRest(usize, Duration),
    /// The server sees that many bytes of the burst, and the rest of it when the rules are cleared.
    HoldRest(usize),
    /// The server did it, the client never hears. The connection stays open, and silent for good.
    SwallowReply,
    /// The server did it, and the connection is closed before any byte of the answer.
    CutAfterRequest,
    /// The server did it, and the connection is closed after that many bytes of the answer.
    CutReplyAfter(usize),
    /// The answer comes that much later.
    DelayReply(Duration),
    /// These bytes come instead of the answer. The connection goes on.
    GarbleReply(Vec<u8>),
    /// The server sees that many bytes of the burst, and the connection is closed.
    CutRequestAfter(usize),
    /// The answer comes, and its last bytes, that many, once more. The connection goes on.
    RepeatReply(usize),
    /// The burst and the answer pass byte by byte, with that pause after each byte.
    Trickle(Duration),
}

#[derive(Debug)]
pub(super) struct Rule {
    pub(super) bursts: Match,
    pub(super) fault: Fault,
    pub(super) once: bool,
}

type Decide = dyn FnMut(&[u8]) -> Option<Fault> + Send;

/// What chooses for each burst: see [`Proxy::decide`](super::Proxy::decide).
pub(super) struct Decider(pub(super) Box<Decide>);

impl fmt::Debug for Decider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Decider")
    }
}

impl Match {
    pub(super) fn any_of(self, burst: &Burst) -> bool {
        burst.commands.iter().any(|command| self.covers(command))
    }

    fn covers(self, command: &Command) -> bool {
        let version = command
            .flag_value('C')
            .is_some_and(|value| value.bytes().all(|byte| byte.is_ascii_digit()));
        match self {
            Match::Adding => {
                command.verb() == "ms" && (command.has_flag("ME") || command.has_flag("Me"))
            }
            Match::Swapping => command.verb() == "ms" && version,
            Match::Putting => command.verb() == "cas",
            Match::Deleting => command.verb() == "md",
            Match::Counting => command.verb() == "ma",
            Match::Stats => command.verb() == "stats",
            Match::Any => true,
        }
    }
}
